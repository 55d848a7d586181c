"""A notebook as the program of a run: nbconvert, where this machine has it, makes it a script."""

from __future__ import annotations

import ast
import re
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from orchestrator.errors import UsageError
from orchestrator.program import invocation
from orchestrator.text import count

_MARK = "# Made of {name} by orchestrate, again at each launch; edit the notebook.\n"
_TIMEOUT = 120.0  # seconds; Jupyter is slow to start
# What only IPython understands (`%matplotlib inline`, `!pip install ...`): as nbconvert writes it, and as it
# stays where nbconvert has no IPython beside it.
_MAGIC = re.compile(r"^([ \t]*)(get_ipython\(\)\..*)$", re.MULTILINE)
_RAW = re.compile(r"^([ \t]*)([%!].*)$", re.MULTILINE)


def as_script(command: Sequence[str], here: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the command with `train.ipynb.py`, made of `train.ipynb`, in its place, and a note of that.

    No import finds a module of such a name: `keras.py` would hide the package. Without nbconvert it stays as
    it is: the checks of a command say what to do. Raise UsageError for a notebook that cannot be converted,
    and for a script of that name that is not ours.
    """
    words = tuple(command)
    name = invocation.program(words)
    if name is None or not name.endswith(".ipynb"):
        return words, ()
    notebook = here / name
    tool = shutil.which("jupyter-nbconvert")
    if tool is None or not notebook.is_file():
        return words, ()
    script = notebook.with_name(notebook.name + ".py")
    mark = _MARK.format(name=notebook.name)
    if script.exists() and not script.read_text(encoding="utf-8", errors="replace").startswith(mark):
        line = shlex.join(["orchestrate", "launch", "--", name + ".py"])
        raise UsageError(
            f"{name} would become {script.name}, which is there already",
            why="it was not made of the notebook by orchestrate",
            hint=f"`{line}` launches that; or rename one",
        )
    text, left_out = _without_magics(_convert(tool, notebook))
    script.write_text(mark + text, encoding="utf-8")
    told = f"; {count(left_out, 'line')} for IPython alone became comments" if left_out else ""
    note = f"{name} is launched as {script.name}, which nbconvert has made of it{told}"
    at = words.index(name)
    return (*words[:at], name + ".py", *words[at + 1 :]), (note,)


def _convert(tool: str, notebook: Path) -> str:
    argv = [tool, "--to", "script", "--stdout", "--log-level", "ERROR", str(notebook)]
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=_TIMEOUT, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _failed(notebook, str(error)) from None
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip().split("\n")
        raise _failed(notebook, said[-1])
    return done.stdout.decode(errors="replace")


def _without_magics(text: str) -> tuple[str, int]:
    text, many = _MAGIC.subn(r"\1pass  # \2", text)
    try:
        ast.parse(text)
    except SyntaxError:  # else a line with % or ! is a part of a string
        text, raw = _RAW.subn(r"\1pass  # \2", text)
        many += raw
    except (ValueError, RecursionError, MemoryError):
        pass
    return text, many


def _failed(notebook: Path, why: str) -> UsageError:
    return UsageError(
        f"{notebook.name} cannot be converted to a script",
        why=why,
        hint=f"`jupyter nbconvert --to script {shlex.quote(notebook.name)}` shows it",
    )
