"""The parts of a command: its script, its module, and the programs that a shell runs for it. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import PurePosixPath

SHELLS = frozenset(["bash", "sh", "dash", "zsh", "ksh", "fish", "csh", "tcsh"])
OPERATORS = frozenset(["|", "||", "&", "&&", ";", ">", ">>", "<", "<<", "2>", "2>>", "&>", "2>&1", "|&"])
ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
PYTHON = re.compile(r"python[\d.]*$")
SCRIPTS = (".py", ".R", ".r", ".sh", ".bash")
# Programs that run the rest of their words as a command, as `conda run -n tf python train.py` does.
_WRAPPERS = frozenset(
    ["env", "nice", "nohup", "time", "timeout", "ionice", "stdbuf", "numactl", "taskset", "chrt", "setsid"]
)
_RUNNERS = frozenset(["conda", "mamba", "micromamba", "poetry", "uv", "pipenv", "pdm"])
_IN_SHELL = re.compile(
    r"(?:\bpython[\d.]*|\$\{?PY\w*(?::-[\w./]+)?\}?|\btorchrun)[\"']?(?:\s+-[\w=-]+)*?"
    r"\s+(?:-m\s+(?P<module>[\w.]+)|[\"']?(?P<file>[\w./-]+\.py)\b)"
)


def as_words(command: tuple[str, ...]) -> tuple[str, ...]:
    """Return the words of a command given as one text, `'python train.py'`; () where it needs a shell."""
    words = command
    if len(command) == 1:
        try:
            words = tuple(shlex.split(command[0]))
        except ValueError:
            return ()
        if re.search(r"[|&;<>()$`*?~#\n\\]", command[0]):
            return ()
    return words if not set(words) & OPERATORS else ()


def with_env(words: tuple[str, ...]) -> str:
    """Write a command for after `launch`, the variables before it as options: `--env A=1 -- train.py`."""
    at = next((at for at, word in enumerate(words) if not ASSIGNMENT.match(word)), len(words))
    options = [part for word in words[:at] for part in ("--env", word)]
    return shlex.join([*options, "--", *words[at:]])


def program(command: tuple[str, ...]) -> str | None:
    """Name the script in a command: `train.py --x`, `python -u train.py`, `bash run.sh`."""
    command = unwrapped(command)
    if not command:
        return None
    name = PurePosixPath(command[0]).name
    if PYTHON.match(name):
        option, word = _of_python(command)
        return None if option else word
    if name in {"torchrun", "accelerate"}:
        return next((word for word in command[1:] if word.endswith(".py")), None)
    if name in SHELLS | {"Rscript"}:
        return next((word for word in command[1:2] if not word.startswith("-")), None)
    return command[0] if command[0].endswith((*SCRIPTS, ".ipynb")) else None


def without_uv(command: tuple[str, ...]) -> tuple[str, ...]:
    """Return `train.py --x` of `uv run train.py --x`, whose header says what it needs; others as they are."""
    rest = command[2:]
    while rest and rest[0] in {"-q", "--quiet", "-s", "--script", "--no-project", "--no-config", "--"}:
        rest = rest[1:]
    return rest if command[:2] == ("uv", "run") and rest and rest[0].endswith(".py") else command


def script_of(command: tuple[str, ...]) -> str | None:
    """Name the file of the code that a command runs; None for a program that is looked for on PATH."""
    name = program(command)
    if name is None or (name.endswith((".sh", ".bash")) and name == command[0] and "/" not in name):
        return None
    python = PYTHON.match(PurePosixPath(unwrapped(command)[0]).name)  # which takes a file of any name
    return name if python or name.endswith((*SCRIPTS, ".ipynb")) else None


def module_name(command: tuple[str, ...]) -> str | None:
    """Name the module: `pkg.train` of `python -u -m pkg.train`."""
    command = unwrapped(command)
    option, word = _of_python(command) if PYTHON.match(PurePosixPath(command[0]).name) else ("", None)
    return word if option == "-m" else None


def _of_python(command: tuple[str, ...]) -> tuple[str, str | None]:
    """Return what Python runs: ("-m", its module), ("-c", its text) or ("", its script)."""
    words = iter(command[1:])
    for word in words:
        if word in ("-m", "-c", "-"):
            return word, next(words, None)
        if word in ("-W", "-X"):
            next(words, None)
        elif not word.startswith("-"):
            return "", word
    return "", None


def in_shell(text: str) -> tuple[tuple[str, ...], ...]:
    """List the Python programs that a text for a shell runs, as commands: `("python", "train.py")`."""
    code = "\n".join(
        line.partition(" #")[0]
        for line in re.sub(r"\\\r?\n", " ", text).split("\n")
        if not line.lstrip().startswith(("#", "echo ", "printf "))
    )
    commands = (
        ("python", "-m", match["module"]) if match["module"] else ("python", match["file"])
        for match in _IN_SHELL.finditer(code)
    )
    return tuple(dict.fromkeys(commands))


def shell_text(command: tuple[str, ...], read: Callable[[str], str | None]) -> str:
    """Return what a shell reads: of `bash -c '...'`, `bash run.sh`, `./run.sh`; "" where none does."""
    command = unwrapped(command)
    if command and PurePosixPath(command[0]).name in SHELLS:
        place = next((at for at, word in enumerate(command) if re.fullmatch(r"-[a-z]*c", word)), None)
        if place is not None:
            return command[place + 1] if place + 1 < len(command) else ""
    name = program(command)
    is_shell = name is not None and name.endswith((".sh", ".bash"))
    return (read(str(PurePosixPath(name))) or "") if name is not None and is_shell else ""


def unwrapped(command: tuple[str, ...]) -> tuple[str, ...]:
    """Strip what only starts the rest, up to an interpreter or script: `nice -n 5 python train.py`."""
    name = PurePosixPath(command[0]).name if command else ""
    if name not in _WRAPPERS and not (name in _RUNNERS and command[1:2] == ("run",)):
        return command
    for place, word in enumerate(command):
        name = PurePosixPath(word).name
        if PYTHON.match(name) or name in SHELLS or name.endswith((".py", ".R", ".sh")):
            return command[place:]
    return command
