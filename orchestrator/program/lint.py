"""What is wrong with a command before anything is sent: one function for each mistake. Pure.

To add a check, write a function and name it in CHECKS. A check that cannot be sure says nothing: the hosts
may have what this machine has not.
"""

from __future__ import annotations

import ast
import difflib
import re
import shlex
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TypeAlias

from orchestrator.errors import UsageError
from orchestrator.program import invocation, texts

_OPERATORS = frozenset(["|", "||", "&", "&&", ";", ">", ">>", "<", "<<", "2>", "2>>", "&>", "2>&1", "|&"])
# They change the shell that reads them, and are no programs.
_OF_A_SHELL = frozenset(["source", ".", "export", "module", "ulimit", "eval", "alias", "set", "unset"])
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
# Syntax that a newer Python than this one may know.
_NEWER = re.compile(
    r"""\s*(?:type\s|match\s|case\s|except\b|(?:async\s+)?def\s+\w+\[|class\s+\w+\[)|[ftFT][rR]?["']"""
)


@dataclass(frozen=True)
class Code:
    """The folder that goes to the hosts, as far as checks ask; paths are relative to it, with /."""

    root: str
    sent: frozenset[str]
    read: Callable[[str], str | None]  # the text of a file, None when there is none
    raw: Callable[[str], bytes | None]  # the same as its bytes
    exists: Callable[[str], bool]  # also of what is not sent; absolute paths and `~/` too
    folder: Callable[[str], bool]  # whether it is one
    executable: Callable[[str], bool]
    installed: Callable[[str], bool]  # whether this machine has a program or a Python package of that name
    everywhere: Callable[[str], bool]  # whether the hosts see the same file under an absolute path
    pythonpath: bool = False  # whether tasks look for modules elsewhere, too


Check: TypeAlias = Callable[[tuple[str, ...], Code], UsageError | None]


def check(command: tuple[str, ...], code: Code) -> None:
    """Raise UsageError for the first mistake; `command` is what would run, without the host's Python."""
    if not command:
        return
    for one in CHECKS:
        error = one(command, code)
        if error is not None:
            raise error


def operators(command: tuple[str, ...], code: Code) -> UsageError | None:
    del code
    found = next((word for word in command if word in _OPERATORS), None)
    if found is None or PurePosixPath(command[0]).name in invocation.SHELLS:
        return None
    line = " ".join(word if word in _OPERATORS else shlex.quote(word) for word in command)
    return UsageError(
        f"{found} is a word of a shell, and no shell reads the command",
        why="the program would get it as an argument",
        hint=f"`orchestrate launch -- {_in_bash(line)}`",
    )


def shell_line(command: tuple[str, ...], code: Code) -> UsageError | None:
    first = command[0]
    if not re.search(r"[\s|&;<>]", first) or code.exists(first):
        return None
    if len(command) == 1 and not re.search(r"[|&;<>$`*]", first):
        try:
            plain = shlex.join(shlex.split(first))
        except ValueError:
            plain = ""
        if plain:
            return UsageError(
                f"{first!r} is one word, and no program has that name",
                why="the quotes make one word of the whole line",
                hint=f"`orchestrate launch -- {plain}`",
            )
    return UsageError(
        f"{first!r} is a line for a shell, and no shell reads the command",
        why="a command is a program and its arguments, word by word",
        hint=f"`orchestrate launch -- {_in_bash(' '.join(command))}`",
    )


def assignment(command: tuple[str, ...], code: Code) -> UsageError | None:
    """`NAME=VALUE python train.py` is a line for a shell, too."""
    given = 0
    while given < len(command) and _ASSIGNMENT.match(command[given]):
        given += 1
    if not given or code.exists(command[0]):
        return None
    options = " ".join(f"--env {shlex.quote(word)}" for word in command[:given])
    rest = shlex.join(command[given:])
    return UsageError(
        f"{command[0]} is no program, and no shell reads the command",
        why="a shell would set that variable before it runs the rest",
        hint=f"`orchestrate launch {options} -- {rest}`" if rest else "give a command after it",
    )


def of_a_shell(command: tuple[str, ...], code: Code) -> UsageError | None:
    """`source venv/bin/activate`, `conda activate tf`, `exec python train.py`."""
    first = command[0]
    if first == "exec" and len(command) > 1:
        hint = f"`orchestrate launch -- {shlex.join(command[1:])}`"
    elif first == "cd":
        hint = "change to that folder here: tasks run in the same one"
    elif command[:2] in (("conda", "activate"), ("mamba", "activate")):
        first = " ".join(command[:2])
        hint = 'write python = "~/miniconda3/envs/NAME/bin/python", its own Python, into hosts.toml'
    elif first in _OF_A_SHELL and len(command) > 1 and not (first != "." and code.installed(first)):
        line = shlex.join(command).replace("\\", "\\\\").replace('"', '\\"')
        hint = f'write setup = "{line}" under [job]: a shell reads it before each task'
    else:
        return None
    return UsageError(
        f"{first} is a word of a shell, and no shell reads the command",
        why="it changes the shell that reads it, and is no program",
        hint=hint,
    )


