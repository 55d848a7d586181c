"""Programs of this machine: with a deadline, a bounded output, and a certain end.

A program is the leader of a process group, which ends with the call, and with our process.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

_FLOOD = 16 << 20  # bytes that no program prints whose output is read here
_LINGER = 0.1  # seconds for the output of a program that has ended, and whose children may keep the pipe
_PATIENCE = 1.0  # seconds for programs to end once nobody listens, and as many after TERM
_alive: set[subprocess.Popen[bytes]] = set()


class Completed(NamedTuple):
    status: int | None  # None: ended by us, after the deadline or for a flood of output
    out: bytes
    err: bytes


@contextlib.contextmanager
def registered(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Count a group leader among the programs that end with us."""
    _alive.add(process)
    try:
        yield
    finally:
        _alive.discard(process)


def run(
    argv: Sequence[str], seconds: float, *, most: int = 1 << 20, env: Mapping[str, str] | None = None
) -> Completed:
    """Run a program without input; return the last `most` bytes of each stream. Raise OSError."""
    null, pipe = subprocess.DEVNULL, subprocess.PIPE
    with (
        subprocess.Popen(
            argv, stdin=null, stdout=pipe, stderr=pipe, env=env, start_new_session=True
        ) as process,
        registered(process),
    ):
        try:
            return _listen(process, time.monotonic() + seconds, most)
        finally:
            kill(process)


def _listen(process: subprocess.Popen[bytes], deadline: float, most: int) -> Completed:
    assert process.stdout is not None
    assert process.stderr is not None
    texts = {process.stdout.fileno(): bytearray(), process.stderr.fileno(): bytearray()}
    total = 0
    with selectors.DefaultSelector() as selector:
        for fd in texts:
            selector.register(fd, selectors.EVENT_READ)
        while selector.get_map() and total < _FLOOD and (left := deadline - time.monotonic()) > 0:
            ready = selector.select(left if process.poll() is None else min(left, _LINGER))
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
    """Send a signal to what is left of a program's group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


@atexit.register
def end_all() -> None:
    """End the programs that still run: TERM to those that do not end by themselves, then KILL."""
    for number in (0, signal.SIGTERM, signal.SIGKILL):  # 0: it only has to end
        left = [process for process in list(_alive) if process.poll() is None]
        for process in left:
            kill(process, number)
        deadline = time.monotonic() + _PATIENCE
        for process in left:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
