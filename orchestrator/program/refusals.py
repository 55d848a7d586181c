"""Mistakes for which a command is refused before anything is sent, one function for each. Pure.

A check that cannot be certain stays silent: hosts may have what this machine lacks.
"""

import posixpath
import re
import shlex
from collections.abc import Callable, Mapping
from pathlib import PurePosixPath

from orchestrator.errors import UsageError
from orchestrator.program import invocation
from orchestrator.program.invocation import script_of
from orchestrator.program.sources import decoded, parsed
from orchestrator.value import Value

# Syntax that a newer Python than this one may accept: the hosts decide.
_NEWER = re.compile(
    r"""\s*(?:type\s|match\s|case\s|except\b|(?:async\s+)?def\s+\w+\[|class\s+\w+\[)|[ftFT][rR]?["']"""
)


class Code(Value):
    """The folder that goes to the hosts, as the checks see it; paths are relative to it, with /."""

    root: str
    sent: frozenset[str]
    read: Callable[[str], bytes | None]  # a file; None when there is none
    exists: Callable[[str], bool]  # including what is not sent; also for absolute paths and `~/`
    everywhere: Callable[[str], bool]  # whether the hosts have the same file under an absolute path
    real: Callable[[str], str] = str  # an absolute path with its links resolved
    executable: Callable[[str], bool] = bool  # whether a file's mode says so
    cwd: str = ""  # where in the code the tasks run
    links: Mapping[str, str] = {}  # absolute paths that links in it lead to, each with its link
    prepared: bool = False  # whether a `setup` runs before, which may create what is missing

    def text(self, path: str) -> str | None:
        """Return a text of the project; None if there is none."""
        data = self.read(path)
        return None if data is None else decoded(data)


def check(command: tuple[str, ...], code: Code) -> None:
    """Raise UsageError for the first mistake; `command` is the final one, without the host's Python."""
    for refuse in (_shell_line, _missing, _script, _syntax) if command else ():
        refuse(command, code)


def _shell_line(command: tuple[str, ...], code: Code) -> None:
    first = command[0]
    if PurePosixPath(first).name in invocation.SHELLS:
        return
    word = next((word for word in command if word in invocation.OPERATORS), "")
    if not word and re.search(r"[\s|&;<>]|^[A-Za-z_]\w*=", first) and not code.exists(first):
        word = first
    if not word:
        return
    what = f"no shell runs the command, but {word} needs one"
    why = "its words are passed to the program as they are"
    parts = invocation.as_words(command)
    if parts and not any(part.startswith(("TF_CONFIG=", "ORCHESTRATE_")) for part in parts):
        raise UsageError(what, why=why, hint=f"`orchestrate launch {invocation.with_env(parts)}`")
    as_they_are = {*invocation.OPERATORS, first}
    line = " ".join(part if part in as_they_are else shlex.quote(part) for part in command)
    line = f"python {line}" if line.split(" ", maxsplit=1)[0].endswith(".py") else line
    line = line.removesuffix("&").strip()  # --detach leaves a run alone
    # With pipefail: otherwise the status of `train.py | tee log` is tee's.
    hint = f"`orchestrate launch -- bash -o pipefail -c {shlex.quote(line)}`"
    raise UsageError(what, why=why, hint=hint)


