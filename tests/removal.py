"""Removing a folder while somebody writes into it."""

import shutil
from pathlib import Path


def remove(folder: Path) -> None:
    """Remove a folder, as `until rm -rf FOLDER; do :; done` does.

    A writer may make a file after the folder was read and before it is removed.
    """
    while folder.exists():
        shutil.rmtree(folder, ignore_errors=True)
