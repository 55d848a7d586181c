"""The parts of a command: its script, its module, and the programs that a shell runs for it. Pure."""

import re
import shlex
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import TypeAlias

SHELLS = frozenset(["bash", "sh", "dash", "zsh", "ksh", "fish", "csh", "tcsh"])
OPERATORS = frozenset(["|", "||", "&", "&&", ";", ">", ">>", "<", "<<", "2>", "2>>", "&>", "2>&1", "|&"])
ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
PYTHON = re.compile(r"python[\d.]*$")
Read: TypeAlias = Callable[[str], str | None]  # a text of the project; None if there is none
_SHELL = (".sh", ".bash")
SCRIPTS = (".py", ".R", ".r", *_SHELL)
# Programs that run the rest of their arguments, as in `conda run -n tf python train.py`.
_WRAPPERS = re.compile(
    "env|nice|nohup|time|timeout|ionice|stdbuf|numactl|taskset|chrt|setsid|nsys|ncu|py-spy"
    "|deepspeed|horovodrun|mpirun|mpiexec|srun|ipython3?|kernprof|memray|scalene|viztracer|strace|unbuffer"
    "|xvfb-run|dotenv|apptainer|singularity"
)
# Modules that do the same, as in `python -m cProfile -o out.prof train.py`.
_TOOLS = frozenset(
    ["cProfile", "profile", "coverage", "trace", "pdb", "debugpy", "scalene", "viztracer", "kernprof"]
)
_RUNNERS = re.compile("conda|mamba|micromamba|poetry|uv|pipenv|pdm|pixi|hatch|rye|coverage|fabric|lightning")
_CALLED = re.compile(r"[\w./-]+\.(?:sh|bash)\b")
_ENTERED = re.compile(r"\b(?:cd|pushd)\s+[\"']?(?:\./)?(\w[\w./-]*)")
# The rule of a target in a Makefile.
_RULE = re.compile(r"^([\w./-]+)\s*:(?!=).*(?:\n\t.*)*", re.MULTILINE)
_IN_SHELL = re.compile(
    rf"(?:\bpython[\d.]*|\$[{{(]?PY\w*(?::-[\w./]+)?[)}}]?|\btorchrun|\b(?:{_RUNNERS.pattern})\s+run)"
    r"[\"']?(?:\s+-[\w=-]+)*?"
    r"\s+(?:-m\s+(?P<module>[\w.]+)|[\"']?(?P<file>[\w./-]+\.py)\b)"
)


def as_words(command: tuple[str, ...]) -> tuple[str, ...]:
    """Split a command given as one text, `'python train.py'`; () if it needs a shell."""
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
    """Return a command for use after `launch`, with its variables as options: `--env A=1 -- train.py`."""
    at = next((at for at, word in enumerate(words) if not ASSIGNMENT.match(word)), len(words))
    options = [part for word in words[:at] for part in ("--env", word)]
    return shlex.join([*options, "--", *words[at:]])


def program(command: tuple[str, ...]) -> str | None:
    """Return the script in a command: `train.py --x`, `python -u train.py`, `bash run.sh`."""
    command = unwrapped(command)
    if not command:
        return None
    name = PurePosixPath(command[0]).name
    if PYTHON.match(name):
        option, word = _of_python(command)
        return None if option else word
    if name in {"torchrun", "accelerate"}:
        return next((word for word in command[1:] if word.endswith(".py")), None)
    if name in SHELLS:
        option, word = _of_shell(command)
        return None if option else word
    if name == "Rscript":
        return next((word for word in command[1:2] if not word.startswith("-")), None)
    return command[0] if command[0].endswith((*SCRIPTS, ".ipynb")) else None


def without_uv(command: tuple[str, ...]) -> tuple[str, ...]:
    """Return `train.py --x` for `uv run train.py --x`, whose header lists its packages; others unchanged."""
    rest = command[2:]
    while rest and rest[0] in {"-q", "--quiet", "-s", "--script", "--no-project", "--no-config", "--"}:
        rest = rest[1:]
    return rest if command[:2] == ("uv", "run") and rest and rest[0].endswith(".py") else command


def script_of(command: tuple[str, ...]) -> str | None:
    """Return the file of the code that a command runs; None for a program on PATH."""
    name = program(command)
    if name is None or (name.endswith((".sh", ".bash")) and name == command[0] and "/" not in name):
        return None
    python = PYTHON.match(PurePosixPath(unwrapped(command)[0]).name)  # which accepts a file of any name
    return name if python or name.endswith((*SCRIPTS, ".ipynb")) else None


def module_name(command: tuple[str, ...]) -> str | None:
    """Return the module: `pkg.train` of `python -u -m pkg.train`."""
    command = unwrapped(command)
    option, word = _of_python(command) if PYTHON.match(PurePosixPath(command[0]).name) else ("", None)
    return word if option == "-m" else None