def folder(command: tuple[str, ...], code: Code) -> UsageError | None:
    """`.`, `./data`: a path is no program that PATH may know, and a folder is none at all."""
    name = command[0]
    path = _normal(name)
    if name.startswith(("/", "~")) or ("/" not in name and path not in {"", ".."}) or not code.folder(name):
        return None
    inside = path or "."
    below = "" if inside == "." else f"{path}/"
    scripts = sorted(
        one
        for one in code.sent
        if one.startswith(below) and one.endswith(".py") and "/" not in one.removeprefix(below)
    )
    if f"{below}__main__.py" in scripts:
        way = f"`orchestrate launch -- {shlex.join(('python', inside, *command[1:]))}`"
    elif len(scripts) == 1:
        way = f"`orchestrate launch -- {shlex.join((scripts[0], *command[1:]))}`"
    else:
        way = "name the script that is to run"
    return UsageError(f"{name} is a folder", why="a program or a script is what runs", hint=way)


def split_name(command: tuple[str, ...], code: Code) -> UsageError | None:
    """`my train.py`: a file whose name has spaces, without quotes."""
    if code.exists(command[0]):
        return None
    for end in range(2, min(len(command), 8) + 1):
        name = " ".join(command[:end])
        if name in code.sent:
            return UsageError(
                f"{name!r} arrived as {end} words",
                why="its name has spaces, and the shell splits there",
                hint=f"`orchestrate launch -- {shlex.join((name, *command[end:]))}`",
            )
    return None


def notebook(command: tuple[str, ...], code: Code) -> UsageError | None:
    name = invocation.program(command) or command[0]
    if not name.endswith(".ipynb") or not code.exists(name):
        return None
    script = PurePosixPath(name).with_suffix(".py")
    tool = "" if code.installed("jupyter-nbconvert") else "`pip install nbconvert`, then "
    return UsageError(
        f"{name} is a notebook, and Python runs scripts",
        why="its cells have to become a script first",
        hint=f"{tool}`jupyter nbconvert --to script {shlex.quote(name)}`, then"
        f" `orchestrate launch -- {shlex.quote(str(script))}`",
    )


def options_alone(command: tuple[str, ...], code: Code) -> UsageError | None:
    """`-- -m work` are options of worker_entry, which has none of that name."""
    del code
    if command[0] != "-m" or len(command) < 2:
        return None
    return UsageError(
        "-m is an option of Python, and the command names no Python",
        why="options alone go to worker_entry",
        hint=f"`orchestrate launch -- {shlex.join(('python', *command))}`",
    )


def outside(command: tuple[str, ...], code: Code) -> UsageError | None:
    name = _script(command)
    if name is None:
        return None
    path = PurePosixPath(name)
    if path.is_absolute():
        gone = code.exists(name) and not path.is_relative_to(code.root) and not code.everywhere(name)
    else:
        gone = _normal(name).startswith("../") and _normal(name) not in code.sent
    if not gone:
        return None
    folder = str(path.parent)
    rest = shlex.join(path.name if word == name else word for word in command)
    return UsageError(
        f"{name} lies outside of the folder that is sent",
        why=f"the code in {code.root} is what goes to the hosts",
        hint=f"`cd {shlex.quote(folder)}`, then `orchestrate launch -- {rest}`",
    )


def missing(command: tuple[str, ...], code: Code) -> UsageError | None:
    name = _script(command)
    if name is None or PurePosixPath(name).is_absolute() or name.startswith("~") or code.exists(name):
        return None
    wanted = PurePosixPath(name).name
    same = sorted(
        (path for path in code.sent if PurePosixPath(path).name in (wanted, f"{wanted}.py")),
        key=lambda path: (path.count("/"), path),
    )
    same = same or sorted(path for path in code.sent if path.lower() == _normal(name).lower())
    meant = same or difflib.get_close_matches(name, sorted(code.sent), 1, cutoff=0.8)
    rest = shlex.join(meant[0] if word == name else word for word in command) if meant else ""
    way = f"`orchestrate launch -- {rest}`" if meant else "change to the folder of your code"
    return UsageError(
        f"there is no {name} here to launch",
        why=f"the code in {code.root} is what goes to the hosts",
        hint=way,
    )


def ignored(command: tuple[str, ...], code: Code) -> UsageError | None:
    name = _script(command)
    if name is None or PurePosixPath(name).is_absolute() or name.startswith("~"):
        return None
    if _normal(name) in code.sent or not code.exists(name):
        return None
    if any(path.startswith(f"{_normal(name)}/") for path in code.sent):
        return None  # `python folder` runs its __main__.py
    return UsageError(
        f"{name} is here, and would not be sent",
        why="git, .orchestrateignore or `ignore` under [job] leaves it out",
        hint=f"`git check-ignore -v {shlex.quote(name)}` names git's rule; `git add -f` overrides it",
    )


