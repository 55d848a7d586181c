"""`orchestrate` in processes forked from one that has imported it: no start of Python for each command.

A start of Python with all that a launch and its keeper import takes half a second of a core, and the tests
give more than a thousand commands. What is forked is a process of its own with the words, the environment,
the folder and the streams that it was asked to have, and with the status that it ends with. Its entries in
/proc (`cmdline`, `environ`) are those of the process that it was forked from. Training processes are forked
likewise, from one that has imported TensorFlow: tests/tf/zygote.py.

Many tests start the true command: those of terminals, of signals at the start, of what is loaded, with code
that runs before it, through a shell, in containers.
"""

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import pkgutil
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
_LARGEST = 1 << 20  # of a request: the environment
_STAYS_OUT = ("orchestrator.node", "orchestrator._shipped", "orchestrator.__main__")


class Forked:
    """A running command, with what the tests use of `subprocess.Popen`."""

    def __init__(self, end: int) -> None:
        """`end` tells its pid, and its status in time."""
        self._end = end
        self.returncode: int | None = None
        self.pid = int(self._line())

    def poll(self) -> int | None:
        if self.returncode is None and select.select([self._end], [], [], 0)[0]:
            self._take()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._end], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("orchestrate", timeout or 0.0)
            self._take()
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        # One that has ended may have been reaped before we heard of it: its number is nobody's for long.
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _take(self) -> None:
        self.returncode = int(self._line())
        os.close(self._end)

    def _line(self) -> str:
        line = b""
        while not line.endswith(b"\n"):
            piece = os.read(self._end, 1)
            assert piece, "what forks commands has ended"
            line += piece
        return line.decode()


class Nursery:
    """A process that has imported what others need, and forks them."""

    def __init__(self, python: str, program: str, started_in: Mapping[str, str]) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._channel = ours
        self._lock = threading.Lock()
        with theirs:
            channel = theirs.fileno()
            self._process = subprocess.Popen(
                [python, "-c", program, str(channel)],
                stdin=subprocess.DEVNULL,
                env={**started_in, "PYTHONPATH": str(ROOT)},
                cwd=ROOT,
                pass_fds=(channel,),
                start_new_session=True,  # without a terminal that a command could ask
            )
        atexit.register(self.close)

    def start(
        self, words: Sequence[str], cwd: Path, env: Mapping[str, str], streams: Sequence[int]
    ) -> Forked:
        """Start what `words` are for the program, with what are to be its 0, 1 and 2."""
        end, theirs = os.pipe()
        try:
            data = json.dumps({"words": list(words), "cwd": str(cwd), "env": dict(env)}).encode()
            with self._lock:
                socket.send_fds(self._channel, [data], [*streams, theirs])
        finally:
            os.close(theirs)
        return Forked(end)

    def close(self) -> None:
        self._channel.close()
        self._process.wait()


@functools.cache
def _nursery(started_in: tuple[tuple[str, str], ...]) -> Nursery:
    """One for each way of starting Python that a test asks for; there is one, as a rule."""
    return Nursery(sys.executable, _PROGRAM, dict(started_in))


def start(words: Sequence[str], cwd: Path, env: Mapping[str, str], streams: tuple[int, int, int]) -> Forked:
    """Start `orchestrate words...` in a folder, with an environment and what are to be 0, 1 and 2."""
    # What an interpreter looks at when it starts, and we cannot change later.
    started_in = {
        name: value
        for name, value in env.items()
        if name.startswith(("PYTHON", "LC_", "LANG", "LD_")) and name != "PYTHONPATH"
    }
    return _nursery(tuple(sorted(started_in.items()))).start(words, cwd, env, streams)


