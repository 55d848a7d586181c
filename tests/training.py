"""The Python that trains in tests."""

from __future__ import annotations

import importlib.util
import os
import sys


def training_python() -> str:
    """An interpreter with TensorFlow; without one the test fails: a skip would hide a hole."""
    given = os.environ.get("ORCHESTRATE_TEST_PYTHON")
    if given:
        return given
    if importlib.util.find_spec("tensorflow"):
        return sys.executable
    raise AssertionError(
        "no TensorFlow to test with: run scripts/test, or name one in ORCHESTRATE_TEST_PYTHON"
    )


def r_python() -> str:
    """The interpreter for R's reticulate; empty where scripts/test found no R to use it."""
    return os.environ.get("ORCHESTRATE_TEST_R_PYTHON", "")
