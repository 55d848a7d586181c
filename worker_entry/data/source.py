"""What every kind of data is to the rest of the program."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Source:
    """Images of one shape in 0..1 (float32) with integer labels, as tf.data sets of single examples."""

    name: str
    shape: tuple[int, int, int]
    classes: int
    train_examples: int
    test_examples: int
    train: Callable[[], Any]
    test: Callable[[], Any]
    note: str = ""
    files: int = 1  # how many the training data are read from
