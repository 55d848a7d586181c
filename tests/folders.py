"""Folders for tests: on a separate disk, with old timestamps, or removed while being written."""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.processes import called


@contextmanager
def mounted(folder: Path, options: str) -> Iterator[Path]:
    """Mount a separate file system on that folder, or skip the test if that is impossible."""
    folder.mkdir(mode=0o700, exist_ok=True)
    made = called(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder])
    if made.returncode and not (os.environ.get("CI") and os.geteuid() == 0):
        pytest.skip(f"no disk can be mounted here: {made.stderr.strip()}")
    made.check_returncode()
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def age(seconds: float, *folders: Path) -> None:
    """Set the timestamps of paths and their contents back by that many seconds."""
    then = time.time() - seconds
    for folder in folders:
        for place in (*folder.rglob("*"), folder):
            os.utime(place, (then, then), follow_symlinks=False)


def remove(folder: Path) -> None:
    """Remove a folder, as `until rm -rf FOLDER; do :; done` does.

    A writer may create a file after the folder was listed and before it is removed.
    """
    while folder.exists():
        shutil.rmtree(folder, ignore_errors=True)
