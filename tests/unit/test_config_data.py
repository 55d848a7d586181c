"""The [data] table: what it may name, and each mistake in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.config.load import load, parse
from orchestrator.errors import UsageError
from orchestrator.model import Data
from orchestrator.planning.environ import of_data

HOST = '[[host]]\nssh = "a"\n'


def test_original_files_make_their_set_a_wanted_one() -> None:
    made = parse(HOST + '[data]\nsets = ["mnist:3.0.1"]\nmnist = "a"\nfashion_mnist = "b"\n')
    assert made.data == Data(sets=("mnist:3.0.1", "fashion_mnist"), mnist="a", fashion_mnist="b")


def test_paths_are_those_beside_the_file(tmp_path: Path) -> None:
    text = HOST + '[data]\npaths = ["x/y/", "~/z", "/q"]\nkeras = ["m.npz"]\nmnist = "o"\ntfds_dir = "t"\n'
    (tmp_path / "hosts.toml").write_text(text)
    data = load(tmp_path / "hosts.toml").data
    assert data is not None
    assert data.paths == (str(tmp_path / "x/y"), "~/z", "/q")
    assert (data.keras, data.mnist, data.tfds_dir) == (
        (str(tmp_path / "m.npz"),),
        str(tmp_path / "o"),
        str(tmp_path / "t"),
    )


@pytest.mark.parametrize(
    ("lines", "what"),
    [
        ("", "names nothing"),
        ('sets = ["../mnist"]', "is a path; list it under `paths`"),
        ('sets = ["Mnist"]', "is not a data set's name"),
        ('sets = ["mnist", "mnist"]', "names mnist twice"),
        ('paths = ["a/x", "b/x"]', "names two that are called x"),
        ('paths = [".."]', "has no name of its own"),
        ('path = ["x"]', "is not a key; did you mean paths?"),
    ],
)
def test_a_mistake_is_one_line(lines: str, what: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(f"{HOST}[data]\n{lines}\n")
    assert what in caught.value.why
    assert len(caught.value.why.splitlines()) == 1


def test_tasks_are_told_of_what_is_there() -> None:
    assert of_data("/d", Data(paths=("x",))) == {"ORCHESTRATE_DATA": "/d/files"}
    assert of_data("/d", Data(sets=("mnist",), keras=("m.npz",))) == {
        "ORCHESTRATE_DATA": "/d/files",
        "TFDS_DATA_DIR": "/d/tfds",
        "KERAS_HOME": "/d/keras",
    }
