"""Sources of examples: each module makes a `Source`; `pipeline` turns it into batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from worker_entry.options import Options
from worker_entry.report import Reporter


@dataclass(frozen=True)
class Source:
    """Images of one shape in 0..1 (float32) with integer labels, as tf.data sets of single examples."""

    name: str
    shape: tuple[int, int, int]
    classes: int
    train_examples: int
    train: Callable[[], Any]
    test: Callable[[], Any]
    note: str = ""
    files: int = 1  # number of files with the training data


def find(options: Options, reporter: Reporter) -> Source:
    """Return the data that the options name; missing data are fetched first, which `reporter` reports."""
    from worker_entry.data import arrays, prepared

    name = options.dataset
    if name == "digits":
        return arrays.digits()
    return prepared.load(name, options.data_dir, download=options.download, tell=partial(reporter.data, name))
