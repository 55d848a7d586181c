"""Verbs in which one call of the C library fails, and the invariants afterwards: see scripts/fail-nth.

A preloaded shim (shim.c) counts the calls of one process, and fails those specified in a file that both map.
The command and its keeper are forked from a process that has loaded the shim; an agent gets it from a wrapper
that replaces its Python. Executed programs do not have it: neither `ssh`, rsync, and git, nor the tasks.
"""

import atexit
import ctypes
import errno
import faulthandler
import fcntl
import functools
import mmap
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from orchestrator.rehearsal import Cluster
from tests import command
from tests.polling import poll
from tests.processes import bearers, holder
from tests.ssh.runs.desk import Desk
from tests.wheels import wheel

SHIM = Path(__file__).with_name("shim.c")
LIMIT = 60.0  # seconds for one command; an upper bound, never a fixed wait
KINDS = (
    "open",
    "write",
    "fsync",
    "rename",
    "connect",
    "fork",
    "make",
    "read",
    "recv",
    "send",
    "thread",
    "pipe",
)
_DEPTHS = 8
_HEAD = struct.Struct("7i")
_SEEN = struct.Struct(f"{_DEPTHS * len(KINDS)}i")  # in the shim's order
_TEXTS = struct.Struct("100s400s")
_SIZE = _HEAD.size + _SEEN.size + _TEXTS.size
_NEVER, _HIGH = -1, 500
_WHILE = 15  # calls; a keeper tries again each second, or every five

# Real failures: a full disk, limits of descriptors, processes, or memory, a broken disk, a lost connection.
ERRORS = {
    "open": (errno.EMFILE, errno.ENOSPC, errno.EIO),
    "write": (errno.ENOSPC, errno.EIO),
    "fsync": (errno.EIO,),
    "rename": (errno.ENOSPC,),
    "connect": (errno.ECONNRESET,),
    "fork": (errno.ENOMEM,),
    "make": (errno.ENOSPC,),
    "read": (errno.EIO,),
    "recv": (errno.ECONNRESET,),
    "send": (errno.ECONNRESET,),
    "thread": (errno.EAGAIN,),
    "pipe": (errno.EMFILE,),
}
HERE = {"command": 0, "starter": 1, "keeper": 2}  # forks behind the command
THERE = {"agent": 0, "child": 1, "guard": 2, "supervisor": 3}  # forks behind the agent
_PROGRAM = (
    "from tests.failnth import ground; from tests.command import serve; serve(); ground.become();"
    " from orchestrator.cli.main import run; run()"
)


@dataclass(frozen=True)
class Failure:
    """The calls that fail: the n-th of a kind in one of the processes, or from the n-th on for a while.

    Not forever: a keeper waits for space, and then its run continues.
    """

    kind: str
    error: int
    nth: int
    role: str
    on: bool = False
    at: str = ""  # only calls with a path that contains this count

    def __str__(self) -> str:
        which = f"{self.nth}th {self.kind} {self.at}".rstrip() + (" and later ones" if self.on else "")
        return f"{self.role}: {which}: {errno.errorcode[self.error]}"


@functools.cache
def shim() -> Path:
    """Compile it, once."""
    folder = Path(tempfile.mkdtemp(prefix="failnth-"))
    atexit.register(shutil.rmtree, folder)
    made = folder / "shim.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", str(made), str(SHIM), "-ldl"], check=True)
    return made


@functools.cache
def _nursery() -> command.Nursery:
    return command.Nursery(sys.executable, _PROGRAM, {"LD_PRELOAD": str(shim())})


def become() -> None:
    """Start counting in a command that was just forked."""
    sys.path[:] = filter(None, sys.path)  # of `python -c`: the project's folder
    if order := os.environ.pop("FAILNTH", ""):
        with Path(os.environ.pop("FAILNTH_TRACE")).open("a") as file:
            # A descriptor that no file of a keeper gets, since a keeper closes this one.
            trace = fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, _HIGH)
        faulthandler.register(signal.SIGUSR2, trace, all_threads=False)
        vars(ctypes)["CDLL"](None).failnth_arm(order.encode())


