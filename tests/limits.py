"""A bound on files that comes and goes, for a disk without room."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterator


@contextlib.contextmanager
def limited_files(most: int) -> Iterator[None]:
    """No file of this process may grow beyond so many bytes: OSError, since Python ignores SIGXFSZ."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