def syntax(command: tuple[str, ...], code: Code) -> UsageError | None:
    """A mistake in every Python; what a newer one than ours may know is left to the hosts."""
    name = _script(command)
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
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(text, name)
    except SyntaxError as error:
        line = (error.text or "").rstrip()
        if _NEWER.search(line):
            return None
        return UsageError(
            f"{name}, line {error.lineno or 0}: {error.msg}",
            why=line.strip() or "Python cannot compile it",
            hint=f"correct that line; `python -m py_compile {shlex.quote(name)}` checks it",
        )
    except (ValueError, RecursionError, MemoryError):
        return None
    return None


def module(command: tuple[str, ...], code: Code) -> UsageError | None:
    name = invocation.module_name(command)
    if name is None or code.pythonpath:
        return None
    top = name.split(".")[0]
    if _files_of(name) & code.sent or top in sys.stdlib_module_names or top == "worker_entry":
        return None
    inside = any(path.startswith(f"{top}/") or path == f"{top}.py" for path in code.sent)
    below = next(
        (path for path in sorted(code.sent) if any(path.endswith(f"/{end}") for end in _files_of(name))), None
    )
    if below is not None and not inside:
        folder = next(below[: -len(end) - 1] for end in _files_of(name) if below.endswith(f"/{end}"))
        return UsageError(
            f"the module {name} is not found from here",
            why=f"it is {below}, and Python looks in the folder that is sent and on PYTHONPATH",
            hint=f"`orchestrate launch --env PYTHONPATH={shlex.quote(folder)} -- {shlex.join(command)}`",
        )
    if not inside and code.installed(top):
        return None
    return UsageError(
        f"there is no module {name} in the code that is sent",
        why=f"neither {' nor '.join(sorted(_files_of(name)))} is in {code.root}",
        hint="change to the folder above the package; of one that the hosts have installed:"
        f" `orchestrate launch -- bash -c {shlex.quote('exec ' + shlex.join(command))}`",
    )


def not_a_program(command: tuple[str, ...], code: Code) -> UsageError | None:
    """`run.sh` lies in the folder; a program of that name is looked for on PATH."""
    name = command[0]
    if name.endswith((".py", ".R", ".r", ".ipynb")) or name.startswith("-"):
        return None
    bare = "/" not in name
    path = _normal(name)
    if path not in code.sent or (bare and code.installed(name)):
        return None
    text = code.read(path) or ""
    runs = code.executable(path) and text.startswith("#!")
    if not bare and runs:
        return None
    if runs:
        way = shlex.join((f"./{path}", *command[1:]))
        why = "without a slash it is looked for on PATH"
    else:
        by = texts.interpreter(text)
        way = shlex.join((by if by not in {"", "sh"} else "bash", path, *command[1:]))
        why = "it is not executable" if text.startswith("#!") else "it names no interpreter in its first line"
    return UsageError(f"{name} cannot be started as it is", why=why, hint=f"`orchestrate launch -- {way}`")


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
    raw = code.raw(name) if _normal(name) in code.sent else None
    why = texts.not_for_unix(raw, direct=direct) if raw is not None else ""
    if not why:
        return None
    return UsageError(
        f"{name} is a text as Windows writes it, and cannot run as it is",
        why=why,
        hint=f"`sed -i -e '1s/^\\xEF\\xBB\\xBF//' -e 's/\\r$//' {shlex.quote(name)}` mends it",
    )


CHECKS: tuple[Check, ...] = (
    operators,
    shell_line,
    assignment,
    of_a_shell,
    folder,
    split_name,
    notebook,
    options_alone,
    outside,
    missing,
    ignored,
    syntax,
    module,
    line_ends,
    not_a_program,
)


def _script(command: tuple[str, ...]) -> str | None:
    name = invocation.program(command)
    bare_shell = name is not None and name.endswith((".sh", ".bash")) and name == command[0]
    if bare_shell and name is not None and "/" not in name:
        return None  # a program of that name may be on PATH
    known = (*invocation.SCRIPTS, ".ipynb")
    if name is not None and invocation.PYTHON.match(PurePosixPath(invocation.unwrapped(command)[0]).name):
        return name  # Python takes a file of any name
    return name if name is not None and name.endswith(known) else None


def _normal(name: str) -> str:
    parts: list[str] = []
    for part in PurePosixPath(name).parts:
        if part == ".." and parts and parts[-1] != "..":
            parts.pop()
        else:
            parts.append(part)
    return "/".join(parts)


def _files_of(name: str) -> frozenset[str]:
    path = name.replace(".", "/")
    return frozenset((f"{path}.py", f"{path}/__main__.py"))


def _in_bash(line: str) -> str:
    """With pipefail: else the status of `train.py | tee log` is tee's. No shell runs `train.py` itself."""
    line = f"python {line}" if line.split(" ", maxsplit=1)[0].endswith(".py") else line
    return f"bash -o pipefail -c {shlex.quote(line)}"
