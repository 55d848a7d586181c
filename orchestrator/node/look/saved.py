"""The newest checkpoint below a folder, by the names that TensorFlow and Keras give to them."""

from __future__ import annotations

import os

from ..base.annotations import Any

_ENDINGS = (".index", ".keras", ".h5", ".hdf5", ".ckpt")  # `.index` ends a checkpoint of TensorFlow
_MOST = 20_000  # entries that are looked at
_DEEPEST = 6


def newest(folder: str, since_ns: int) -> dict[str, Any] | None:
    """The one that was written last, and not before `since_ns`: its path below `folder`, and when.

    None where there is none among the first 20,000 entries; links are not followed.
    """
    best: dict[str, Any] | None = None
    waiting = [("", 0)]
    looked = 0
    while waiting and looked < _MOST:
        below, depth = waiting.pop()
        try:
            with os.scandir(os.path.join(folder, below)) as entries:
                for entry in entries:
                    looked += 1
                    name = f"{below}{entry.name}"
                    if entry.is_dir(follow_symlinks=False):
                        if depth < _DEEPEST:
                            waiting.append((f"{name}/", depth + 1))
                    elif entry.name.endswith(_ENDINGS) and entry.is_file(follow_symlinks=False):
                        when = entry.stat(follow_symlinks=False).st_mtime_ns
                        if when >= since_ns and (best is None or when > best["time_ns"]):
                            best = {"path": os.fsencode(name).decode("utf-8", "replace"), "time_ns": when}
                    if looked >= _MOST:
                        break
        except OSError:
            continue  # removed meanwhile, or not ours to see
    return best
