"""The Python interpreters that train in tests."""

import importlib.util
import os
import sys
from pathlib import Path


def training_python() -> str:
    """Return an interpreter with TensorFlow; fail without one, since a skip would hide missing coverage."""
    given = os.environ.get("ORCHESTRATE_TEST_PYTHON")
    if given:
        return given
    if importlib.util.find_spec("tensorflow"):
        return sys.executable
    raise AssertionError(
        "no TensorFlow to test with: run scripts/test, or name one in ORCHESTRATE_TEST_PYTHON"
    )


def r_python() -> str:
    """Return the interpreter for R's reticulate; "" if scripts/test found no R."""
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
    """Return a program that trains briefly and ends with the same weights everywhere."""
    seeded = "\ndef main() -> None:\n    tf.keras.utils.set_random_seed(7)\n"
    program = program.replace("epochs=3, steps_per_epoch=20", "epochs=1, steps_per_epoch=5")
    return program.replace("\ndef main() -> None:\n", seeded)
