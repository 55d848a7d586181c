"""Checks of what [data] names, before anything is touched."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Collection, Sequence

from orchestrator.errors import UsageError
from orchestrator.model import Data, Inventory
from orchestrator.plainfile import at_home
from orchestrator.planning.plan import is_builtin

_SMALL = ("mnist", "fashion_mnist")  # some ten MB: sending them unasked does no harm
_PLACE = "TFDS_DATA_DIR"


def with_own_set(
    inventory: Inventory, command: Sequence[str], env: Collection[str]
) -> tuple[Inventory, tuple[str, ...]]:
    """The inventory with a [data] for the training program's MNIST, if this machine has it; and a note.

    Nothing changes where [data] is written, or where the user says in another way where the data is.
    """
    elsewhere = _PLACE in {*env, *inventory.job.env, *inventory.job.forward}
    if inventory.data is not None or not is_builtin(command) or elsewhere:
        return inventory, ()
    known = argparse.ArgumentParser(add_help=False)
    known.add_argument("--dataset", default="mnist")
    known.add_argument("--data-dir")
    known.add_argument("--download", action="store_true")
    options, _ = known.parse_known_args(list(command))
    if options.dataset not in _SMALL or options.data_dir or options.download:
        return inventory, ()
    from orchestrator.phases.prepare import is_here

    place = is_here(options.dataset)
    if place is None:
        return inventory, ()
    note = f"{options.dataset} is sent from this machine ({place}) to hosts that lack it"
    return dataclasses.replace(inventory, data=Data(sets=(options.dataset,))), (note,)


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
