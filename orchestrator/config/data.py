"""The [data] table: what tasks read, brought to every host before they start."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.config.mistakes import Report
from orchestrator.config.places import DATA
from orchestrator.config.tables import DATA_KEYS, read_table
from orchestrator.model import Data

ORIGINALS = ("mnist", "fashion_mnist")  # the sets that are made from their original idx files


def read_data(document: Mapping[str, Any], table: Mapping[str, Any], report: Report) -> Data | None:
    """What [data] names; None where the file has no such table."""
    if "data" not in document:
        return None
    read = read_table(table, "data", DATA, report)
    good = dict(read.good)
    named = good.get("sets", ())
    # A set whose original files are named is wanted, and need not be listed a second time.
    also = tuple(name for name in ORIGINALS if name in good and not any(_is(name, one) for one in named))
    good["sets"] = (*named, *also)
    named_well = set(table) <= set(DATA_KEYS) and not read.wrong
    if named_well and not (good["sets"] or good.get("paths") or good.get("keras")):
        report.add(DATA, "", 'names nothing; write sets = ["mnist"] or paths = ["data"]')
    if "files_per_worker" in good and not good["sets"]:
        report.add(DATA, "files_per_worker", "is about the files of prepared sets; name one under `sets`")
    return Data(**good)


def _is(name: str, given: str) -> bool:
    return given.partition(":")[0] == name
