"""How large a folder is, and when it was last changed."""

from __future__ import annotations

import os
import time
from typing import NamedTuple

from ..base.lenient import changed


class Folder(NamedTuple):
    path: str
    used: float  # when it was last, seconds since 1970
    size: int  # bytes on the disk


def measure(path: str) -> Folder:
    """Measure a folder's newest change and size; a file with several names counts in parts."""
    newest, total = changed(path, time.time()), 0
    waiting = [path]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    try:
                        found = entry.stat(follow_symlinks=False)
                    except OSError:
                        continue
                    is_folder = entry.is_dir(follow_symlinks=False)
                    newest = max(newest, found.st_mtime)
                    total += found.st_blocks * 512 // max(1, 1 if is_folder else found.st_nlink)
                    if is_folder:
                        waiting.append(entry.path)
        except OSError:
            continue  # gone, no folder, or not ours to read
    return Folder(path, newest, total)