def _missing(command: tuple[str, ...], code: Code) -> None:
    """Refuse a script, or a program with a path, that is missing, would not be sent, or is elsewhere."""
    script = script_of(command)
    name = command[0] if script is None and "/" in command[0] and not code.prepared else script
    if name is None:
        return
    here, (parent, last) = posixpath.normpath(name), posixpath.split(name)
    why = f"the code in {code.root} is sent to the hosts"
    if name.startswith(("/", "~")):
        if script is None or code.everywhere(name) or not code.exists(name):
            return  # a file of the hosts' own
        here = posixpath.relpath(posixpath.join(code.real(parent or "/"), last), code.root)
        if here in code.sent:
            what = f"{name} is a path of this machine"
            why = "the tasks run in a copy of the code on their hosts"
            raise UsageError(what, why=why, hint=_line(command, name, here))
    through = posixpath.join(code.real(posixpath.join(code.root, parent)), last)  # linked folders
    linked = posixpath.relpath(through, code.root)
    if {here, linked} & code.sent or any(path.startswith(f"{here}/") for path in code.sent):
        return
    if not code.exists(name):
        what, hint = (f"{name} does not exist here", "check its name and your current folder")
    elif linked.startswith("../"):
        what = f"{name} is outside the folder that is sent"
        hint = f"`cd {shlex.quote(parent)}`, then {_line(command, name, last)}"
    else:
        what = f"{name} exists, but would not be sent"
        why = "git, .orchestrateignore or `ignore` under [job] excludes it"
        hint = f"`git check-ignore -v {shlex.quote(name)}` names git's rule; `git add -f` overrides it"
    raise UsageError(what, why=why, hint=hint)


def _script(command: tuple[str, ...], code: Code) -> None:
    """Refuse a script that would be searched for on PATH, has Windows line ends, or is not executable."""
    first = invocation.unwrapped(command)[0]
    name = invocation.program(command) or first
    if posixpath.normpath(name) not in code.sent:
        return
    data = code.read(name) or b""
    head = data.partition(b"\n")[0]
    shebang = re.match(rb"#!\s*(?:\S*/env\s+(?:-S\s+)?)?(\S+)", head)
    direct = name == first and not name.endswith((".py", ".R", ".r", ".ipynb"))
    runner = PurePosixPath(shebang[1].decode("utf-8", "replace")).name if shebang else "bash"
    is_script = name.endswith((".sh", ".bash")) or (shebang and not code.prepared)
    if direct and "/" not in name and is_script:
        place = command.index(name)
        corrected = shlex.join([*command[:place], runner, *command[place:]])
        what = f"{name} is in the code, but a command without a slash is searched only on PATH"
        raise UsageError(what, hint=f"`orchestrate launch -- {corrected}`")
    by_shell = PurePosixPath(first).name in invocation.SHELLS or (direct and runner in invocation.SHELLS)
    if b"\r" in (data if by_shell else head if direct and shebang else b""):
        what = f"{name} has Windows line ends"
        why = "a shell, and the kernel in a first line such as #!/bin/bash, treat them as part of a word"
        raise UsageError(what, why=why, hint=f"`sed -i 's/\\r$//' {shlex.quote(name)}`, then launch again")
    if direct and "/" in name and not code.prepared and not code.executable(name):
        hint = f"`chmod +x {shlex.quote(name)}`, then launch again"
        raise UsageError(f"{name} is not executable", hint=hint)


def _line(command: tuple[str, ...], name: str, right: str) -> str:
    """Return the command line with another path for its file; a program in the folder needs a slash."""
    if name == command[0] and "/" not in right and not right.endswith((".py", ".R", ".r")):
        right = f"./{right}"
    corrected = shlex.join(right if word == name else word for word in command)
    return f"`orchestrate launch -- {corrected}`"


def _syntax(command: tuple[str, ...], code: Code) -> None:
    name = script_of(command)
    data = code.read(name) if name is not None and name.endswith(".py") else None
    if name is None or data is None:
        return
    try:
        parsed(data, name)
    except SyntaxError as error:
        line = (error.text or "").strip()
        if _NEWER.search(line) or "f-string" in error.msg:  # `line` need not be the one that has it
            return
        raise UsageError(
            f"{name}, line {error.lineno or 0}: {error.msg}",
            why=line or "Python cannot compile it",
            hint=f"correct that line; `python -m py_compile {shlex.quote(name)}` checks it",
        ) from None
    except (ValueError, RecursionError, MemoryError):
        return
