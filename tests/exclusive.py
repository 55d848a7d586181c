"""Locks for tests that need the whole machine, shared by all workers and clones."""

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
