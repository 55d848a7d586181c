"""From `--dataset` to a source, and what a validation falls back to."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from worker_entry.data import arrays, prepared, records
from worker_entry.data.source import Source
from worker_entry.failure import ExpectedError
from worker_entry.options import Options, is_path


def source(options: Options) -> Source:
    return _for_validation(options) if options.validate else _asked_for(options)


def _asked_for(options: Options) -> Source:
    match options.dataset:
        case "digits":
            return arrays.digits()
        case "synthetic":
            return arrays.synthetic()
        case path if is_path(path):
            return records.load(Path(path).expanduser())
        case name:
            return prepared.load(name, options.data_dir, download=options.download)


def _for_validation(options: Options) -> Source:
    """The job's data; on a node that has none yet: digits; without scikit-learn: synthetic."""
    try:
        return _asked_for(options)
    except ExpectedError as error:
        why = f"instead of {options.dataset}: {error.what}"
    try:
        found = arrays.digits()
    except ExpectedError as error:
        found, why = arrays.synthetic(), f"{why}; {error.what}"
    return replace(found, note=f"{found.note}, {why}")
