"""Damages the folders of runs in random ways, and calls every verb on them: see scripts/corrupt."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests import command
from tests.exclusive import exclusive
from tests.polling import poll
from tests.ports import free_ports

LIMIT = 60.0  # seconds; a bound on what must happen, never a wait

# Every verb that looks at runs. RUN is the damaged one, AWAY a folder for what is pulled.
VERBS = (
    "runs",
    "runs --json",
    "tail --no-follow RUN",
    "tail --no-follow",
    "tail --json -n all RUN",
    "tail RUN",
    "status RUN",
    "status --json RUN",
    "stop RUN",
    "stop --now --json RUN",
    "stacks RUN",
    "pull --to AWAY RUN",
    "clean --dry-run",
    "clean",
)
ODD_VALUES: tuple[Any, ...] = (
    *(None, True, [], {}, "", [[]], -1, 0, 10**30, -(10**18), 1e308, 253_402_300_800, "\0", "../../x", "/"),
    *("\x1b[2J\u202e", "x" * 100_000, [None], {"a": []}),
)


@dataclass(frozen=True)
class Called:
    status: int | None  # None: it did not end
    out: str
    err: str


def call(words: Sequence[str], folder: Path, state: Path) -> Called:
    """Run one command line in a process of its own, forked: no import, no start of Python.

    `clean` would end the orphans that other tests look at, of other clones too.
    """
    with exclusive("clean") if words[0] == "clean" else contextlib.nullcontext():
        return _call(words, folder, state)


def _call(words: Sequence[str], folder: Path, state: Path) -> Called:
    out, err = folder / "out", folder / "err"
    environment = {**os.environ, "XDG_STATE_HOME": str(state)}
    with Path(os.devnull).open("rb") as stdin, out.open("wb") as stdout, err.open("wb") as stderr:
        streams = (stdin.fileno(), stdout.fileno(), stderr.fileno())
        called = command.start(words, folder, environment, streams)
    code: int | None
    try:
        code = called.wait(LIMIT)
    except subprocess.TimeoutExpired:
        called.kill()
        called.wait()
        code = None
    return Called(code, out.read_text(errors="replace"), err.read_text(errors="replace"))


class Ground:
    """Two hosts on this machine without SSH, and two runs that have ended: one to be damaged, one not."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.project = folder / "project"
        self.project.mkdir(parents=True)
        self.whole = folder / "whole"  # the state folder, as it was
        ports = free_ports(2)
        hosts = [
            f'[[host]]\nname = "n{number}"\nssh = "local"\naddress = "127.0.0.1"\ntask_port = {port}\n'
            f'python = "{sys.executable}"\nagent_python = "{sys.executable}"\n'
            f'workdir = "{folder}/work-{number}"\nstate = "{folder}/node-{number}"\n'
            for number, port in enumerate(ports)
        ]
        (self.project / "hosts.toml").write_text("".join(hosts))
        (self.project / "short.py").write_text("print('one line', flush=True)\n")
        (self.project / "long.py").write_text("import time\nprint('up', flush=True)\ntime.sleep(3600)\n")
        (self.project / "fails.py").write_text("raise SystemExit(3)\n")
        self.other = self.launch(self.whole, "short.py")
        self.run = self.launch(self.whole, "short.py")
        self.said = self.about_other(self.whole)

    def launch(self, state: Path, script: str, *options: str, status: int = 0) -> str:
        """A run's id, once it has ended, or with --detach once it was started."""
        before = set(_runs(state))
        words = ["launch", "--skip-preflight", "--no-validate", *options, "--", script]
        called = call(words, self.project, state)
        assert called.status == status, called
        return (set(_runs(state)) - before).pop()

    def about_other(self, state: Path) -> list[str]:
        """What is said of the run that nobody damages."""
        tail = call(["tail", "--no-follow", "-n", "all", self.other], self.project, state)
        rows = [line for line in call(["runs"], self.project, state).out.splitlines() if self.other in line]
        status = call(["status", self.other], self.project, state)
        squeezed = [" ".join(row.split()) for row in rows]  # columns are as wide as their widest cell
        return [str(tail.status), tail.out, *squeezed, str(status.status), status.out]

    def alive(self, run: str) -> list[int]:
        """The processes that bear the run's cookie."""
        mark = f"ORCHESTRATE_TASK={run}/".encode()
        return [pid for pid in _pids() if any(entry.startswith(mark) for entry in _environ(pid))]


@dataclass(frozen=True)
class Wrong:
    seed: int
    damage: str
    words: str
    what: str
    called: Called | None = None

    def __str__(self) -> str:
        said = f"\n{self.called.out[-600:]}\n{self.called.err[-1500:]}" if self.called else ""
        return f"seed {self.seed}: {self.damage}: orchestrate {self.words}: {self.what}{said}"


