"""A running ssh-agent, for the tests of keys that it holds."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def running(folder: Path) -> Iterator[Path]:
    """Its socket."""
    sock = folder / "agent"
    process = subprocess.Popen(["ssh-agent", "-D", "-a", str(sock)], stdout=subprocess.PIPE)
    assert process.stdout
    process.stdout.readline()
    try:
        yield sock
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


def add(agent: Path, key: Path) -> None:
    environment = {**os.environ, "SSH_AUTH_SOCK": str(agent)}
    subprocess.run(["ssh-add", "-q", str(key)], check=True, env=environment, capture_output=True)
