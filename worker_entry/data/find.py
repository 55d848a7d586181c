"""From `--dataset` to a source."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from worker_entry.data import arrays, prepared, records
from worker_entry.data.source import Source
from worker_entry.options import Options, is_path
from worker_entry.report import Reporter


def source(options: Options, reporter: Reporter) -> Source:
    """The data that the options name; what is missing is fetched first, and `reporter` tells."""
    match options.dataset:
        case "digits":
            return arrays.digits()
        case "synthetic":
            return arrays.synthetic()
        case path if is_path(path):
            return records.load(Path(path).expanduser())
        case name:
            tell = partial(reporter.data, name)
            return prepared.load(name, options.data_dir, download=options.download, tell=tell)
