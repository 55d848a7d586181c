"""Commands that are lines for a shell, which none reads. Pure."""

from __future__ import annotations

import re
import shlex
from pathlib import PurePosixPath

from orchestrator.errors import UsageError
from orchestrator.program import invocation
from orchestrator.program.project import Code

_OPERATORS = frozenset(["|", "||", "&", "&&", ";", ">", ">>", "<", "<<", "2>", "2>>", "&>", "2>&1", "|&"])
# They change the shell that reads them, and are no programs.
_OF_A_SHELL = frozenset(["source", ".", "export", "module", "ulimit", "eval", "alias", "set", "unset"])
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")


def background(command: tuple[str, ...], code: Code) -> UsageError | None:
    """`nohup python train.py &`: a shell would have ended at once, and its task with it."""
    if command[-1] == "&":
        rest = shlex.join(command[:-1])
    elif len(command) == 1 and re.search(r"[^&]&$", command[0]) and not code.exists(command[0]):
        rest = command[0][:-1].rstrip()
    else:
        return None
    if PurePosixPath(command[0]).name in invocation.SHELLS or re.search(r"[|&;<>$]", rest):
        return None
    return UsageError(
        "& is a word of a shell, and no shell reads the command",
        why="a task does not hold your terminal: --detach leaves a run alone",
        hint=f"`orchestrate launch -- {rest}`" if rest else "give a command after --",
    )


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
        f"{command[0]} is not a program, and no shell reads the command",
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
        why="it changes the shell that reads it, and is not a program",
        hint=hint,
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


def _in_bash(line: str) -> str:
    """With pipefail: else the status of `train.py | tee log` is tee's. No shell runs `train.py` itself."""
    line = f"python {line}" if line.split(" ", maxsplit=1)[0].endswith(".py") else line
    return f"bash -o pipefail -c {shlex.quote(line)}"