def options_of(command: tuple[str, ...]) -> dict[str, str]:
    """Read a program's arguments as most are meant: `--lr 0.1`, `--lr=0.1`, `--fast`, `lr=0.1`."""
    name = program(command) or (module_name(command) if command else None)
    if name is None and command and re.fullmatch(rf"{PYTHON.pattern}|{'|'.join(SHELLS)}", command[0]):
        return {}
    values, option = dict[str, str](), ""
    for word in command[command.index(name) + 1 if name in command else 0 :]:
        key, equals, value = word.partition("=")
        if word.startswith("-") and not re.match(r"-\.?\d", word):
            values[key.lstrip("-")] = value
            option = "" if equals else key.lstrip("-")
        elif option:
            values[option] = f"{values[option]} {word}".lstrip()
        elif equals:
            values[key] = value
    return {key: value or "yes" for key, value in values.items() if key}


def _of_python(command: tuple[str, ...]) -> tuple[str, str | None]:
    """Return what Python runs: ("-m", its module), ("-c", its text) or ("", its script)."""
    words = iter(command[1:])
    for word in words:
        if word in ("-m", "-c", "-"):
            return word, next(words, None)
        if word.startswith("-m"):
            return "-m", word[2:]
        if word in ("-W", "-X"):
            next(words, None)
        elif not word.startswith("-"):
            return "", word
    return "", None


def _of_shell(command: tuple[str, ...]) -> tuple[str, str | None]:
    """Return what a shell runs: ("-c", its text) or ("", its script)."""
    words = iter(command[1:])
    for word in words:
        if re.fullmatch(r"-[a-z]*c", word):
            return "-c", next(words, None)
        if re.fullmatch(r"[-+][a-z]*[oO]", word):
            next(words, None)
        elif not word.startswith(("-", "+")):
            return "", word
    return "", None


def shell_code(text: str) -> str:
    """Return the lines of a shell text that run something, each as a whole."""
    return "\n".join(
        line.partition(" #")[0]
        for line in re.sub(r"\\\r?\n", " ", text).split("\n")
        if not line.lstrip().startswith(("#", "echo ", "printf "))
    )


def in_shell(text: str) -> tuple[tuple[str, ...], ...]:
    """Return the Python programs that a shell text runs, as commands: `("python", "train.py")`."""
    commands = (
        ("python", "-m", match["module"]) if match["module"] else ("python", match["file"])
        for match in _IN_SHELL.finditer(shell_code(text))
    )
    return tuple(dict.fromkeys(commands))


def folders(text: str) -> tuple[str, ...]:
    """Return the folders in which a shell text may run programs: the first, and those that it enters."""
    return ("", *(f"{path.rstrip('/')}/" for path in _ENTERED.findall(shell_code(text))))


def shell_text(command: tuple[str, ...], read: Read) -> str:
    """Return the text for a shell in `bash -c '...'`, `bash run.sh` or `make`, and of scripts it runs."""
    text = _started_text(command, read)
    called = {
        f"{root}{PurePosixPath(name)}" for name in _CALLED.findall(shell_code(text)) for root in folders(text)
    }
    return "\n".join(filter(None, (text, *map(read, sorted(called)))))


def _started_text(command: tuple[str, ...], read: Read) -> str:
    command = unwrapped(command)
    if command and PurePosixPath(command[0]).name == "make":
        text = read("Makefile") or ""
        return "\n".join(rule[0] for rule in _RULE.finditer(text) if rule[1] in command) or text
    by_shell = bool(command) and PurePosixPath(command[0]).name in SHELLS
    option, word = _of_shell(command) if by_shell else ("", "".join(command[:1]))
    if option or not word:
        return word or ""
    text = read(str(PurePosixPath(word))) or ""
    return text if by_shell or word.endswith(_SHELL) or re.match(r"#!.*sh\b", text) else ""


def is_wrapped(command: tuple[str, ...]) -> bool:
    name = PurePosixPath(command[0]).name if command else ""
    return bool(
        _WRAPPERS.fullmatch(name)
        or (_RUNNERS.fullmatch(name) and command[1:2] == ("run",))
        or (PYTHON.match(name) and command[1:2] == ("-m",) and not _TOOLS.isdisjoint(command[2:3]))
    )


def unwrapped(command: tuple[str, ...]) -> tuple[str, ...]:
    """Strip wrappers up to an interpreter or script: `nice -n 5 python train.py`."""
    if not is_wrapped(command):
        return command
    first = 3 if command[1:2] == ("-m",) else 0
    for place, word in enumerate(command[first:], first):
        name = PurePosixPath(word).name
        if word == "-m" and (first or command[1] == "run"):
            return ("python", *command[place:])
        if PYTHON.match(name) or name in SHELLS or name.endswith((".py", ".R", ".sh")):
            return command[place:]
    return command
