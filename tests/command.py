"""`orchestrate` in processes forked from one that has imported it: commands skip Python's startup.

Starting Python with everything that a launch and its keeper import takes half a second of a core, and the
tests run more than a thousand commands. Each command is a separate process with the requested arguments,
environment, folder, and streams, and with its own exit status. Its entries in /proc (`cmdline`, `environ`)
are those of the process that it was forked from. Training processes are forked in the same way, from one
that has imported TensorFlow: tests/tf/zygote.py.

Many tests start the real command: those about terminals, signals during startup, or loaded modules, those
with code that runs before it, and those that use a shell or a container.
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
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
_LARGEST = 1 << 20  # of a request: the environment
_STAYS_OUT = ("orchestrator.node", "orchestrator._shipped", "orchestrator.__main__")


class Forked:
    """A running command, with the part of `subprocess.Popen` that the tests use."""

    def __init__(self, end: int) -> None:
        """Read the pid from `end`, which later delivers the exit status."""
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
        # A process that has ended may already have been reaped, and its pid may be reused soon.
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
            assert piece, "the process that forks commands has ended"
            line += piece
        return line.decode()


class Nursery:
    """A process that has imported the modules its children need, and forks them."""

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
                start_new_session=True,  # without a terminal for prompts
            )
        atexit.register(self.close)

    def start(
        self, words: Sequence[str], cwd: Path, env: Mapping[str, str], streams: Sequence[int]
    ) -> Forked:
        """Fork a process with these arguments, and `streams` as its descriptors 0, 1, and 2."""
        end, theirs = os.pipe()
        try:
            data = json.dumps({"words": list(words), "cwd": str(cwd), "env": dict(env)}).encode()
            with self._lock:
                socket.send_fds(self._channel, [data], [*streams, theirs])
        finally:
            os.close(theirs)
        return Forked(end)

    def ended(
        self,
        words: Sequence[str],
        cwd: Path,
        env: Mapping[str, str],
        limit: float,
        late: Callable[[Forked], Any] = Forked.kill,
    ) -> tuple[int | None, str, str]:
        """Run a process without input; return its status, None if it had to be killed, and its output."""
        with (
            Path(os.devnull).open("rb") as stdin,
            tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as out,
            tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as err,
        ):
            forked = self.start(words, cwd, env, (stdin.fileno(), out.fileno(), err.fileno()))
            status: int | None = None
            try:
                status = forked.wait(limit)
            except subprocess.TimeoutExpired:
                late(forked)
                forked.kill()
                forked.wait()
            for file in (out, err):
                file.seek(0)
            return status, out.read(), err.read()

    def close(self) -> None:
        self._channel.close()
        self._process.wait()


@functools.cache
def _nursery(started_in: tuple[tuple[str, str], ...]) -> Nursery:
    """Return the nursery for these variables of Python's startup; usually there is only one."""
    return Nursery(sys.executable, _PROGRAM, dict(started_in))


def nursery(env: Mapping[str, str]) -> Nursery:
    """Return the process that forks `orchestrate words...` for this environment."""
    # Variables that the interpreter reads at startup, and that cannot be changed later.
    started_in = {
        name: value
        for name, value in env.items()
        if name.startswith(("PYTHON", "LC_", "LANG", "LD_")) and name != "PYTHONPATH"
    }
    return _nursery(tuple(sorted(started_in.items())))


def run(
    words: Sequence[str], cwd: Path, env: Mapping[str, str], limit: float = 120.0
) -> subprocess.CompletedProcess[str]:
    """Run `orchestrate words...` without input to its end, and return the result as `subprocess.run` does."""
    status, out, err = nursery(env).ended(words, cwd, env, limit)
    assert status is not None, f"not within {limit:.0f} s: {words}\n{out}{err}"
    return subprocess.CompletedProcess(list(words), status, out, err)


# --- The forking process ---


def _import_all() -> None:
    """Import everything a command may need, and build the agent's bundle once for all of them."""
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
    """Return in each forked process, with its request and streams; end when the requests do."""
    assert threading.active_count() == 1
    gc.collect()
    gc.freeze()  # otherwise the first collection in each forked process copies all of this memory
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is meant for the commands
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
        with contextlib.suppress(BrokenPipeError):  # the caller is gone
            os.write(end, b"%d\n" % os.waitstatus_to_exitcode(status))
        os.close(end)


def become(request: dict[str, Any], streams: Sequence[int]) -> None:
    """Turn this process into `python -c PROGRAM WORDS` at its first line."""
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
    """Replace `spawn` of a keeper's Python: its imports are already loaded, and there are no threads."""
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
