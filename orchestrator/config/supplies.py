"""Readers of what tasks are supplied with: the packages of [env], the files of [data]."""

from __future__ import annotations

import re
from typing import Any

from orchestrator.config.mistakes import Wrong, show
from orchestrator.config.values import program, text, texts

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