class Order:
    """The file that the shim also maps."""

    def __init__(self, path: Path) -> None:
        path.write_bytes(bytes(_SIZE))
        self.path = path
        self._calls = path.with_name(f"{path.name}.calls")
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _SIZE)
        self.give(None)

    def give(self, failure: Failure | None, *, trace: bool = False) -> None:
        """Set the calls that fail from now on, and reset the counters."""
        self._map[:] = bytes(_SIZE)
        self._calls.write_bytes(b"")
        if failure is None:
            self._map[: _HEAD.size] = _HEAD.pack(_NEVER, 0, 0, 0, 0, 0, 0)
            return
        depth = {**HERE, **THERE}[failure.role]
        last = failure.nth + (_WHILE if failure.on else 0)
        kind = KINDS.index(failure.kind)
        _TEXTS.pack_into(self._map, _HEAD.size + _SEEN.size, failure.at.encode(), b"")
        self._map[: _HEAD.size] = _HEAD.pack(kind, failure.error, failure.nth, last, depth, trace, 0)

    @property
    def hits(self) -> int:
        return int(_HEAD.unpack_from(self._map)[-1])

    @property
    def where(self) -> str:
        _, where = _TEXTS.unpack_from(self._map, _HEAD.size + _SEEN.size)
        return str(where.rstrip(b"\0").decode(errors="replace"))

    def seen(self, role: str) -> dict[str, list[str]]:
        """Return the subjects of that process's calls, in order by kind, when none fails."""
        found: dict[str, list[str]] = {kind: [] for kind in KINDS}
        for line in self._calls.read_text(errors="replace").splitlines():
            depth, kind, what = line.split(" ", 2)
            if int(depth) == {**HERE, **THERE}[role]:
                found[KINDS[int(kind)]].append(what)
        return found


@dataclass(frozen=True)
class Outcome:
    status: int | None  # None: it did not end
    out: str
    err: str
    hits: int
    where: str
    trace: str = ""


class Ground:
    """Two hosts behind real SSH servers, a controller, and an order for each of the two sides."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster = cluster
        cluster.ssh_config.write_text(
            cluster.ssh_config.read_text().replace("StrictHostKeyChecking yes", "StrictHostKeyChecking ask")
        )
        self.known = cluster.known_hosts.read_bytes()
        self.desk = Desk(cluster, folder / "desk")
        self.here, self.there = Order(folder / "here"), Order(folder / "there")
        self.trace = folder / "trace"
        wrapper = folder / "python"
        wrapper.write_text(
            f'#!/bin/sh\nLD_PRELOAD="{shim()}" FAILNTH="{self.there.path}" exec "{sys.executable}" "$@"\n'
        )
        wrapper.chmod(0o755)
        first, *others = cluster.hosts
        hosts = (replace(first, agent_python=str(wrapper)), *others)
        self.desk.write_hosts(hosts, job='[job]\nframework = "none"')
        self.desk.hosts.rename(self.desk.project / "hosts.toml")
        self.inventory = (self.desk.project / "hosts.toml").read_bytes()
        self.desk.script("short.py", "print('one line', flush=True)\n")
        self.desk.script("long.py", "import time\nprint('up', flush=True)\ntime.sleep(3600)\n")
        self.data = folder / "data"
        self.data.mkdir()
        (self.data / "file").write_bytes(bytes(range(256)) * 400)
        self.away, self.wheels = folder / "away", folder / "wheels"
        self.wheels.mkdir()
        self.run = self.over = ""  # the run of the case, and a finished one

    def call(self, *words: str, failure: Failure | None = None) -> Outcome:
        """Run one command to its end, replacing `AWAY`, `DATA`, and `RUN` by the case's values."""
        order = self.there if failure is not None and failure.role in THERE else self.here
        for one in (self.here, self.there):
            one.give(failure if one is order else None, trace=one is self.here)
        self.trace.write_bytes(b"")
        desk = self.desk
        env = desk.environment(
            FAILNTH=str(self.here.path),
            FAILNTH_TRACE=str(self.trace),
            XDG_CACHE_HOME=str(desk.folder / "cache"),
            HOME=str(desk.folder),
            UV_DEFAULT_INDEX=self.wheels.as_uri(),
            PIP_INDEX_URL=self.wheels.as_uri(),
        )
        meant = {"AWAY": str(self.away), "DATA": str(self.data), "RUN": self.run}
        meant.update(CONFIG=str(self.cluster.ssh_config), HOSTS=self.cluster.hosts[1].name)
        words = tuple(meant.get(word, word) for word in words)

        def late(forked: command.Forked) -> None:
            forked.send_signal(signal.SIGUSR2)  # its trace shows where it waits
            time.sleep(0.2)

        ended = _nursery().ended(words, desk.project, env, LIMIT, late)
        return Outcome(*ended, order.hits, order.where, self.trace.read_text(errors="replace"))

    def runs(self) -> list[Path]:
        return sorted(
            path for path in (self.desk.state / "orchestrate/runs").glob("*") if path.name != ".new"
        )

    def clear(self) -> None:
        """Undo the effects of the last case."""
        self.cluster.known_hosts.write_bytes(self.known)
        (self.desk.project / "made.toml").unlink(missing_ok=True)
        for path in self.runs():
            if path.name != self.over:
                shutil.rmtree(path)

    def rest(self) -> str:
        """Wait until no keeper and no process of ours is alive; return those still alive at the limit."""

        def busy() -> list[str]:
            kept = [path.name for path in self.runs() if holder(path / "keeper.lock")]
            return [f"a keeper of {name}" for name in kept] + self.desk.alive()

        left: list[str] = []

        def quiet() -> bool:
            left[:] = busy()
            return not left

        return "" if poll(quiet, LIMIT) else ", ".join(left)


