"""Readers of single values: TOML value -> the value we keep, or Wrong."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from pathlib import PurePath
from typing import Any, TypeAlias

from orchestrator.config.mistakes import Wrong, listed, nearest, show
from orchestrator.model import Way
from orchestrator.planning.environ import name_mistake, value_mistake
from orchestrator.program.findings import CODES
from orchestrator.program.invocation import SHELLS

Reader: TypeAlias = Callable[[Any], Any]

_DEVICE = re.compile(r"[0-9]{1,4}|(?:GPU|MIG)-[A-Za-z0-9/-]+")
_OPERATORS = {"&&", "||", "|", ";", "&", ">", ">>", "<", "2>", "2>&1", "&>"}
_EXPANDED = re.compile(r"\$[A-Za-z_{(]|`|^~")
MAX_SECONDS = 365 * 24 * 3600.0


def kind(value: object) -> str:
    """Name a TOML type in a user's words."""
    match value:
        case bool():
            return "true or false"
        case int() | float():
            return "a number"
        case str():
            return "a text"
        case list():
            return "a list"
        case dict():
            return "a table"
    return "a date or time"


def text(value: Any) -> str:
    """Read a text: not empty, one line, nothing invisible in it."""
    if not isinstance(value, str):
        quoted = f'; write "{show(value)}"' if isinstance(value, int | float) else ""
        raise Wrong(f"must be a text in quotes, not {kind(value)}{quoted}")
    if not value.strip():
        raise Wrong("is empty; leave the key out to get the default")
    if value != value.strip():
        raise Wrong(f"has spaces around it: {show(value)}")
    if not value.isprintable():
        raise Wrong(f"holds a character that cannot be printed: {show(value)}")
    return value


def boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise Wrong(f"must be true or false, without quotes, not {show(value)}")
    return value


