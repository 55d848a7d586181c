"""Scripts, modules and programs that are not where the command looks for them. Pure."""

from __future__ import annotations

import difflib
import posixpath
import shlex
import sys
from pathlib import PurePosixPath

from orchestrator.errors import UsageError
from orchestrator.program import invocation, texts
from orchestrator.program.project import Code, file_of, normal, script_of

_SCRIPTS = (".py", ".R", ".r", ".ipynb")  # what an interpreter of ours runs, executable or not


def folder(command: tuple[str, ...], code: Code) -> UsageError | None:
    """`.`, `./data`: a path is no program that PATH may know, and a folder is none at all."""
    name = command[0]
    path = normal(name)
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
    return UsageError(f"{name} is a folder", why="only a program or a script can run", hint=way)


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


def whole_path(command: tuple[str, ...], code: Code) -> UsageError | None:
    """`/home/ada/project/train.py`, of the folder that is sent: hosts have it elsewhere."""
    name = file_of(command, code)
    if name is None or not PurePosixPath(name).is_absolute() or code.everywhere(name):
        return None
    folder, _, last = name.rpartition("/")
    here = posixpath.relpath(posixpath.join(code.real(folder or "/"), last), code.root)
    if here not in code.sent:
        return None
    return UsageError(
        f"{name} is where the code lies on this machine",
        why="it is sent, and the tasks run in a copy of it on their hosts",
        hint=f"`orchestrate launch -- {_with(command, name, here)}`",
    )


def _with(command: tuple[str, ...], name: str, right: str) -> str:
    """The command line with another path for its file; a program in the folder needs a slash."""
    if name == command[0] and "/" not in right and not right.endswith(_SCRIPTS):
        right = f"./{right}"
    return shlex.join(right if word == name else word for word in command)


def outside(command: tuple[str, ...], code: Code) -> UsageError | None:
    name = file_of(command, code)
    if name is None:
        return None
    path = PurePosixPath(name)
    if path.is_absolute():
        if script_of(command) is None:
            return None  # a program, which the hosts may have under the same path
        gone = code.exists(name) and not path.is_relative_to(code.root) and not code.everywhere(name)
    else:
        gone = normal(name).startswith("../") and normal(name) not in code.sent
    if not gone:
        return None
    folder = str(path.parent)
    rest = _with(command, name, path.name)
    return UsageError(
        f"{name} lies outside of the folder that is sent",
        why=f"the code in {code.root} is what goes to the hosts",
        hint=f"`cd {shlex.quote(folder)}`, then `orchestrate launch -- {rest}`",
    )


def missing(command: tuple[str, ...], code: Code) -> UsageError | None:
    name = file_of(command, code)
    if name is None or PurePosixPath(name).is_absolute() or name.startswith("~") or code.exists(name):
        return None
    wanted = PurePosixPath(name).name
    same = sorted(
        (path for path in code.sent if PurePosixPath(path).name in (wanted, f"{wanted}.py")),
        key=lambda path: (path.count("/"), path),
    )
    same = same or sorted(path for path in code.sent if path.lower() == normal(name).lower())
    meant = same or difflib.get_close_matches(normal(name), sorted(code.sent), 1, cutoff=0.8)
    way = "change to the folder of your code"
    if meant:
        way = f"`orchestrate launch -- {_with(command, name, meant[0])}`"
    return UsageError(
        f"there is no {name} here to launch",
        why=f"the code in {code.root} is what goes to the hosts",
        hint=way,
    )


def ignored(command: tuple[str, ...], code: Code) -> UsageError | None:
    name = file_of(command, code)
    if name is None or PurePosixPath(name).is_absolute() or name.startswith("~"):
        return None
    if normal(name) in code.sent or not code.exists(name):
        return None
    if any(path.startswith(f"{normal(name)}/") for path in code.sent):
        return None  # `python folder` runs its __main__.py
    return UsageError(
        f"{name} is here, and would not be sent",
        why="git, .orchestrateignore or `ignore` under [job] leaves it out",
        hint=f"`git check-ignore -v {shlex.quote(name)}` names git's rule; `git add -f` overrides it",
    )


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
    if name.endswith(_SCRIPTS) or name.startswith("-"):
        return None
    bare = "/" not in name
    path = normal(name)
    if path not in code.sent or (bare and code.installed(name)):
        return None
    head = code.head(path)
    text, compiled = head.decode("utf-8", "replace"), b"\0" in head
    runs = code.executable(path) and (compiled or text.startswith("#!"))
    if not bare and runs:
        return None
    if runs:
        way = shlex.join((f"./{path}", *command[1:]))
        why = "without a slash it is looked for on PATH"
    elif compiled:
        started = shlex.join((f"./{path}", *command[1:]))
        way = f"`chmod +x {shlex.quote(path)}`, then `orchestrate launch -- {started}`"
        return UsageError(f"{name} cannot be started as it is", why="it is not executable", hint=way)
    else:
        by = texts.interpreter(text)
        way = shlex.join((by if by not in {"", "sh"} else "bash", path, *command[1:]))
        why = "it is not executable" if text.startswith("#!") else "it names no interpreter in its first line"
    return UsageError(f"{name} cannot be started as it is", why=why, hint=f"`orchestrate launch -- {way}`")


def _files_of(name: str) -> frozenset[str]:
    path = name.replace(".", "/")
    return frozenset((f"{path}.py", f"{path}/__main__.py"))