@dataclass(frozen=True)
class Verb:
    """A command, its preparation, and its exit statuses of success."""

    name: str
    words: str
    before: Callable[[Ground], None] = lambda _: None
    good: tuple[int, ...] = (0,)
    most: int = 1  # errors
    lives: bool = False  # its run has tasks, which an undisturbed `stop` must then end


def _run(ground: Ground, *options: str, script: str = "short.py") -> None:
    """Launch the run of the case without any failure."""
    before = set(ground.runs())
    outcome = ground.call("launch", "--skip-preflight", "--no-validate", *options, "--", script)
    assert outcome.status == 0, outcome
    (made,) = set(ground.runs()) - before
    ground.run = made.name


def _changed(ground: Ground) -> None:
    """Change code and data, since files that a node has are not sent again."""
    ground.desk.script("short.py", f"print('one line', flush=True)  # {time.time_ns()}\n")
    (ground.data / "file").write_bytes(os.urandom(100_000))


def _ended(ground: Ground) -> None:
    if not ground.over:
        _run(ground)
        ground.over = ground.run
    ground.run = ground.over


def _alive(ground: Ground) -> None:
    _run(ground, "--detach", script="long.py")
    assert poll(lambda: len(bearers(ground.run)) == 2, LIMIT)


def _unknown(ground: Ground) -> None:
    ground.cluster.known_hosts.write_bytes(b"")


def _new_environment(ground: Ground) -> None:
    version = time.time_ns()
    wheel(ground.wheels, "small", f"1.{version}", "answer = 42\n")
    lines = f'[env]\npackages = ["small==1.{version}"]\nvia = "controller"\n'
    inventory = ground.inventory.decode().replace('python = "', '# python = "').replace("agent_# ", "agent_")
    (ground.desk.project / "made.toml").write_text(lines + inventory)


def _fetched(ground: Ground) -> None:
    _ended(ground)
    shutil.rmtree(ground.away, ignore_errors=True)


_FAST = "--skip-preflight --no-validate"
VERBS = (
    Verb("launch", f"launch {_FAST} -- short.py", _changed),
    Verb("preflight", "preflight", most=9),
    Verb("stop", "stop --now RUN", _alive, lives=True),
    Verb("tail", "tail --no-follow -n all RUN", _ended),
    Verb("exec", "exec -- echo hello"),
    Verb("pull", "pull --to AWAY RUN", _fetched),
    Verb("push", "push DATA", _changed),
    Verb("clean", "clean", _ended),
    Verb("init", "init --yes --no-preflight --to made.toml --ssh-config CONFIG HOSTS", _unknown),
    Verb("setup", "setup --hosts made.toml", _new_environment),
    Verb("status", "status RUN", _ended),
    Verb("runs", "runs", _ended),
    Verb("report", "report RUN", _ended),
)


Seen = dict[str, dict[str, list[str]]]