def run(
    words: Sequence[str], cwd: Path, env: Mapping[str, str], limit: float = 120.0
) -> subprocess.CompletedProcess[str]:
    """`orchestrate words...` with nothing to read, to its end: what `subprocess.run` would give."""
    with (
        Path(os.devnull).open("rb") as stdin,
        tempfile.TemporaryFile("w+", encoding="utf-8") as out,
        tempfile.TemporaryFile("w+", encoding="utf-8") as err,
    ):
        forked = start(words, cwd, env, (stdin.fileno(), out.fileno(), err.fileno()))
        try:
            status = forked.wait(limit)
        except subprocess.TimeoutExpired:
            forked.kill()
            forked.wait()
            raise
        for file in (out, err):
            file.seek(0)
        return subprocess.CompletedProcess(list(words), status, out.read(), err.read())


# --- the process that forks ---


def _import_all() -> None:
    """Whatever a command may import, and the agent's bundle, which each would make again."""
    import orchestrator
    from orchestrator.node.serve import bootstrap

    for module in pkgutil.walk_packages(orchestrator.__path__, "orchestrator."):
        if not module.name.startswith(_STAYS_OUT):
            importlib.import_module(module.name)
    bootstrap.payload({})


def serve() -> None:
    """Fork a command for each request, and return in it."""
    _import_all()
    become(*fork_for_each_request())
    python = vars(importlib.import_module("orchestrator.verbs.python"))
    assert "spawn" in python
    python["spawn"] = _fork_keeper


def fork_for_each_request() -> tuple[dict[str, Any], list[int]]:
    """Return in each forked process, with its request and streams; end when nobody asks any more."""
    assert threading.active_count() == 1
    gc.collect()
    gc.freeze()  # else the first collection of each forked process copies all of it
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is for the commands
    woken, wake = os.pipe()
    os.set_blocking(woken, False)
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake)
    ends: dict[int, int] = {}
    with socket.socket(fileno=int(sys.argv[1])) as channel:
        while True:
            ready, _, _ = select.select([channel.fileno(), woken], [], [])
            if woken in ready:
                os.read(woken, 512)
                _reap(ends)
            if channel.fileno() not in ready:
                continue
            data, fds, _, _ = socket.recv_fds(channel, _LARGEST, 4)
            if not data:
                for pid in ends:
                    os.kill(pid, signal.SIGKILL)
                os._exit(0)
            *streams, end = fds
            pid = os.fork()
            if pid == 0:
                for fd in (woken, wake, end, *ends.values()):
                    os.close(fd)
                break
            os.write(end, b"%d\n" % pid)
            ends[pid] = end
            for fd in streams:
                os.close(fd)
    return json.loads(data), streams


def _reap(ends: dict[int, int]) -> None:
    while ends:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        end = ends.pop(pid)
        with contextlib.suppress(BrokenPipeError):  # nobody wants to know
            os.write(end, b"%d\n" % os.waitstatus_to_exitcode(status))
        os.close(end)


def become(request: dict[str, Any], streams: Sequence[int]) -> None:
    """Be what `python -c PROGRAM WORDS` would be at its first line."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, fd in enumerate(streams):
        os.dup2(fd, number)
    for fd in streams:
        os.close(fd)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    time.tzset()
    sys.argv = ["-c", *request["words"]]
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        was = getattr(sys, name)
        made = open(  # noqa: SIM115 - as long as the process
            number,
            "w" if number else "r",
            buffering=1 if number == 2 or (number and os.isatty(number)) else -1,
            encoding=was.encoding,
            errors=was.errors,
            closefd=False,
        )
        setattr(sys, name, made)
        setattr(sys, f"__{name}__", made)


def _fork_keeper(stdin: int) -> int:
    """Stand in for `spawn` of a keeper's Python: what it would import is here, and there are no threads."""
    from orchestrator.node.base.descriptors import close_others
    from orchestrator.verbs import keeping

    sys.stdout.flush()
    sys.stderr.flush()
    if pid := os.fork():
        return pid
    try:
        os.setsid()
        os.dup2(stdin, 0)
        close_others({0, 1, 2})
        sys.stdin = open(0, closefd=False)  # noqa: SIM115 - as long as the process
        keeping.main()
    finally:
        os._exit(1)


_PROGRAM = "from tests.command import serve; serve(); from orchestrator.cli.main import run; run()"
