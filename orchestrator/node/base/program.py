"""Running other programs of this machine."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from typing import IO, NamedTuple

from . import lenient

SECONDS = 10.0
_KEPT = 1 << 20  # bytes of each stream, the last ones: the answer comes behind what profiles print
_FLOOD = 64 << 20  # bytes that no answer has; they are in memory
_PAUSE = 0.05  # seconds between two looks at how much it has printed


def output(argv: list[str], seconds: float) -> str:
    """Return a program's output; raise OSError if it is missing, SubprocessError if it fails or is late."""
    done = subprocess.run(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        timeout=seconds,
        check=True,
    )
    return done.stdout.decode("utf-8", "replace")


def run_program(argv: list[str], seconds: float = SECONDS) -> str | None:
    """Like `output`, but return None when the program is missing, fails or takes more than `seconds`."""
    try:
        return output(argv, seconds)
    except (OSError, subprocess.SubprocessError):
        return None


class Said(NamedTuple):
    """Output of a program behind a user's setup; `why` is empty where it ended by itself."""

    out: bytes
    err: bytes
    status: int
    why: str

    @property
    def killed(self) -> str:
        """`killed by SIGKILL`, where it was ended by a signal that is not ours; else ""."""
        return f"killed by {lenient.signal_name(-self.status)}" if self.status < 0 and not self.why else ""


def listen(argv: list[bytes], env: dict[bytes, bytes], seconds: float, cwd: str | None = None) -> Said:
    """Run it until it ends; raise OSError when it cannot be started.

    It prints into files: what a profile or a setup leaves in the background would hold a pipe for ever.
    """
    place = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryFile(dir=place) as out, tempfile.TemporaryFile(dir=place) as err:
        process = subprocess.Popen(argv, env=env, cwd=cwd, stdin=subprocess.DEVNULL, stdout=out, stderr=err)
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
        status = process.wait()
        return Said(_last_of(out), _last_of(err), status, why)


def _last_of(file: IO[bytes]) -> bytes:
    file.seek(max(0, file.seek(0, os.SEEK_END) - _KEPT))
    return file.read(_KEPT)


AWAKE = 40.0  # seconds; nvidia-smi wakes each GPU where the driver lets them sleep (no persistence mode)


def ask_nvidia(query: str, seconds: float = SECONDS) -> list[list[str]] | None:
    """A row of fields for each line of the answer, as many as were asked for; None without nvidia-smi.

    `query` is one of its options: `--query-gpu=index,name`.
    """
    text = run_program(["nvidia-smi", query, "--format=csv,noheader,nounits"], seconds)
    most = query.count(",")  # behind that a comma belongs to the last field
    rows = [[field.strip() for field in line.split(",", most)] for line in (text or "").splitlines()]
    return None if text is None else [row for row in rows if len(row) == most + 1]
