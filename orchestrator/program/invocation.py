"""What a command starts: its script, its module, and what a shell runs for it. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import PurePosixPath

SHELLS = frozenset(["bash", "sh", "dash", "zsh", "ksh", "fish", "csh", "tcsh"])
PYTHON = re.compile(r"python[\d.]*$")
SCRIPTS = (".py", ".R", ".r", ".sh", ".bash")
# Programs that run the rest of their words as a command.
_WRAPPERS = frozenset(
    ["env", "nice", "nohup", "time", "timeout", "ionice", "stdbuf", "numactl", "taskset", "chrt", "setsid"]
)
# `conda run -n tf python train.py`; with an option for another folder nothing is known of its paths.
_RUNNERS = frozenset(["conda", "mamba", "micromamba", "poetry", "uv", "pipenv", "pdm"])
_ELSEWHERE = ("--cwd", "--directory", "--project", "-C")
_IN_SHELL = re.compile(
    r"(?:\bpython[\d.]*|\$\{?PY\w*(?::-[\w./]+)?\}?)[\"']?(?:\s+-[a-zA-Z]+)*?"
    r"\s+(?:-m\s+(?P<module>[\w.]+)|[\"']?(?P<file>[\w./-]+\.py)\b)"
)
_BRANCHES = re.compile(r"(?m)(?:^|[;\s])(?:if|case|while|until|then|elif)\s|\|\||\)\s*\{")


def program(command: tuple[str, ...]) -> str | None:
    """The script in a command: `train.py --x`, `python -u train.py`, `bash run.sh`; None where none is."""
    command = unwrapped(command)
    if not command:
        return None
    name = PurePosixPath(command[0]).name
    if PYTHON.match(name):
        words = iter(command[1:])
        for word in words:
            if word in ("-m", "-c", "-"):
                return None
            if word in ("-W", "-X"):
                next(words, None)
            elif not word.startswith("-"):
                return word
        return None
    if name in SHELLS | {"Rscript"}:
        return next((word for word in command[1:2] if not word.startswith("-")), None)
    return command[0] if command[0].endswith((*SCRIPTS, ".ipynb")) else None


def module_name(command: tuple[str, ...]) -> str | None:
    """`pkg.train` of `python -u -m pkg.train`."""
    command = unwrapped(command)
    if not PYTHON.match(PurePosixPath(command[0]).name):
        return None
    for place, word in enumerate(command[1:-1], start=1):
        if word == "-m":
            return command[place + 1]
        if not word.startswith("-"):
            return None
    return None


def in_shell(text: str) -> tuple[tuple[str, ...], ...]:
    """The Python programs that a line or a script for a shell runs, as commands: `("python", "train.py")`."""
    code = "\n".join(
        line.partition(" #")[0]
        for line in re.sub(r"\\\r?\n", " ", text).split("\n")
        if not line.lstrip().startswith(("#", "echo ", "printf "))
    )
    found = (
        ("python", "-m", match["module"]) if match["module"] else ("python", match["file"])
        for match in _IN_SHELL.finditer(code)
    )
    return tuple(dict.fromkeys(found))


def branches(text: str) -> bool:
    """Whether a text for a shell has conditions, so that it may run one program of several."""
    return _BRANCHES.search(text) is not None


def shell_text(command: tuple[str, ...], read: Callable[[str], str | None]) -> str:
    """What a shell reads: of `bash -c '...'`, `bash run.sh`, `./run.sh`; "" where none does."""
    command = unwrapped(command)
    if command and PurePosixPath(command[0]).name in SHELLS:
        place = next((at for at, word in enumerate(command) if re.fullmatch(r"-[a-z]*c", word)), None)
        if place is not None:
            return command[place + 1] if place + 1 < len(command) else ""
    name = program(command)
    return (
        (read(str(PurePosixPath(name))) or "") if name is not None and name.endswith((".sh", ".bash")) else ""
    )


def unwrapped(command: tuple[str, ...]) -> tuple[str, ...]:
    """`nice -n 5 python train.py` without what only starts it."""
    if not command:
        return command
    name = PurePosixPath(command[0]).name
    runs = name in _RUNNERS and "run" in command[1:2]
    if name in _WRAPPERS or (runs and not any(word.startswith(_ELSEWHERE) for word in command)):
        return started(command)
    return command


def started(command: tuple[str, ...]) -> tuple[str, ...]:
    """The command from its interpreter or script on; all of it where there is none."""
    names = ((at, PurePosixPath(word).name) for at, word in enumerate(command))
    places = (
        at
        for at, name in names
        if PYTHON.match(name) or name in SHELLS or name.endswith((".py", ".R", ".sh"))
    )
    place = next(places, None)
    return command if place is None else command[place:]
