"""Run programs on this machine with a deadline, limited output, and a guaranteed end.

Each program leads a process group that ends with the call, and with our process.
"""

import atexit
import contextlib
import os
import resource
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence

from orchestrator.node.base.program import Said, finish, memory

# Open files that many hosts need: one each, and three per task of a run. macOS allows 256 by default.
_FILES = 10_240
_PATIENCE = 1.0  # seconds for programs to end without a reader, and again after TERM
alive: set[subprocess.Popen[bytes]] = set()  # group leaders that end with our process


def allow_files() -> None:
    """Raise this process's limit of open files as far as possible, without failing."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
    if soft != resource.RLIM_INFINITY and limit > soft:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


def run(
    argv: Sequence[str], seconds: float, *, most: int = 1 << 20, env: Mapping[str, str] | None = None
) -> Said:
    """Run a program without input; return the last `most` bytes of each stream. Raise OSError."""
    with memory() as out, memory() as err:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=env, start_new_session=True
        )
        alive.add(process)
        try:
            return finish(process, seconds, out, err, most)
        finally:
            kill(process)
            alive.discard(process)


def kill(process: subprocess.Popen[bytes], number: int = signal.SIGKILL) -> None:
    """Send a signal to the remaining processes of a program's group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


@atexit.register
def end_all() -> None:
    """End all running programs: wait, then TERM, then KILL."""
    for number in (0, signal.SIGTERM, signal.SIGKILL):  # 0: wait only
        running = [process for process in list(alive) if process.poll() is None]
        for process in running:
            kill(process, number)
        deadline = time.monotonic() + _PATIENCE
        for process in running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
