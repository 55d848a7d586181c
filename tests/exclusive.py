"""Tests that look at the whole machine, one at a time, whichever worker or clone runs them."""

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def exclusive(name: str) -> Iterator[None]:
    """Hold the machine's only lock of that name."""
    path = Path(tempfile.gettempdir()) / f"orchestrate-tests-{os.getuid()}-{name}.lock"
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
