"""Run programs on this machine with a deadline, limited output, and a guaranteed end.

Each program leads a process group that ends with the call, and with our process.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import resource
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

# Open files that many hosts need: one each, and three per task of a run. macOS allows 256 by default.
_FILES = 10_240
_FLOOD = 16 << 20  # bytes; no program whose output is read here prints more
_LINGER = 0.1  # seconds to read from a program that has ended; its children may keep the pipe open
_PATIENCE = 1.0  # seconds for programs to end without a reader, and again after TERM
alive: set[subprocess.Popen[bytes]] = set()  # group leaders that end with our process


class Completed(NamedTuple):
    status: int | None  # None: we ended it, after the deadline or because of too much output
    out: bytes
    err: bytes


def allow_files() -> None:
    """Raise this process's limit of open files as far as possible, without failing."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
    if soft != resource.RLIM_INFINITY and limit > soft:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


def run(
    argv: Sequence[str], seconds: float, *, most: int = 1 << 20, env: Mapping[str, str] | None = None
) -> Completed:
    """Run a program without input; return the last `most` bytes of each stream. Raise OSError."""
    null, pipe = subprocess.DEVNULL, subprocess.PIPE
    with subprocess.Popen(
        argv, stdin=null, stdout=pipe, stderr=pipe, env=env, start_new_session=True
    ) as process:
        alive.add(process)
        try:
            return _listen(process, time.monotonic() + seconds, most)
        finally:
            kill(process)
            alive.discard(process)


def _listen(process: subprocess.Popen[bytes], deadline: float, most: int) -> Completed:
    assert process.stdout is not None
    assert process.stderr is not None
    texts = {process.stdout.fileno(): bytearray(), process.stderr.fileno(): bytearray()}
    total = 0
    with selectors.DefaultSelector() as selector:
        for fd in texts:
            selector.register(fd, selectors.EVENT_READ)
        while selector.get_map() and total < _FLOOD and (remaining := deadline - time.monotonic()) > 0:
            ready = selector.select(remaining if process.poll() is None else min(remaining, _LINGER))
            if not ready and process.poll() is not None:
                break
            for key, _ in ready:
                data = os.read(key.fd, 65536)
                total += len(data)
                texts[key.fd] += data
                del texts[key.fd][:-most]
                if not data:
                    selector.unregister(key.fd)
    status: int | None = None
    if total < _FLOOD:
        with contextlib.suppress(subprocess.TimeoutExpired):
            status = process.wait(max(0.0, deadline - time.monotonic()))
    out, err = map(bytes, texts.values())
    return Completed(status, out, err)


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
