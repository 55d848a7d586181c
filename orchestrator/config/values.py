"""Readers of single values: TOML value -> stored value, or Wrong."""

import re
import shlex
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import PurePath
from typing import Any, TypeAlias

from orchestrator.config.mistakes import Wrong, listed, show
from orchestrator.model import Way
from orchestrator.nearest import nearest
from orchestrator.planning.environ import name_mistake
from orchestrator.program.invocation import SHELLS

Reader: TypeAlias = Callable[[Any], Any]

_DEVICE = re.compile(r"[0-9]{1,4}|(?:GPU|MIG)-[A-Za-z0-9/-]+")
_OPERATORS = {"&&", "||", "|", ";", "&", ">", ">>", "<", "2>", "2>&1", "&>"}
_EXPANDED = re.compile(r"\$[A-Za-z_{(]|`|^~")
_SHARED = "/ /home /mnt /opt /run /srv /tmp /usr /var /var/tmp"  # the parent of most users' folders
_SET = re.compile(r"[a-z][a-z0-9_]*(/[A-Za-z0-9_.-]+)?(:[0-9]+\.[0-9]+\.[0-9]+)?")
MAX_SECONDS = 365 * 24 * 3600.0


def kind(value: object) -> str:
    """Return the user's term for a TOML type."""
    terms = {bool: "true or false", int: "a number", float: "a number", str: "text"}
    return {**terms, list: "a list", dict: "a table"}.get(type(value), "a date or time")


def text(value: Any) -> str:
    """Read a text: not empty, one line, no invisible characters."""
    if not isinstance(value, str):
        quoted = f'; write "{show(value)}"' if isinstance(value, int | float) else ""
        raise Wrong(f"must be text in quotes, not {kind(value)}{quoted}")
    if not value.strip():
        raise Wrong("is empty; omit the key to use the default")
    if value != value.strip() or not value.isprintable():
        raise Wrong(f"must be printable, without spaces at either end, not {show(value)}")
    return value


def matching(pattern: str, what: str) -> Reader:
    """Return a reader for a text that matches a pattern."""

    def read(value: Any) -> str:
        given = text(value)
        if not re.fullmatch(pattern, given):
            raise Wrong(f"must be {what}, not {show(given)}")
        return given

    return read


user = matching(r"[^-\s@/:][^\s/:]*", "a login name")  # of a domain: ada@example.org
program = matching(
    r"[~/].*[^/]|[^-~/\s][^/\s]*",
    "one program without arguments: a name on the PATH, a full path, or one that starts with ~/",
)


_image = matching(r"[^-\s]\S*", 'an image such as "tensorflow/tensorflow:2.20.0-gpu"')


def image(value: Any) -> str:
    """Read the name of an image; "" for none, where [defaults] has one."""
    return "" if value == "" else str(_image(value))


def _unquoted(value: object) -> str:
    return ", without quotes" if isinstance(value, str) else ""


def boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise Wrong(f"must be true or false{_unquoted(value)}, not {show(value)}")
    return value


