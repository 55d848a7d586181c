"""Running other programs of this machine."""

from __future__ import annotations

import os
import selectors
import subprocess
import time

from . import lenient

SECONDS = 10.0
_KEPT = 1 << 20  # bytes of each stream, the last ones: the answer comes behind what profiles print
_FLOOD = 64 << 20  # bytes that no answer has
_PAUSE = 0.05  # seconds between two looks whether it has ended while others hold its pipes


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


class Said:
    """Output of a program behind a user's setup; `why` is empty where it ended by itself."""

    def __init__(self, out: bytes, err: bytes, status: int, why: str) -> None:
        self.out = out
        self.err = err
        self.status = status
        self.why = why

    @property
    def killed(self) -> str:
        """`killed by SIGKILL`, where it was ended by a signal that is not ours; else ""."""
        return f"killed by {lenient.signal_name(-self.status)}" if self.status < 0 and not self.why else ""


def listen(argv: list[bytes], env: dict[bytes, bytes], seconds: float, cwd: str | None = None) -> Said:
    """Run it until it ends; raise OSError when it cannot be started.

    What a profile or a setup leaves in the background may hold its pipes for ever, and what prints without
    end would fill the memory.
    """
    process = subprocess.Popen(
        argv, env=env, cwd=cwd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stderr is not None
    out, err, heard = bytearray(), bytearray(), 0
    ends, why = time.monotonic() + seconds, ""
    with selectors.DefaultSelector() as pipes, process.stdout, process.stderr:
        pipes.register(process.stdout, selectors.EVENT_READ, out)
        pipes.register(process.stderr, selectors.EVENT_READ, err)
        while not why:
            ended = process.poll() is not None  # all that it said is in the pipes by now
            ready = pipes.select(0 if ended else _PAUSE) if pipes.get_map() else []
            for key, _ in ready:
                data = os.read(key.fd, 1 << 16)
                if not data:
                    pipes.unregister(key.fileobj)
                heard += len(data)
                key.data.extend(data)
                del key.data[:-_KEPT]
            if ended and not ready:
                break
            if not ended and not pipes.get_map():
                try:
                    process.wait(_PAUSE)
                except subprocess.TimeoutExpired:
                    pass
            if heard > _FLOOD:
                why = f"it printed more than {_FLOOD >> 20} MB"
            elif time.monotonic() > ends:
                why = f"no answer within {seconds:g} s"
        if why:
            process.kill()
        return Said(bytes(out), bytes(err), process.wait(), why)


AWAKE = 40.0  # seconds; nvidia-smi wakes each GPU where the driver lets them sleep (no persistence mode)


def ask_nvidia(query: str, seconds: float = SECONDS) -> list[list[str]] | None:
    """A row of fields for each line of the answer, as many as were asked for; None without nvidia-smi.

    `query` is one of its options: `--query-gpu=index,name`.
    """
    text = run_program(["nvidia-smi", query, "--format=csv,noheader,nounits"], seconds)
    most = query.count(",")  # behind that a comma belongs to the last field
    rows = [[field.strip() for field in line.split(",", most)] for line in (text or "").splitlines()]
    return None if text is None else [row for row in rows if len(row) == most + 1]
