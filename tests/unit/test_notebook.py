"""A notebook becomes a script that Python can run, with a list of what was skipped."""

import json
import sys
from pathlib import Path

import pytest

from orchestrator.errors import UsageError
from orchestrator.program import notebook
from orchestrator.verbs import code
from tests.processes import called


def cells(*sources: str, **more: object) -> bytes:
    made = [{"cell_type": "code", "source": source.splitlines(keepends=True)} for source in sources]
    title = {"cell_type": "markdown", "source": ["# Title\n", "%no code"]}
    return json.dumps({"cells": [title, *made], "nbformat": 4, **more}).encode()


# (cells, output of the script, skipped lines)
GOOD: list[tuple[tuple[str, ...], str, tuple[str, ...]]] = [
    (("x = 1", "print(x)"), "1\n", ()),
    (("%matplotlib inline\nprint(1)",), "1\n", ("%matplotlib inline",)),
    (("!pip install -q \\\n  tensorflow\nprint(2)",), "2\n", ("!pip install -q \\\n  tensorflow",)),
    (("if True:\n    !pip install x\nprint(3)",), "3\n", ("!pip install x",)),
    (("word = 'a b'\n!echo {word} ${HOME:+home}",), "a b home\n", ()),
    (("found = !printf 'a\\nb\\n'\nprint(found)",), "['a', 'b']\n", ()),
    (('text = """\n%d of\n!ls\n"""\nprint(text % 3)',), "\n3 of\n!ls\n\n", ()),
    (('%time x = 1\ntext = """\n%d\n"""\nprint(text % 3, x)',), "\n3\n 1\n", ()),
    (
        ("import os\nrate = 2", "%env A={rate}\n%set_env B x y\nprint(os.environ['A'], os.environ['B'])"),
        "2 x y\n",
        (),
    ),
    (("%env\n%env A",), "", ("%env", "%env A")),
    (("!mkdir data\n%cd data\n!basename $PWD",), "data\n", ()),
    (("%cd /content\n%cd\n%cd ~",), "", ("%cd /content", "%cd", "%cd ~")),
    (
        ("%%writefile a.py\nimport sys\nx = sys.argv\n", "%run a.py --lr 2\nprint(x)"),
        "['a.py', '--lr', '2']\n",
        (),
    ),
    (("%%writefile a.py\nprint(x)\nraise SystemExit\n", "x = 8\n%run -i a.py\nprint(9)"), "8\n9\n", ()),
    (("%run other.ipynb",), "", ("%run other.ipynb",)),
    (("!false\n!python3 missing.py 2>/dev/null || true\nprint(1)",), "1\n", ()),
    (("!{sys.executable} -m pip install x",), "", ("!{sys.executable} -m pip install x",)),
    (("%%time\nprint(4)",), "4\n", ("%%time",)),
    (("%%writefile lib.py\nx = 5\n", "import lib\nprint(lib.x)"), "5\n", ()),
    (("%%bash\necho 6",), "6\n", ()),
    (("%%html\n<b>",), "", ("%%html (the whole cell)",)),
    (("print?\nimport os\n?os",), "", ("print?", "?os")),
    (("display(7)",), "7\n", ()),
    (("x = !pip list\nprint(x)",), "None\n", ("!pip list",)),
    (("x = %time 3 + 4\nprint(x)",), "7\n", ()),
    (("%%python3\nprint(8)",), "8\n", ()),
    (("b = 9\n!echo a c | awk '{print $2}'; b=1; echo $b $c_; c_=2; echo $c_",), "c\n9\n2\n", ()),
    (("b = 9\n!b=1; eval 'echo $b'\ndef f(b):\n    !echo $b\nf(3)",), "1\n3\n", ()),
]


@pytest.mark.parametrize(("sources", "printed", "left_out"), GOOD, ids=[one[0][0] for one in GOOD])
def test_a_notebook_runs_as_a_script(
    tmp_path: Path, sources: tuple[str, ...], printed: str, left_out: tuple[str, ...]
) -> None:
    text, skipped = notebook.convert(cells(*sources), "a.ipynb")
    assert skipped == left_out
    (tmp_path / "a.ipynb.py").write_text(text)
    done = called([sys.executable, "a.ipynb.py"], cwd=tmp_path)
    assert (done.stdout, done.stderr) == (printed, "")


@pytest.mark.parametrize("cell", ["%%bash\nexit 3", "!python3 b.py", "%run b.py"])
def test_a_failed_part_fails_the_notebook(tmp_path: Path, cell: str) -> None:
    text, _ = notebook.convert(cells("%%writefile b.py\nraise SystemExit(3)\n", cell), "a.ipynb")
    assert called([sys.executable, "-c", text], cwd=tmp_path).returncode


def test_a_traceback_names_the_cell() -> None:
    text, _ = notebook.convert(cells("!pip install \\\n  x\ny = 1", "1 / 0"), "a.ipynb")
    lines = text.split("\n")
    assert lines[lines.index("1 / 0") - 1] == "# --- cell 3 of a.ipynb"
    assert lines.index("y = 1") - lines.index("# --- cell 2 of a.ipynb") == 3


BAD = [
    (b"{", "truncated"),
    (b"[]", "object"),
    (b"{}", "array"),
    (b'{"cells": [1]}', "object"),
    (b'{"cells": [{"cell_type": "code", "source": 3}]}', "int"),
    (b"\xff\xfe", "malformed"),
    (cells("x", metadata={"kernelspec": {"language": "R"}}), "its cells are R"),
]


@pytest.mark.parametrize(("data", "why"), BAD)
def test_a_file_that_is_not_a_notebook_is_refused(tmp_path: Path, data: bytes, why: str) -> None:
    (tmp_path / "a.ipynb").write_bytes(data)
    with pytest.raises(UsageError) as caught:
        code.of_notebook(("a.ipynb",), tmp_path)
    assert why in (caught.value.why or "")
    assert [path.name for path in tmp_path.iterdir()] == ["a.ipynb"]


def test_the_script_replaces_the_notebook(tmp_path: Path) -> None:
    (tmp_path / "my nb.ipynb").write_bytes(cells("%pip x\nx = 1"))
    for _ in range(2):  # the second time the file is already ours
        words, notes = code.of_notebook(("python", "-u", "my nb.ipynb", "--lr", "1"), tmp_path)
        assert words == ("python", "-u", "my nb.ipynb.py", "--lr", "1")
        assert notes == (
            "my nb.ipynb is launched as my nb.ipynb.py, without 1 line that only IPython can run: %pip x",
        )
    (tmp_path / "my nb.ipynb.py").write_text("mine\n")
    with pytest.raises(UsageError, match="already exists"):
        code.of_notebook(("my nb.ipynb",), tmp_path)
    for other in ((), ("train.py",), ("missing.ipynb",), ("bash", "-c", "a.ipynb")):
        assert code.of_notebook(other, tmp_path) == (other, ())
