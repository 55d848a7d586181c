"""What a program imports first, and when nothing may be imported ahead of its start."""

# ruff: noqa: E501

import pytest

from orchestrator.model import EarlyImports, Preset
from orchestrator.program import ahead, sources

KERAS = ("tensorflow", "tensorflow/keras/layers")


def found(*command: str, **files: str) -> EarlyImports:
    texts = {name + ".py": text for name, text in files.items()}
    return ahead.find(command, sources.read(command, texts.get))


@pytest.mark.parametrize(
    ("text", "imports"),
    [
        ("import tensorflow as tf", ("tensorflow",)),
        ("import tensorflow as tf\ntf.keras.Model()", KERAS),
        ("'''doc'''\nfrom __future__ import annotations\nimport os, json\nimport numpy as np\nimport torch", ("numpy", "torch")),
        ("import argparse\nparser = argparse.ArgumentParser()\nN = 3\ndef f():\n    print(1)\nimport jax", ("jax",)),
        ("import jax\nimport wandb\nimport keras", ("jax",)),
        ("import jax\nprint(1)\nimport keras", ("jax",)),
        ("try:\n    import keras\nexcept ImportError:\n    keras = None", ("keras",)),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import wandb\nimport keras", ("keras",)),
        ("if __name__ == '__main__':\n    import keras\n    run()", ("keras",)),
    ],
)  # fmt: skip
def test_imports_run_in_program_order(text: str, imports: tuple[str, ...]) -> None:
    assert found("train.py", train=text) == EarlyImports(imports)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("print('hello')\nimport tensorflow", "line 1 of train.py runs before its imports"),
        (
            "import sys\nsys.path.insert(0, 'lib')\nimport tensorflow",
            "line 2 of train.py runs before its imports",
        ),
        (
            "import os\nos.environ['TF_CPP_MIN_LOG_LEVEL'] = str(LEVEL)\nimport tensorflow",
            "line 2 of train.py",
        ),
        ("import os\nos.environ.pop('XLA_FLAGS', None)\nimport tensorflow", "line 2 of train.py"),
        ("import wandb\nimport tensorflow", "line 1 of train.py runs before its imports"),
        ("import this\nimport tensorflow", "line 1 of train.py runs before its imports"),
        ("@register\ndef f():\n    pass\nimport tensorflow", "line 2 of train.py"),
        ("if USE:\n    import torch\nimport tensorflow", "line 1 of train.py"),
        ("class A:\n    print(1)\nimport tensorflow", "line 2 of train.py"),
        ("with open('x') as file:\n    import tensorflow", "line 1 of train.py"),
        ("def main():\n    import tensorflow\nmain()", "line 3 of train.py"),
        ("import csv", "train.py imports no framework at its top"),
        ("import tensorflow as tf (", "train.py imports no framework at its top"),
    ],
)
def test_nothing_is_imported_ahead_of_code_that_could_notice(text: str, why: str) -> None:
    made = found("train.py", train=text)
    assert not made.imports
    assert made.why.startswith(why)


def test_variables_set_to_a_constant_are_set_before_the_import() -> None:
    text = "import os\nos.environ['KERAS_BACKEND'] = 'jax'\nos.environ.setdefault('XLA_FLAGS', '')\n"
    text += "os.environ['RUN_NAME'] = os.getenv('USER', '')\nimport keras\nos.environ['TF_X'] = '1'"
    preset = (Preset("KERAS_BACKEND", "jax"), Preset("XLA_FLAGS", "", default=True))
    assert found("train.py", train=text) == EarlyImports(("keras",), preset)


def test_local_modules_run_where_the_program_imports_them() -> None:
    model = "import keras\nclass Net(keras.Model):\n    pass"
    assert found("train.py", train="import model\nimport jax", model=model).imports == ("keras", "jax")
    loud = found("train.py", train="import model\nimport jax", model="print(1)")
    assert loud.why == "line 1 of model.py runs before its imports"
    package = {"pkg/__init__": "import jax", "pkg/main": "from . import near\nimport keras", "pkg/near": ""}
    assert found("python", "-m", "pkg.main", **package).imports == ("jax", "keras")
    assert found("sub/train.py", **{"sub/train": "import near", "sub/near": "import torch"}).imports == (
        "torch",
    )


@pytest.mark.parametrize(
    "command",
    [
        ("bash", "run.sh"),
        ("torchrun", "train.py"),
        ("nice", "python", "train.py"),
        ("python", "-m", "cProfile", "train.py"),
        ("train.R",),
        (),
    ],
)
def test_only_python_is_started_ahead(command: tuple[str, ...]) -> None:
    made = found(*command, train="import tensorflow", run="import tensorflow")
    assert made == EarlyImports(why="the command is not a Python program")