def whole(low: int, high: int) -> Reader:
    """Return a reader for a whole number from `low` to `high`."""

    def read(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise Wrong(f"must be a whole number from {low} to {high}{_unquoted(value)}, not {show(value)}")
        return value

    return read


def seconds(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MAX_SECONDS:
        most = f"{MAX_SECONDS:.0f}"
        raise Wrong(f"must be a number of seconds from 0 to {most}{_unquoted(value)}, not {show(value)}")
    return float(value)


def workdir(value: Any) -> str:
    """Read a folder on the node (`~` is expanded there) that only orchestrate uses for code, runs or logs."""
    given = text(value)
    if re.search(r"\$\{?[A-Za-z_]", given):  # a folder may well be called $(here)
        raise Wrong(f"contains $, but no shell expands it: {show(given)}; write its value")
    if ":" in given:
        raise Wrong(f"must not contain a colon, which separates folders in PYTHONPATH: {show(given)}")
    plain = normal(given)
    if not given.startswith(("/", "~")) or ".." in plain.split("/"):
        raise Wrong(f"must be a full path or start with ~/, without .., not {show(given)}")
    if plain in _SHARED.split() or (plain.startswith("~") and "/" not in plain):
        raise Wrong(f'must be a dedicated folder, not {show(given)}; write "{plain.rstrip("/")}/orchestrate"')
    return given.rstrip("/") or "/"


def normal(given: str) -> str:
    """Return a path without redundant parts: doubled slashes, `.`."""
    return "/" * given.startswith("/") + "/".join(part for part in given.split("/") if part not in ("", "."))


def folder(value: Any) -> str:
    """Read a folder on the nodes, a full path or relative to where the command runs."""
    given = text(value).rstrip("/")
    if not given or given in {".", "~"} or ".." in given.split("/"):
        raise Wrong(f'must name one folder, such as "backup" or "~/backup", not {show(value)}')
    return given


def one_of(choices: type[StrEnum]) -> Reader:
    """Return a reader for a member of an enumeration."""
    options = [choice.value for choice in choices]

    def read(value: Any) -> StrEnum:
        if value not in options:
            all_of_them = listed([f'"{word}"' for word in options], "or")
            meant = nearest(value, options) if isinstance(value, str) else None
            raise Wrong(
                f"must be {all_of_them}, not {show(value)}" + (f'; did you mean "{meant}"?' if meant else "")
            )
        return choices(value)

    return read


def via(value: Any) -> Way | tuple[str, ...]:
    """Read the name of a transport, or a command that leads to a shell on {host}."""
    if not isinstance(value, list):
        return Way(one_of(Way)(value))
    arguments = texts(value)
    if not any("{host}" in word for word in arguments):
        raise Wrong('must contain {host}, as in ["docker", "exec", "-i", "{host}", "sh", "-c"]')
    return arguments


def devices(value: Any) -> tuple[str, ...]:
    """Read the numbers or UUIDs of GPUs."""
    if not isinstance(value, list):
        raise Wrong(f"must be a list such as [0, 1], not {kind(value)}")
    given = [show(item) if isinstance(item, int) else item for item in value]
    for item in given:
        if not isinstance(item, str) or not _DEVICE.fullmatch(item):
            raise Wrong(f"{show(item)} is not a GPU; write its number or its UUID (nvidia-smi -L)")
    return _different(given)


def _different(given: Sequence[str]) -> tuple[str, ...]:
    if twice := next((word for word in given if given.count(word) > 1), None):
        raise Wrong(f"lists {twice} twice")
    return tuple(given)


def env(value: Any) -> dict[str, str]:
    """Read a table of variables and their texts."""
    if not isinstance(value, dict):
        raise Wrong(f'must be a table such as {{ NAME = "value" }}, not {kind(value)}')
    for name, item in value.items():
        # The value is not shown: it may be a secret in the wrong place.
        mistyped = None if isinstance(item, str) else f"must be text in quotes, not {kind(item)}"
        if mistake := name_mistake(name) or mistyped:
            raise Wrong(f"{show(name)} {mistake}")
    return dict(value)


def names(value: Any) -> tuple[str, ...]:
    """Read names of environment variables."""
    given = texts(value)
    for name in given:
        if "=" in name:
            raise Wrong(f"{show(name.partition('=')[0])} has a value; list only the name")
        if mistake := name_mistake(name):
            raise Wrong(f"{show(name)} {mistake}")
    return _different(given)


def texts(value: Any) -> tuple[str, ...]:
    """Read a list of texts, each one line and not empty."""
    if not isinstance(value, list):
        example = f"[{show(value)}]" if isinstance(value, str) else '["a", "b"]'
        raise Wrong(f"must be a list such as {example}, not {kind(value)}")
    for item in value:
        if not isinstance(item, str) or not item.strip() or "\0" in item or "\n" in item:
            raise Wrong(f"must be a list of lines in quotes, but contains {show(item)}")
    return tuple(value)


def command(value: Any) -> tuple[str, ...]:
    """Read an argv; a text is split as a shell would split it."""
    argv = words(value)
    if not argv[0].strip():
        raise Wrong("is empty; omit the key")
    if "=" in argv[0].partition("/")[0]:
        raise Wrong(f"starts with {show(argv[0])}, which only a shell understands; write bash -c '...'")
    # The program would receive these as they are, which is not what the author of one line means.
    in_a_line = isinstance(value, str) and PurePath(argv[0]).name not in SHELLS
    for place, word in enumerate(argv if in_a_line else ()):
        # The node expands ~ in the program itself.
        expanded = _EXPANDED.search(word) and (place or not word.startswith("~"))
        if word in _OPERATORS or word.endswith(";") or expanded:
            raise Wrong(f"contains {show(word)}, but no shell runs it; write bash -c '...'")
    return argv


def words(value: Any) -> tuple[str, ...]:
    """Read words of a command line; a text is split as a shell would split it."""
    argv = _split(value) if isinstance(value, str) else value
    if not isinstance(argv, list) or not all(isinstance(word, str) for word in argv):
        raise Wrong('must be text or a list such as ["train.py", "--epochs", "3"]')
    if not argv:
        raise Wrong("is empty; omit the key")
    if any("\0" in word for word in argv):
        raise Wrong("contains a NUL character")
    return tuple(argv)


def shell_text(value: Any) -> str:
    """Read a shell text: not empty; lines and tabs are accepted."""
    if not isinstance(value, str) or not value.strip() or "\0" in value:
        raise Wrong("must be text in quotes, not empty; omit the key if there is nothing to run")
    return value


def validate(value: Any) -> str:
    """Read a user's own command line."""
    given = shell_text(value)
    _split(given)
    return given


def _split(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError as error:
        raise Wrong(f"cannot be split into words: {error} in {show(line)}") from error


def interpreter(value: Any) -> str:
    """Read a version of Python (3.11) or a program."""
    given = text(value)
    return given if re.fullmatch(r"3(\.\d{1,2}){1,2}", given) else str(program(given))


def url(value: Any) -> str:
    """Read the address of a package index, which every user of a host may see in its process list."""
    given = text(value)
    if re.match(r"[a-z]+://[^/]*@", given):  # not shown
        raise Wrong("contains a login, which others could read; write it into ~/.netrc on every machine")
    if not re.match(r"(https?|file)://[^/\s]*/?", given):
        raise Wrong(f"must be the URL of a package index (https://...), not {show(given)}")
    return given


def data_sets(value: Any) -> tuple[str, ...]:
    """Read names of tensorflow-datasets: name, name/config, either with a version."""
    given = texts(value)
    for name in given:
        if not _SET.fullmatch(name):
            raise Wrong(f'{show(name)} is not the name of a data set; write "mnist" or "my_dataset:1.0.0"')
    return _different(given)


def data_paths(value: Any) -> tuple[str, ...]:
    """Read folders and files of this machine, each with a distinct name."""
    given = tuple(path.rstrip("/") for path in texts(value))
    names = [path.rpartition("/")[2] for path in given]
    for path, name in zip(given, names, strict=True):
        if name in {"", ".", "..", "~"}:
            raise Wrong(f"{show(path or '/')} is not a folder or file with a name")
        if names.count(name) > 1:
            raise Wrong(f"lists two that end in {name}; tasks find them by that name")
    return given
