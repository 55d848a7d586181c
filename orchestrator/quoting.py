"""Quoting for shells and TOML by each language's own library; the only place that quotes."""

import shlex
from collections.abc import Sequence


def command_line(argv: Sequence[str]) -> str:
    """Return a command line that a login shell splits into `argv` again.

    The shell expands a leading `~/` of the program. In fish no word may contain a backslash, and in csh no
    `!` or newline: the commands that start our agent contain none.
    """
    program, *arguments = argv
    return " ".join([path(program), *map(shlex.quote, arguments)])


def path(name: str) -> str:
    """Return a path for a shell, which expands its leading `~/`."""
    return f"~/{shlex.quote(name[2:])}" if name[:2] == "~/" and name[2:] else shlex.quote(name)


def shown(word: str) -> str:
    """Return an argument on one line, as typed in bash or zsh; unprintable characters are escaped."""
    if word.isprintable():
        return shlex.quote(word)
    plain = (char if char.isprintable() and char not in "\\'" else f"\\U{ord(char):08x}" for char in word)
    return f"$'{''.join(plain)}'"


def toml(value: object) -> str:
    """Return a value of hosts.toml on one line."""
    import tomli_w  # noqa: PLC0415 - few verbs write an inventory

    return tomli_w.dumps({"key": value}).removeprefix("key = ").rstrip("\n")