def whole(low: int, high: int, *, below: str = "") -> Reader:
    def read(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise Wrong(f"must be a whole number, without quotes, not {show(value)}")
        if not low <= value <= high:
            reason = f": {below}" if below and value < low else ""
            raise Wrong(f"must be from {low} to {high}, not {show(value)}{reason}")
        return value

    return read


def seconds(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Wrong(f"must be a number of seconds, without quotes, not {show(value)}")
    if not 0 <= value <= MAX_SECONDS:
        raise Wrong(f"must be from 0 to {MAX_SECONDS:.0f} seconds, not {show(value)}")
    return float(value)


def path(value: Any) -> str:
    """A path on the node, where `~` is expanded."""
    given = text(value)
    if re.search(r"\$\{?[A-Za-z_]", given):  # a folder may well be called $(here)
        raise Wrong(f"holds $, and no shell reads it: {show(given)}; write out what it stands for")
    if not given.startswith(("/", "~")):
        rest = re.sub(r"^(\.{0,2}/)+|^\.{1,2}$", "", given) or "orchestrate"
        raise Wrong(f'must be a full path or start with ~/, not {show(given)}; write "~/{rest}"')
    return given.rstrip("/") or "/"


_SHARED = "/ /home /mnt /opt /run /srv /tmp /usr /var /var/tmp"  # where everybody's folders are


def workdir(value: Any) -> str:
    """A folder on the node that is ours alone: code and runs go into it."""
    return _own(value, "~/orchestrate")


def state(value: Any) -> str:
    """Read the folder for locks and logs on the node."""
    return _own(value, "/var/tmp/orchestrate")  # noqa: S108 - a name to propose


def _own(value: Any, usual: str) -> str:
    given = path(value)
    plain = normal(given)
    if ".." in plain.split("/"):
        raise Wrong(f"must not lead through .., as {show(given)} does")
    if plain in _SHARED.split() or (plain.startswith("~") and "/" not in plain):
        better = usual if plain == "/" else f"{plain}/orchestrate"
        raise Wrong(f'must be a folder of its own, not {show(given)}; write "{better}"')
    return given


def normal(given: str) -> str:
    """A path without what means nothing in it: doubled slashes, `.`."""
    return "/" * given.startswith("/") + "/".join(part for part in given.split("/") if part not in ("", "."))


def folder(value: Any) -> str:
    """A folder on the nodes, as `path`, or relative to where the command runs."""
    given = text(value).rstrip("/")
    if not given or given in {".", "~"} or ".." in given.split("/"):
        raise Wrong(f'must name one folder, such as "backup" or "~/backup", not {show(value)}')
    return given


def program(value: Any) -> str:
    given = text(value)
    if given.endswith("/"):
        raise Wrong(f"must be a program, not a folder: {show(given)}")
    if "/" in given and not given.startswith(("/", "~")):
        raise Wrong(f"must be a name on the PATH, a full path or start with ~/, not {show(given)}")
    if "/" not in given and " " in given:
        raise Wrong(f"must be one program without arguments, not {show(given)}")
    if given.startswith("-"):
        raise Wrong(f"must be a program, not an option: {show(given)}")
    return given


def identity(value: Any) -> str:
    given = text(value)
    if given.endswith(".pub"):
        raise Wrong(f"{show(given)} is the public half of a key; name the private one: {show(given[:-4])}")
    return given


def user(value: Any) -> str:
    given = text(value)
    if given.startswith("-") or re.search(r"[\s@/:]", given):
        raise Wrong(f"is not a login name: {show(given)}")
    return given


def one_of(choices: type[StrEnum]) -> Reader:
    words = [choice.value for choice in choices]

    def read(value: Any) -> StrEnum:
        if value not in words:
            meant = nearest(value, words) if isinstance(value, str) else None
            raise Wrong(f"must be {quoted(words)}, not {show(value)}{did_you_mean(meant)}")
        return choices(value)

    return read


def quoted(words: Sequence[str]) -> str:
    return listed([f'"{word}"' for word in words], "or")


def via(value: Any) -> Way | tuple[str, ...]:
    """Read the name of a transport, or the words of a command that leads to a shell on {host}."""
    if not isinstance(value, list):
        return Way(one_of(Way)(value))
    words = texts(value)
    if not any("{host}" in word for word in words):
        raise Wrong('has no {host}, as ["docker", "exec", "-i", "{host}", "sh", "-c"] has it')
    return words


def finding_codes(value: Any) -> tuple[str, ...]:
    """Codes of `docs/lint.md`."""
    given = texts(value)
    for code in given:
        if code not in CODES:
            meant = nearest(code.upper(), list(CODES))
            raise Wrong(f"{show(code)} is not the code of a finding{did_you_mean(meant)}")
    return given


def devices(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise Wrong(f"must be a list such as [0, 1], not {kind(value)}")
    given: list[str] = []
    for item in value:
        name = show(item) if isinstance(item, int) else item if isinstance(item, str) else ""
        if not _DEVICE.fullmatch(name):
            raise Wrong(f"{show(item)} is not a GPU; write its number or its UUID (nvidia-smi -L)")
        if name in given:
            raise Wrong(f"names GPU {name} twice")
        given.append(name)
    return tuple(given)


def env(value: Any) -> dict[str, str]:
    """Raise Wrong with one line per wrong variable."""
    if not isinstance(value, dict):
        raise Wrong(f'must be a table such as {{ NAME = "value" }}, not {kind(value)}')
    mistakes = [mistake for name, item in value.items() for mistake in _variable(name, item)]
    if mistakes:
        raise Wrongs(mistakes)
    return dict(value)


class Wrongs(Wrong):
    """Several findings inside one value: (name within it, what)."""

    def __init__(self, found: Iterable[tuple[str, str]]) -> None:
        self.found = tuple(found)
        super().__init__("; ".join(f"{name}: {what}" for name, what in self.found))


def _variable(name: str, value: object) -> Iterable[tuple[str, str]]:
    if mistake := name_mistake(name):
        yield (name, mistake)
    elif isinstance(value, int | float):  # not shown: it may be a secret in the wrong place
        yield (name, f"must be a text, not {kind(value)}; write its value in quotes")
    elif not isinstance(value, str):
        yield (name, f"must be a text in quotes, not {kind(value)}")
    elif mistake := value_mistake(value):
        yield (name, mistake)


def names(value: Any) -> tuple[str, ...]:
    """Names of environment variables."""
    given = texts(value)
    for name in given:
        if "=" in name:
            raise Wrong(f"{show(name.partition('=')[0])} is given a value; list only the name")
        if mistake := name_mistake(name):
            raise Wrong(f"{show(name)} {mistake}")
        if given.count(name) > 1:
            raise Wrong(f"names {name} twice")
    return given


def texts(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        raise Wrong(f"must be a list; write [{show(value)}]")
    if not isinstance(value, list):
        raise Wrong(f'must be a list such as ["a", "b"], not {kind(value)}')
    for item in value:
        if not isinstance(item, str):
            raise Wrong(f"must be a list of texts in quotes, but {show(item)} is {kind(item)}")
        if not item.strip():
            raise Wrong("holds an empty text")
        if "\0" in item or "\n" in item:
            raise Wrong(f"holds a character that cannot be there: {show(item)}")
    return tuple(value)


def did_you_mean(word: str | None) -> str:
    return f"; did you mean {word}?" if word else ""


def notify(value: Any) -> tuple[str, ...]:
    """The argv of a command of this machine."""
    if value in ("", []):
        raise Wrong("is empty; leave it out if nobody is to be told")
    return _argv(value, "write bash -c '...'")


def command(value: Any) -> tuple[str, ...]:
    """An argv; a text is split as a shell would split it."""
    return _argv(value, "use `setup`, or bash -c '...'")


def _argv(value: Any, way: str) -> tuple[str, ...]:
    """Read a command; `way` is the advice to whoever writes a line for a shell."""
    if isinstance(value, str):
        argv = _split(value)
    elif isinstance(value, list):
        argv = value
        for item in argv:
            if not isinstance(item, str):
                raise Wrong(f'must be a list of texts; write "{show(item)}" in quotes')
    else:
        raise Wrong(f'must be a text or a list such as ["train.py", "--epochs", "3"], not {kind(value)}')
    if not argv or not argv[0].strip():
        raise Wrong("is empty; leave the key out to run worker_entry")
    if any("\0" in word for word in argv):
        raise Wrong("holds a NUL character")
    if "=" in argv[0].partition("/")[0]:
        raise Wrong(f"starts with {show(argv[0])}, which only a shell knows; use `setup` or `env`")
    # These would reach the program as they are, which nobody who writes one line means.
    for place, word in enumerate(
        argv if isinstance(value, str) and PurePath(argv[0]).name not in SHELLS else ()
    ):
        if word in _OPERATORS or word.endswith(";"):
            raise NeedsShell(f"holds {show(word)}, but no shell reads it; {way}")
        # The node opens out ~ in the program itself.
        if _EXPANDED.search(word) and (place or not word.startswith("~")):
            raise NeedsShell(f"holds {show(word)}, but no shell fills it in; write it out, or bash -c '...'")
    return tuple(argv)


class NeedsShell(Wrong):
    """A command has a word that only a shell gives its meaning."""


def shell_text(value: Any) -> str:
    """Not empty; lines and tabs are welcome."""
    if not isinstance(value, str):
        raise Wrong(f"must be a text in quotes, not {kind(value)}")
    if not value.strip():
        raise Wrong("is empty; leave the key out if there is nothing to run")
    if "\0" in value:
        raise Wrong("holds a NUL character")
    return value


def validate(value: Any) -> str:
    """A command line of the user's own."""
    if value is False:
        raise Wrong("must be a command line; to launch without validation use --validate never")
    given = shell_text(value)
    _split(given)
    return given


def _split(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError as error:
        wrong = "a quote is not closed" if "quotation" in str(error) else "it ends with a backslash"
        raise Wrong(f"cannot be split into words: {wrong} in {show(line)}") from error


_SET = re.compile(r"[a-z][a-z0-9_]*(/[A-Za-z0-9_.-]+)?(:[0-9]+\.[0-9]+\.[0-9]+)?")


def interpreter(value: Any) -> str:
    """A version of Python (3.11) or a program."""
    if isinstance(value, float):
        raise Wrong(f'must be a text in quotes; write "{show(value)}"')
    given = text(value)
    return given if re.fullmatch(r"3(\.\d{1,2}){1,2}", given) else program(given)


def url(value: Any) -> str:
    """Read the address of a package index, which everybody on a host may see in its list of processes."""
    given = text(value)
    if re.match(r"[a-z]+://[^/]*@", given):
        raise Wrong(
            "holds a login, which others could read; leave it out, and give it to every machine in ~/.netrc,"
            " its uv.toml or UV_DEFAULT_INDEX"
        )
    if not re.match(r"(https?|file)://[^/\s]*/?", given):
        raise Wrong(f"must be the URL of a package index (https://...), not {show(given)}")
    return given


def requirements(value: Any) -> tuple[str, ...]:
    """Packages as pip is told them."""
    from packaging.requirements import (  # noqa: PLC0415 - 20 ms of every command without [env]
        InvalidRequirement,
        Requirement,
    )

    lines = texts(value)
    for line in lines:
        try:
            Requirement(line)
        except InvalidRequirement as error:
            raise Wrong(f"{show(line)} is not a requirement of pip: {str(error).splitlines()[0]}") from None
    return lines


def data_sets(value: Any) -> tuple[str, ...]:
    """Names of tensorflow-datasets: name, name/config, either with a version."""
    found = texts(value)
    for name in found:
        if "/" in name.strip("/") and name.startswith(("/", "~", ".")):
            raise Wrong(f"{show(name)} is a path; list it under `paths`")
        if not _SET.fullmatch(name):
            raise Wrong(f'{show(name)} is not a data set\'s name; write "mnist" or "my_dataset:1.0.0"')
        if found.count(name) > 1:
            raise Wrong(f"names {name} twice")
    return found


def data_paths(value: Any) -> tuple[str, ...]:
    """Folders and files of this machine, each with a name of its own."""
    written = texts(value)
    found = tuple(one.rstrip("/") for one in written)
    names = [one.rpartition("/")[2] for one in found]
    for given, name in zip(written, names, strict=True):
        if name in {"", ".", "..", "~"}:
            raise Wrong(f"{show(given)} has no name of its own; name a folder or a file")
        if names.count(name) > 1:
            raise Wrong(f"names two that are called {name}; tasks find them by their last name")
    return found
