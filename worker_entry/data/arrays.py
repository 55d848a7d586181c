"""Data that needs no download: handwritten digits that come along, and synthetic images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from worker_entry.data.source import Source

SHAPE = (28, 28, 1)
DIGITS_TEST = 360
_DIGITS = Path(__file__).with_name("digits.csv.gz")  # see digits.txt beside it


def digits() -> Source:
    """Scikit-learn's 1,797 real handwritten digits, 8 x 8, upscaled to the shape of MNIST.

    Without a seed of the user's: the split into 1,437 and 360 is the same in every run and on every task.
    """
    images, labels = load_digits()
    order = np.random.default_rng(0).permutation(len(labels))
    scaled = _upscaled(images.reshape(-1, 8, 8)[order] / 16.0, SHAPE[0])[..., np.newaxis]
    return _source("digits", scaled, labels[order], DIGITS_TEST, "scikit-learn's handwritten digits")


def load_digits() -> tuple[Any, Any]:
    """What sklearn.datasets.load_digits gives: (1797, 64) values of 0 to 16, (1797,) labels.

    From a copy of its file: that import takes a second, and TensorFlow's half a second longer beside it.
    """
    table = np.loadtxt(_DIGITS, delimiter=",")
    return table[:, :-1], table[:, -1].astype(np.int64)


def _upscaled(images: Any, size: int) -> Any:
    """Bilinear, in numpy: operations of TensorFlow's own may not come before the strategy."""
    old = images.shape[1]
    at = np.clip((np.arange(size) + 0.5) * old / size - 0.5, 0, old - 1)
    weights = np.maximum(0, 1 - np.abs(at[:, np.newaxis] - np.arange(old)))
    return weights @ images @ weights.T


def synthetic(shape: tuple[int, int, int] = SHAPE, examples: int = 4096) -> Source:
    """Noise around one random image per class: learnable, the same everywhere, good for speed only."""
    random = np.random.default_rng(0)
    labels = random.integers(0, 10, examples)
    patterns = random.random((10, *shape), dtype=np.float32)
    images = np.clip(patterns[labels] + random.normal(0, 0.3, (examples, *shape)).astype(np.float32), 0, 1)
    return _source("synthetic", images, labels, examples // 8, "random images, for speed only")


def _source(name: str, images: Any, labels: Any, test: int, note: str) -> Source:
    def part(rows: slice) -> Any:
        pair = (images[rows].astype(np.float32), labels[rows].astype(np.int64))
        return lambda: tf.data.Dataset.from_tensor_slices(pair)

    train = len(labels) - test
    return Source(
        name, images.shape[1:], 10, train, test, part(slice(None, train)), part(slice(train, None)), note
    )
