"""A notebook becomes a script where nbconvert is; the converter here is a stand-in of three lines."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

from orchestrator.errors import UsageError
from orchestrator.launching import notebook

# Not nbconvert, which would bring Jupyter to the tests: it writes the cells one after the other, as nbconvert
# does where there is no IPython beside it.
STAND_IN = """#!/bin/sh
for last; do :; done
exec python3 -c 'import json, sys
cells = json.load(open(sys.argv[1]))["cells"]
print("\\n\\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"))' "$last"
"""


def cells(*sources: str) -> str:
    made = [{"cell_type": "code", "source": [source]} for source in sources]
    return json.dumps({"cells": [{"cell_type": "markdown", "source": ["# Title"]}, *made]})


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    tool = tmp_path / "bin" / "jupyter-nbconvert"
    tool.parent.mkdir()
    tool.write_text(STAND_IN)
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}:/usr/bin:/bin")
    return tmp_path


def test_the_script_of_a_notebook_is_launched(here: Path) -> None:
    (here / "train.ipynb").write_text(
        cells("%matplotlib inline\n!pip install x\nimport os", "if os:\n    %time x")
    )
    words = ("python", "-u", "train.ipynb", "--epochs", "3")
    for _ in range(2):  # again: the script is ours
        command, (note,) = notebook.as_script(words, here)
        assert command == ("python", "-u", "train.ipynb.py", "--epochs", "3")
        assert "3 lines" in note
    text = (here / "train.ipynb.py").read_text()
    ast.parse(text)
    assert "pass  # !pip install x" in text


def test_strings_are_left_alone(here: Path) -> None:
    (here / "a.ipynb").write_text(cells('x = """\n%d of 3\n"""'))
    notebook.as_script(("a.ipynb",), here)
    assert "\n%d of 3\n" in (here / "a.ipynb.py").read_text()


def test_a_script_that_is_not_ours_is_not_overwritten(here: Path) -> None:
    (here / "train.ipynb").write_text(cells("x = 1"))
    (here / "train.ipynb.py").write_text("mine\n")
    with pytest.raises(UsageError, match="there already"):
        notebook.as_script(("train.ipynb",), here)
    assert (here / "train.ipynb.py").read_text() == "mine\n"


def test_a_notebook_that_is_none(here: Path) -> None:
    (here / "train.ipynb").write_text("{")
    with pytest.raises(UsageError, match="cannot be converted"):
        notebook.as_script(("train.ipynb",), here)
    assert not (here / "train.ipynb.py").exists()


@pytest.mark.parametrize("words", [(), ("train.py",), ("bash", "-c", "x.ipynb"), ("missing.ipynb",)])
def test_other_commands_stay(here: Path, words: tuple[str, ...]) -> None:
    assert notebook.as_script(words, here)[0] == words


def test_without_nbconvert_it_stays(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "train.ipynb").write_text(cells("x = 1"))
    monkeypatch.setenv("PATH", "/nowhere")
    assert notebook.as_script(("train.ipynb",), here)[0] == ("train.ipynb",)
