"""The Python that trains in tests."""

import importlib.util
import os
import sys
from pathlib import Path


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


def torch_python() -> str:
    """Return the interpreter with PyTorch that `scripts/setup frameworks` makes; "" for none."""
    return _made("ORCHESTRATE_TEST_TORCH_PYTHON")


def jax_python() -> str:
    """Return the interpreter with JAX and Keras 3 that `scripts/setup frameworks` makes; "" for none."""
    return _made("ORCHESTRATE_TEST_JAX_PYTHON")


def _made(variable: str) -> str:
    given = os.environ.get(variable, "")
    return given if given and Path(given).exists() else ""


def short(program: str) -> str:
    """A program that trains for a moment, and ends with the same weights wherever it does."""
    seeded = "\ndef main() -> None:\n    tf.keras.utils.set_random_seed(7)\n"
    program = program.replace("epochs=3, steps_per_epoch=20", "epochs=1, steps_per_epoch=5")
    return program.replace("\ndef main() -> None:\n", seeded)
