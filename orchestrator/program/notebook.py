"""A notebook as a script: its code cells, without what only IPython understands. Pure."""

import ast
import re
import shlex
from collections.abc import Mapping
from typing import Any

import msgspec

from orchestrator.program.invocation import in_shell

MARK = "# Made of {name} by orchestrate, again at each launch; edit the notebook."
_SHOWN = 'def display(*shown):\n    print(*shown, sep="\\n")'
# As %run does: the script's names become the notebook's, and a plain exit ends only the script.
_RUN = """def _run_script(*words):
    import runpy, sys
    argv, sys.argv = sys.argv, [*words]
    try:
        globals().update(runpy.run_path(words[0], globals(), "__main__"))
    except SystemExit as end:
        if end.code:
            raise
    finally:
        sys.argv = argv"""
_MAGIC = re.compile(r"(\s*)(?:(\w+)\s*=\s*)?([%!?].*|[\w.]+\?{1,2}\s*)", re.DOTALL)
_KEPT = re.compile(r"%%(?:time|timeit|capture|prun|memit)\b")  # what they measure belongs to the program
_INSTALL = re.compile(
    r"!+\s*(?:\S*(?:python|sys\.executable)\S*\s+-m\s+)?(?:(?:uv )?pip3?|conda|mamba|apt|apt-get|sudo)\b"
)
# `{name}` is Python's, `${name}` the shell's; `$name` is Python's if there is one, except in single quotes.
_VALUE = re.compile(r"(?<!\$)(?:\{([A-Za-z_][^{},]*)\}|\$([A-Za-z_]\w*)(?=(?:[^']*'[^']*')*[^']*$))")


def convert(data: bytes, name: str) -> tuple[str, tuple[str, ...]]:
    """Return a notebook's script, and the lines that it leaves out; raise ValueError with the reason."""
    try:
        notebook = msgspec.json.decode(data.removeprefix(b"\xef\xbb\xbf"), type=dict[str, Any])
        cells = msgspec.convert(notebook.get("cells"), list[dict[str, Any]])
        sources = [_source(cell) for cell in cells]
    except (msgspec.ValidationError, msgspec.DecodeError, RecursionError) as error:
        raise ValueError(f"not in the format of Jupyter 4 or later: {error}") from None
    about = notebook.get("metadata")
    kernel = about.get("kernelspec") if isinstance(about, Mapping) else None
    language = kernel.get("language", "python") if isinstance(kernel, Mapping) else "python"
    if language != "python":
        raise ValueError(f"its cells are {language}, not Python")
    left_out: list[str] = []
    parts = [MARK.format(name=name)]
    for number, source in enumerate(sources, 1):
        if source is not None:
            parts.append(f"# --- cell {number} of {name}\n{_cell(source, left_out)}")
    for call, defined in (("display", _SHOWN), ("_run_script", _RUN)):
        if re.search(rf"\b{call}\(", "\n".join(parts)):
            parts.insert(1, defined)
    return "\n\n".join(parts) + "\n", tuple(left_out)


def _source(cell: Mapping[str, Any]) -> str | None:
    """Return the text of a code cell; None for any other."""
    if cell.get("cell_type") != "code":
        return None
    text = msgspec.convert(cell.get("source"), str | list[str])
    return text if isinstance(text, str) else "".join(text)


def _cell(source: str, left_out: list[str]) -> str:
    head, _, body = source.lstrip().partition("\n")
    if head.startswith("%%") and not _KEPT.match(head):
        if (file := re.match(r"%%writefile\s+(?:-a\s+)?(\S+)\s*$", head)) is not None:
            mode = "a" if " -a " in head else "w"
            return f"with open({file[1]!r}, {mode!r}) as _file:\n    _file.write({body!r})"
        if (shell := re.match(r"%%(bash|sh|python3?)\b", head)) is not None:
            return f'__import__("subprocess").run([{shell[1]!r}, "-c", {body!r}], check=True)'
        left_out.append(f"{head} (the whole cell)")
        return "\n".join(f"# {line}" for line in source.split("\n"))
    lines = source.split("\n")
    while (at := _broken(lines)) is not None:
        last = at
        while lines[last].endswith("\\") and last + 1 < len(lines):
            last += 1
        whole = "\n".join(lines[at : last + 1])
        lines[at : last + 1] = [_line(whole, left_out), *[""] * (last - at)]  # line numbers stay the same
    return "\n".join(lines)


def _broken(lines: list[str]) -> int | None:
    """Return the first line that only IPython understands; strings may contain similar lines."""
    try:
        ast.parse("\n".join(lines))
    except SyntaxError as error:
        at = (error.lineno or 1) - 1
        where = [at] if at < len(lines) and _MAGIC.fullmatch(lines[at]) else range(len(lines))
        return next((place for place in where if _MAGIC.fullmatch(lines[place])), None)
    except (ValueError, RecursionError, MemoryError):
        pass
    return None


def _line(line: str, left_out: list[str]) -> str:
    match = _MAGIC.fullmatch(line)
    assert match is not None
    blank, target, magic = match.groups()
    if (code := _as_python(magic)) is not None and (not target or magic.startswith("%time ")):
        return f"{blank}{f'{target} = ' if target else ''}{code}"
    if not magic.startswith("!") or _INSTALL.match(magic):
        left_out.append(magic.strip())
        return f"{blank}{f'{target} = None' if target else 'pass'}  # {' '.join(magic.split())}"
    call = f'__import__("subprocess").run({_filled(magic.lstrip("!"))}, shell=True'
    if target:
        return f"{blank}{target} = {call}, stdout=-1, text=True).stdout.splitlines()"
    # IPython ignores a failure, here it would be that of the training; `!mkdir data` may fail.
    trains = any(command[1].endswith(".py") for command in in_shell(magic))
    return f"{blank}{call}{', check=True' * trains})"


def _as_python(magic: str) -> str | None:
    """Return the statement for a magic whose omission would change what the notebook trains."""
    name, _, rest = magic.partition(" ")
    rest = rest.strip()
    if name == "%time" and rest:
        return rest
    if name in ("%env", "%set_env") and (pair := re.fullmatch(r"(\w+)(?:\s*=\s*|\s+)(.+)", rest)):
        return f"import os; os.environ[{pair[1]!r}] = {_filled(pair[2])}"
    if name == "%cd" and re.match(r"[^-/~$]", rest):  # other folders are those of the notebook's machine
        return f"import os; os.chdir({_filled(rest)})"
    if name == "%run" and re.match(r"(?:-i\s+)?[^-\s]\S*\.py\b", rest):
        return f"_run_script({', '.join(map(_filled, shlex.split(rest.removeprefix('-i'))))})"
    return None


def _filled(text: str) -> str:
    """Return the expression for a magic's text, in which `{name}` and `$name` are Python's."""
    parts, end = [], 0
    for match in _VALUE.finditer(text):
        if match[1] and not _is_expression(match[1]):
            continue  # awk '{print $1}'
        value = match[1] or f"{{**globals(), **locals()}}.get({match[2]!r}, {match[0]!r})"
        parts += [repr(text[end : match.start()]), f"str({value})"]
        end = match.end()
    return " + ".join([*parts, repr(text[end:])])


def _is_expression(text: str) -> bool:
    try:
        ast.parse(text, mode="eval")
    except (SyntaxError, ValueError):
        return False
    return True