def play(ground: Ground, seed: int, calls: int) -> Iterator[Wrong | None]:
    """Damage a copy of everything, then call verbs; one item a call: what was wrong with it, or None."""
    draw = random.Random(seed)
    state = ground.folder / f"state-{seed}"
    shutil.copytree(
        ground.whole, state, ignore=lambda _, names: [name for name in names if name == "control"]
    )
    folder = state / "orchestrate" / "runs" / ground.run
    damage = ", ".join(_damage(draw, folder) for _ in range(draw.choice([1, 1, 1, 2, 3])))
    away = ground.folder / f"away-{seed}"
    try:
        for verb in draw.sample(VERBS, calls):
            words = [{"RUN": ground.run, "AWAY": str(away)}.get(word, word) for word in verb.split()]
            called = call(words, ground.project, state)
            what = wrong_with(called)
            yield Wrong(seed, damage, verb, what, called) if what else None
            _wait_for_keeper(folder)
        said = ground.about_other(state)
        what = "" if said == ground.said else f"said of the other run:\n{said}\ninstead of\n{ground.said}"
        yield Wrong(seed, damage, "(the other run)", what) if what else None
    finally:
        shutil.rmtree(away, ignore_errors=True)
        shutil.rmtree(state, ignore_errors=True)


def play_alive(ground: Ground, seed: int) -> Iterator[Wrong | None]:
    """Damage a run whose tasks live: `stop` ends them all the same."""
    draw = random.Random(seed)
    state = ground.folder / f"state-{seed}"
    run = ground.launch(state, "long.py", "--detach")
    folder = state / "orchestrate" / "runs" / run
    until(f"both tasks of {run} live", lambda: len(ground.alive(run)) >= 2)
    if draw.random() < 0.7:
        kill_keeper(folder)
    damage = ", ".join(_damage(draw, folder) for _ in range(draw.choice([1, 1, 2])))
    called = call(["stop", "--now", run], ground.project, state)
    what = wrong_with(called)
    if not what and called.status != 0:
        what = f"ended with {called.status}"
    _wait_for_keeper(folder)
    if not what and (left := ground.alive(run)):
        what = f"left {left} alive"
    for pid in ground.alive(run):
        os.kill(pid, signal.SIGKILL)
    yield Wrong(seed, damage, "stop --now (tasks alive)", what, called) if what else None
    shutil.rmtree(state, ignore_errors=True)


def wrong_with(called: Called) -> str:
    """What no call may do, whatever it found."""
    if called.status is None:
        return f"did not end within {LIMIT:.0f} s"
    if called.status not in (0, 1, 2, 3, 130):  # 130: what a run ended with that was stopped
        return f"ended with {called.status}"
    if "Traceback" in called.err or "a bug in orchestrate" in called.err + called.out:
        return "a traceback, or a bug"
    errors = sum(line.startswith("error:") for line in called.err.splitlines())
    return f"{errors} errors" if errors > 1 or (called.status in (2, 3) and not errors) else ""


def until(what: str, condition: Callable[[], Any]) -> None:
    assert poll(condition, LIMIT), f"not within {LIMIT:.0f} s: {what}"


def kill_keeper(folder: Path) -> None:
    """Kill the process that has the run's lock open, and wait until the lock is free."""
    for pid in keepers(folder):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    _wait_for_keeper(folder)


def keepers(folder: Path) -> list[int]:
    """The processes that have the run's lock open: one, or none."""
    lock = (folder / "keeper.lock").stat()
    return [pid for pid in _pids() if _has_open(pid, lock)]


def _has_open(pid: int, file: os.stat_result) -> bool:
    """Whether a process has that very file open: pipes and sockets of others may have its inode's number."""
    folder = Path(f"/proc/{pid}/fd")
    try:
        names = os.listdir(folder)
    except OSError:
        return False
    for name in names:
        with contextlib.suppress(OSError):  # closed since it was listed
            if os.path.samestat((folder / name).stat(), file):
                return True
    return False


