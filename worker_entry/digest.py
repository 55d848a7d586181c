"""A short proof that tasks hold the same weights."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import numpy as np


def of_weights(weights: Iterable[Any]) -> str:
    """Equal exactly when every array is equal in order, type, shape and bits."""
    digest = hashlib.sha256()
    for weight in weights:
        array = np.ascontiguousarray(weight)
        digest.update(f"{array.dtype}{array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()[:16]
