"""Running other programs on this machine."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from typing import IO, NamedTuple

from . import lenient

SECONDS = 10.0
_FLOOD = 64 << 20  # bytes; no answer has as many, and they are kept in memory
_DYING = 2.0  # seconds for a killed program to be gone
_PAUSE = 0.05  # seconds between two checks of how much it has printed


class Said(NamedTuple):
    """Output of a program, the last of it: a profile prints first; `why` is empty if it ended by itself."""

    out: bytes
    err: bytes
    status: int
    why: str

    @property
    def text(self) -> str:
        return self.out.decode("utf-8", "replace")

    @property
    def killed(self) -> str:
        """Return `killed by SIGKILL` if it was ended by a signal that is not ours; otherwise ""."""
        return f"killed by {lenient.signal_name(-self.status)}" if self.status < 0 and not self.why else ""


def listen(argv: list[bytes], env: dict[bytes, bytes], seconds: float, cwd: str | None = None) -> Said:
    """Run it until it ends; raise OSError if it cannot be started."""
    with memory() as out, memory() as err:
        process = subprocess.Popen(argv, env=env, cwd=cwd, stdin=subprocess.DEVNULL, stdout=out, stderr=err)
        return finish(process, seconds, out, err)


def finish(
    process: subprocess.Popen[bytes], seconds: float, out: IO[bytes], err: IO[bytes], most: int = 1 << 20
) -> Said:
    """Wait for the end of a program that prints to two files; return the last `most` bytes of each.

    With pipes, a background process of a profile or a setup would keep them open forever.
    """
    ends, why = time.monotonic() + seconds, ""
    while process.poll() is None and not why:
        try:
            process.wait(_PAUSE)
        except subprocess.TimeoutExpired:
            if max(os.fstat(file.fileno()).st_size for file in (out, err)) > _FLOOD:
                why = f"it printed more than {_FLOOD >> 20} MB"
            elif time.monotonic() > ends:
                why = f"no answer within {seconds:g} s"
    if why:
        process.kill()
    try:
        status = process.wait(_DYING if why else None)
    except subprocess.TimeoutExpired:  # it waits inside the kernel, for example for a lost GPU
        status = -signal.SIGKILL
    for file in (out, err):
        file.seek(max(0, file.seek(0, os.SEEK_END) - most))
    return Said(out.read(most), err.read(most), status, why)


def memory() -> IO[bytes]:
    """Return an empty file that needs no disk: each of them, and /dev/shm, may be full."""
    try:
        return open(os.memfd_create("output"), "w+b")
    except (AttributeError, OSError):  # a Python made for an old C library, an old kernel
        return tempfile.TemporaryFile()


def hear(argv: list[str], seconds: float = SECONDS) -> Said | None:
    """Run a program in our own environment; return None if it is missing."""
    try:
        return listen([os.fsencode(word) for word in argv], dict(os.environb), seconds)
    except OSError:
        return None


def run_program(argv: list[str], seconds: float = SECONDS) -> str | None:
    """Return a program's output; None if it is missing, fails or takes more than `seconds`."""
    output = hear(argv, seconds)
    return None if output is None or output.why or output.status else output.text


_LONG = 200  # characters of a field
AWAKE = 40.0  # seconds; nvidia-smi wakes each GPU if the driver lets them sleep (no persistence mode)


def ask_nvidia(query: str, seconds: float = SECONDS) -> tuple[list[list[str]], str]:
    """Return a row of fields per line of nvidia-smi's reply, as many as requested, and the problem with it.

    `query` is one of its options: `--query-gpu=index,name`. A missing nvidia-smi is not a problem.
    """
    output = hear(["nvidia-smi", query, "--format=csv,noheader,nounits"], seconds)
    if output is None:
        return [], ""
    most, lines = query.count(","), output.text.splitlines()  # after that a comma belongs to the last field
    rows = [[field.strip()[:_LONG] for field in line.split(",", most)] for line in lines]
    words = [
        line.strip() for line in (*output.err.decode("utf-8", "replace").splitlines(), *lines) if line.strip()
    ]
    failed = output.status and (words or [f"it ended with {output.status}"])[-1][:_LONG]
    return [row for row in rows if len(row) == most + 1], output.why or output.killed or failed or ""