def _wait_for_keeper(folder: Path) -> None:
    """Until no process holds the run."""

    def free() -> bool:
        try:
            fd = os.open(folder / "keeper.lock", os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
        except OSError:
            return True
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:
            return True
        finally:
            os.close(fd)
        return True

    until("the keeper has gone", free)


def _damage(draw: random.Random, folder: Path) -> str:
    """Damage one file of a run's folder; return what was done, in words."""
    names = ["plan.json", "events.jsonl", "plan.json", "events.jsonl", "keeper.lock", "control"]
    names += ["debug.log", "logs", "logs/1", "stacks", "logs/1/worker-0.log", "logs/1/worker-0.idx"]
    name = draw.choice(names)
    path = folder / name
    try:
        kind = draw.choice(_IN_PLACE if path.is_file() and draw.random() < 0.6 else _INSTEAD)
        path.parent.mkdir(parents=True, exist_ok=True)
        kind(draw, path)
    except OSError as error:  # what was damaged before stands in the way, or its keeper is writing
        return f"{name}: {error.strerror}"
    return f"{name}: {kind.__name__.strip('_')}"


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _missing(_: random.Random, path: Path) -> None:
    _remove(path)


def _fifo(_: random.Random, path: Path) -> None:
    _remove(path)
    os.mkfifo(path)


def _directory(_: random.Random, path: Path) -> None:
    _remove(path)
    path.mkdir()
    (path / "something").write_text("in it")


def _loop(_: random.Random, path: Path) -> None:
    _remove(path)
    path.symlink_to(path.name)


def _dangling(_: random.Random, path: Path) -> None:
    _remove(path)
    path.symlink_to("/no/such/file")


def _endless(_: random.Random, path: Path) -> None:
    _remove(path)
    path.symlink_to("/dev/zero")


def _device(_: random.Random, path: Path) -> None:
    _remove(path)
    try:
        os.mknod(path, 0o20666, os.makedev(1, 5))  # zero
    except PermissionError:  # for root alone
        path.symlink_to("/dev/zero")


def _socket(_: random.Random, path: Path) -> None:
    _remove(path)
    here = Path.cwd()
    try:
        os.chdir(path.parent)  # the names of sockets are short
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(here)


def _closed(_: random.Random, path: Path) -> None:
    with contextlib.suppress(OSError):
        path.chmod(0)


def _plain_file(_: random.Random, path: Path) -> None:
    _remove(path)
    path.write_text("something else\n")


def _emptied(_: random.Random, path: Path) -> None:
    path.write_bytes(b"")


def _truncated(draw: random.Random, path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: draw.randrange(len(data) + 1)])


def _flipped(draw: random.Random, path: Path) -> None:
    data = bytearray(path.read_bytes() or b"x")
    for _ in range(draw.choice([1, 1, 3, 20])):
        data[draw.randrange(len(data))] = draw.randrange(256)
    path.write_bytes(data)


def _no_utf8(draw: random.Random, path: Path) -> None:
    data = path.read_bytes()
    at = draw.randrange(len(data) + 1)
    path.write_bytes(data[:at] + b"\xff\xfe" + data[at:])


def _noise(draw: random.Random, path: Path) -> None:
    path.write_bytes(draw.randbytes(draw.choice([1, 100, 100_000])))


def _long_line(_: random.Random, path: Path) -> None:
    with path.open("ab") as file:
        file.write(b'{"at":1.0,"event":"' + b"x" * 50_000_000 + b'"}\n')


def _deep(draw: random.Random, path: Path) -> None:
    with path.open("ab") as file:
        file.write(
            draw.choice([b"[" * 200_000, b'{"a":' * 100_000, b'{"at":1,"event":' + b"[" * 100_000]) + b"\n"
        )


def _doubled(_: random.Random, path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data + data)


def _shuffled(draw: random.Random, path: Path) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    draw.shuffle(lines)
    path.write_bytes(b"".join(lines))


def _odd_value(draw: random.Random, path: Path) -> None:
    """Another value in the place of one, in what is JSON; else as `_flipped`."""
    text = path.read_text(errors="replace")
    whole = path.name == "plan.json"
    lines = [text] if whole else text.splitlines()
    try:
        at = draw.randrange(len(lines))
        document = json.loads(lines[at])
    except (ValueError, RecursionError):  # another damage has nested it deep
        _flipped(draw, path)
        return
    places = list(_places(document))
    holder, key = draw.choice(places)
    holder[key] = draw.choice(ODD_VALUES)
    lines[at] = json.dumps(document).replace('"NaN"', "NaN")
    path.write_text("\n".join(lines) + "\n")


def _no_number(draw: random.Random, path: Path) -> None:
    text = path.read_text(errors="replace")
    numbers = [place for place, letter in enumerate(text) if letter.isdigit()]
    if numbers:
        at = draw.choice(numbers)
        odd = draw.choice(["NaN", "-Infinity", "1e999", "9" * 400, "-5", "1e18"])
        path.write_text(text[:at] + odd + text[at + 1 :])


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield value, key
        yield from _places(inner)


_INSTEAD = (_missing, _fifo, _directory, _loop, _dangling, _endless, _device, _socket, _closed, _plain_file)
_IN_PLACE = (
    *(_emptied, _truncated, _flipped, _no_utf8, _noise, _long_line, _deep, _doubled, _shuffled),
    *(_odd_value, _odd_value, _odd_value, _no_number),
)


def _runs(state: Path) -> list[str]:
    root = state / "orchestrate" / "runs"
    return [path.name for path in root.iterdir() if path.name[0] != "."] if root.is_dir() else []


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _environ(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []
