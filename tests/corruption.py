"""Damages run folders at random, and calls every verb on them: see scripts/corrupt."""

import contextlib
import json
import random
import shutil
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.ports import free_ports
from tests.processes import bearers, send
from tests.verbs import LIMIT, Called, call, kill_keeper, launch, until, wait_for_keeper

# Every verb that reads runs. RUN is the damaged one, AWAY a folder for pulled files.
VERBS = (
    "runs",
    "runs --json",
    "runs --diff RUN RUN",
    "report RUN",
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


class Ground:
    """Two hosts on this machine without SSH, and two finished runs: one to damage, one to leave intact."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.project = folder / "project"
        self.project.mkdir(parents=True)
        self.whole = folder / "whole"  # the state folder before any damage
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
        return launch([*options, "--", script], self.project, state, status)

    def about_other(self, state: Path) -> list[str]:
        """Return the output about the undamaged run."""
        tail = call(["tail", "--no-follow", "-n", "all", self.other], self.project, state)
        rows = [line for line in call(["runs"], self.project, state).out.splitlines() if self.other in line]
        status = call(["status", self.other], self.project, state)
        squeezed = [" ".join(row.split()) for row in rows]  # columns are as wide as their widest cell
        return [str(tail.status), tail.out, *squeezed, str(status.status), status.out]


@dataclass(frozen=True)
class Wrong:
    seed: int
    damage: str
    words: str
    what: str
    called: Called | None = None

    def __str__(self) -> str:
        output = f"\n{self.called.out[-600:]}\n{self.called.err[-1500:]}" if self.called else ""
        return f"seed {self.seed}: {self.damage}: orchestrate {self.words}: {self.what}{output}"


def play(ground: Ground, seed: int, calls: int) -> Iterator[Wrong | None]:
    """Damage a copy of everything, then call verbs; yield one item per call: the problem, or None."""
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
            wait_for_keeper(folder)
        output = ground.about_other(state)
        what = "" if output == ground.said else f"said of the other run:\n{output}\ninstead of\n{ground.said}"
        yield Wrong(seed, damage, "(the other run)", what) if what else None
    finally:
        shutil.rmtree(away, ignore_errors=True)
        shutil.rmtree(state, ignore_errors=True)


def play_alive(ground: Ground, seed: int) -> Iterator[Wrong | None]:
    """Damage a run with live tasks: `stop` must still end them."""
    draw = random.Random(seed)
    state = ground.folder / f"state-{seed}"
    run = ground.launch(state, "long.py", "--detach")
    folder = state / "orchestrate" / "runs" / run
    until(f"both tasks of {run} live", lambda: len(bearers(run)) >= 2)
    if draw.random() < 0.7:
        kill_keeper(folder)
    damage = ", ".join(_damage(draw, folder) for _ in range(draw.choice([1, 1, 2])))
    called = call(["stop", "--now", run], ground.project, state)
    what = wrong_with(called)
    if not what and called.status != 0:
        what = f"ended with {called.status}"
    wait_for_keeper(folder)
    if not what and (left := bearers(run)):
        what = f"left {left} alive"
    send(signal.SIGKILL, bearers(run))
    yield Wrong(seed, damage, "stop --now (tasks alive)", what, called) if what else None
    shutil.rmtree(state, ignore_errors=True)


def wrong_with(called: Called) -> str:
    """Return what the call did that no call may do; "" if nothing."""
    if called.status is None:
        return f"did not end within {LIMIT:.0f} s"
    if called.status not in (0, 1, 2, 3, 130):  # 130: the status of a stopped run
        return f"ended with {called.status}"
    if "Traceback" in called.err or "a bug in orchestrate" in called.err + called.out:
        return "a traceback, or a bug"
    errors = sum(line.startswith("error:") for line in called.err.splitlines())
    return f"{errors} errors" if errors > 1 or (called.status in (2, 3) and not errors) else ""


def _damage(draw: random.Random, folder: Path) -> str:
    """Damage one file of a run's folder; return what was done, in words."""
    names = ["plan.json", "events.jsonl", "plan.json", "events.jsonl", "keeper.lock"]
    names += ["view.json", "points.jsonl", "usage.jsonl", "debug.log"]
    names += ["logs/1/worker-0.log", "logs/1/worker-0.idx"]
    path = folder / draw.choice(names)
    kind = draw.choice(_KINDS)
    try:
        kind(draw, path)
    except OSError as error:  # missing since earlier damage
        return f"{path.name}: {error.strerror}"
    return f"{path.name}: {kind.__name__.strip('_')}"


def _closed(_: random.Random, path: Path) -> None:
    with contextlib.suppress(OSError):
        path.chmod(0)


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


def _odd_value(draw: random.Random, path: Path) -> None:
    """Replace one value in JSON; anything else is damaged as by `_flipped`."""
    text = path.read_text(errors="replace")
    whole = path.name == "plan.json"
    lines = [text] if whole else text.splitlines()
    try:
        at = draw.randrange(len(lines))
        document = json.loads(lines[at])
    except (ValueError, RecursionError):  # nested deeply by earlier damage
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


_KINDS = (
    *(_closed, _emptied, _truncated, _flipped, _no_utf8, _noise, _long_line, _deep),
    *(_odd_value, _odd_value, _odd_value, _no_number),
)