def counts(ground: Ground, verb: Verb) -> Seen:
    """Return the subjects of each process's calls by kind, when none fails."""
    verb.before(ground)
    outcome = ground.call(*verb.words.split())
    assert outcome.status in verb.good, outcome
    assert not ground.rest()
    ground.clear()
    here = {role: ground.here.seen(role) for role in HERE}
    return here | {role: ground.there.seen(role) for role in THERE}


_HEAD_OF = re.compile(r"error: |warning: |run \S+ (failed|was stopped)")
_LASTING = {("write", errno.ENOSPC), ("open", errno.EMFILE), ("fork", errno.ENOMEM), ("thread", errno.EAGAIN)}
_NAME = re.compile(r"[0-9a-f]{8,}|\d+-\d+-\w{4}|worker_entry/.*|\d+")


def cases(seen: Seen, most: int) -> Iterator[Failure]:
    """Yield each call of each process with each error, once and lasting; `most` per subject."""
    for role, kinds in seen.items():
        for kind, calls in kinds.items():
            about: dict[str, list[int]] = {}
            for nth, what in enumerate(calls, 1):
                about.setdefault(_NAME.sub("*", what), []).append(nth)
            some = {nth for places in about.values() for nth in (*places[: most - 1], *places[-1:])}
            for nth in sorted(some):
                for error in ERRORS[kind]:
                    yield Failure(kind, error, nth, role)
                    if (kind, error) in _LASTING:
                        yield Failure(kind, error, nth, role, on=True)


def play(ground: Ground, verb: Verb, failure: Failure) -> tuple[Outcome, str]:
    """Call a verb with a failure; return its outcome and the problem, "" for none."""
    verb.before(ground)
    known = set(ground.runs())
    outcome = ground.call(*verb.words.split(), failure=failure)
    return outcome, "; ".join(_wrong(ground, verb, failure, outcome, known))


def _wrong(ground: Ground, verb: Verb, failure: Failure, outcome: Outcome, known: set[Path]) -> Iterator[str]:
    status, err = outcome.status, outcome.err
    if status is None:
        yield f"did not end within {LIMIT:.0f} s"
    elif status not in (0, 1, 2, 3, 5, 130):
        yield f"ended with {status}"
    if "Traceback" in outcome.out + err or "a bug in orchestrate" in outcome.out + err:
        yield "a traceback, or a bug"
    heads = [line for line in err.splitlines() + outcome.out.splitlines() if _HEAD_OF.match(line)]
    errors = sum(line.startswith("error:") for line in heads)
    full = failure.kind == "write" and failure.on
    mute = full or outcome.where.endswith("/desk/err")  # reporting the error is what failed
    most = verb.most + failure.on  # each host may reach a limit in a different place
    if errors > most or (status not in verb.good and not heads and not mute):
        yield f"{errors} errors"
    if verb.lives:
        again = ground.call("stop", "--now", ground.run)
        if again.status != 0:
            yield f"`stop` then ended with {again.status}: {again.err}"
    if left := ground.rest():
        yield f"left {left}"
    made = [path for path in ground.runs() if path not in known]
    if verb.name == "launch" and status == 0:
        logs = [log.read_bytes() for path in made for log in (path / "logs" / "1").glob("*.log")]
        if logs != [b"one line\n"] * 2 and "of its log were lost" not in err:
            yield f"succeeded with the logs {logs}"
    for path in [*made, *(path for path in known if path.name == ground.run)]:
        debug = path / "debug.log"
        if debug.exists() and "Traceback" in (text := debug.read_text(errors="replace")):
            yield f"a traceback in debug.log: {text[-3000:]}"
        for words in (("runs",), ("status", path.name), ("report", path.name)):
            look = ground.call(*words)
            if look.status not in (0, 1, 3, 130) or "Traceback" in look.err:
                yield f"`{' '.join(words)}` then ended with {look.status}: {look.err}"
    keys = ground.cluster.known_hosts.read_bytes()
    if not set(keys.splitlines()) <= set(ground.known.splitlines()) or (keys and not keys.endswith(b"\n")):
        yield f"known_hosts is damaged: {keys!r}"
    ground.clear()
    if (ground.desk.project / "hosts.toml").read_bytes() != ground.inventory:
        yield "hosts.toml was changed"
    odd = [
        str(path) for root in (ground.desk.folder, ground.away) for path in root.rglob(".*.????????????????")
    ]
    if odd:
        yield f"left {odd}"
