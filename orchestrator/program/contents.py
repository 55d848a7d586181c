"""Files that what starts them cannot read: notebooks, mistakes of syntax, texts from Windows. Pure."""

from __future__ import annotations

import re
import shlex
from pathlib import PurePosixPath

from orchestrator.errors import UsageError
from orchestrator.program import invocation, texts
from orchestrator.program.project import Code, normal, script_of

# Syntax that a newer Python than this one may know.
_NEWER = re.compile(
    r"""\s*(?:type\s|match\s|case\s|except\b|(?:async\s+)?def\s+\w+\[|class\s+\w+\[)|[ftFT][rR]?["']"""
)


def notebook(command: tuple[str, ...], code: Code) -> UsageError | None:
    name = invocation.program(command) or command[0]
    if not name.endswith(".ipynb") or not code.exists(name):
        return None
    tool = "" if code.installed("jupyter-nbconvert") else "`pip install nbconvert`, then "
    return UsageError(
        f"{name} is a notebook, and Python runs scripts",
        why="its cells have to become a script first",
        hint=f"{tool}`jupyter nbconvert --to script --output {shlex.quote(PurePosixPath(name).name)}"
        f" {shlex.quote(name)}`, then `orchestrate launch -- {shlex.quote(name + '.py')}`",
    )


def syntax(command: tuple[str, ...], code: Code) -> UsageError | None:
    """A mistake in every Python; what a newer one than ours may know is left to the hosts."""
    name = script_of(command)
    if name is None or not name.endswith(".py"):
        return None
    text, raw = code.read(name), code.raw(name)
    if text is None or raw is None:
        return None
    if encoding := texts.not_python(raw):
        return UsageError(
            f"{name} is {encoding}, which Python does not read",
            why="it expects UTF-8, or the encoding that the first line declares",
            hint=f"save it as UTF-8: `iconv -f {encoding} -t UTF-8 {shlex.quote(name)} > utf8.py`",
        )
    try:
        texts.parsed(text, name)
    except SyntaxError as error:
        line = (error.text or "").rstrip()
        if _NEWER.search(line) or "f-string" in error.msg:  # `line` need not be the one that has it
            return None
        return UsageError(
            f"{name}, line {error.lineno or 0}: {error.msg}",
            why=line.strip() or "Python cannot compile it",
            hint=f"correct that line; `python -m py_compile {shlex.quote(name)}` checks it",
        )
    except (ValueError, RecursionError, MemoryError):
        return None
    return None


def line_ends(command: tuple[str, ...], code: Code) -> UsageError | None:
    """A script from Windows: the carriage return becomes part of an interpreter's name, of a shell's `fi`."""
    name = invocation.program(command)
    words = invocation.unwrapped(command)
    direct = bool(words) and (name is None or name == words[0])
    name = words[0] if name is None and words else name
    if name is None or name.startswith(("/", "~")) or name.endswith((".py", ".R", ".r", ".ipynb")):
        return None
    if PurePosixPath(words[0]).name not in invocation.SHELLS and not direct:
        return None
    raw = code.raw(name) if normal(name) in code.sent else None
    why = texts.not_for_unix(raw, direct=direct) if raw is not None else ""
    if not why:
        return None
    return UsageError(
        f"{name} is a text as Windows writes it, and cannot run as it is",
        why=why,
        hint=f"`sed -i -e '1s/^\\xEF\\xBB\\xBF//' -e 's/\\r$//' {shlex.quote(name)}` corrects it",
    )
