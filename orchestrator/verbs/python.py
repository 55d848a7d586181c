"""A keeper's Python, started while its run is planned: its imports take as long as planning."""

import contextlib
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

_PROGRAM = (
    "import sys; sys.argv[1] in sys.path or sys.path.insert(0, sys.argv[1]);"
    " from orchestrator.verbs.keeping import main; main()"
)
_NULL = os.devnull, os.O_RDWR, 0
waiting: list[tuple[int, socket.socket]] = []


def start() -> tuple[int, socket.socket]:
    """Return a process that waits for its errand at a socket, and ends with us."""
    ours, theirs = socket.socketpair()
    with theirs:
        return spawn(theirs.fileno()), ours


def spawn(stdin: int) -> int:
    """Start the process by exec, because this one may have threads; it does not use our terminal.

    Tests fork instead (tests/command.py).
    """
    argv = [sys.executable, "-P", "-c", _PROGRAM, str(Path(__file__).parents[2]), "orchestrate keeper"]
    actions = [(os.POSIX_SPAWN_DUP2, stdin, 0), *((os.POSIX_SPAWN_OPEN, fd, *_NULL) for fd in (1, 2))]
    return os.posix_spawn(sys.executable, argv, os.environ, file_actions=actions, setsid=True)


def hand_over(errand: bytes, descriptors: Sequence[int], *, wait: bool) -> None:
    """Pass an errand to the waiting process: through a socket, because it contains secrets.

    `wait` until that process closes its end.
    """
    pid, ours = waiting.pop() if waiting else start()
    with ours, contextlib.suppress(BrokenPipeError, ConnectionResetError):  # its failure is noticed
        socket.send_fds(ours, [b"\0"], descriptors)
        ours.sendall(errand)
        ours.shutdown(socket.SHUT_WR)
        if wait:
            ours.recv(1)
    with contextlib.suppress(ChildProcessError):  # if SIGCHLD is ignored
        os.waitpid(pid, 0)
