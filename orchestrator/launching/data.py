"""Checks of what [data] names, before anything is touched."""

from __future__ import annotations

from orchestrator.errors import UsageError
from orchestrator.model import Data, Inventory
from orchestrator.plainfile import at_home


def check_data(inventory: Inventory) -> None:
    """Raise UsageError for what [data] names and this machine does not have."""
    data = inventory.data or Data()
    named = [*data.paths, *data.keras, *filter(None, (data.mnist, data.fashion_mnist, data.tfds_dir))]
    for one in named:
        if trouble := absent(one):
            raise UsageError(
                f"[data] names {one}, which {trouble}",
                why=f"{inventory.source} means files of this machine; relative paths are meant beside it",
                hint=f"correct it in {inventory.source}",
            )


def absent(path: str) -> str:
    """Say what is the matter with a path of this machine: "is not there"; "" when it is."""
    try:
        at_home(path).stat()
    except (FileNotFoundError, NotADirectoryError):
        return "is not there"
    except OSError as error:
        return f"cannot be reached: {error.strerror or error}"
    return ""
