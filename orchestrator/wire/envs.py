"""Training environments on a node: looked for, made by uv, and how far that has come."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from msgspec import Meta

from orchestrator.wire.fields import Count, Folder, Reply, Seconds, Words
from orchestrator.wire.request import Request

_Machine = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_]{1,32}\Z")]
_Libc = Annotated[str, Meta(pattern=r"\A(?:[a-z]{1,16} [0-9.]{1,16})?\Z")]
_Version = Annotated[str, Meta(pattern=r"\A[0-9]{1,3}\.[0-9]{1,3}\.[0-9]{1,3}\Z")]


class EnvLooked(Reply, frozen=True):
    path: Folder
    ready: bool  # it is whole, and its Python runs
    machine: _Machine
    libc: _Libc  # "glibc 2.36"; "" for another one


class EnvLook(Request[EnvLooked], frozen=True, kw_only=True):
    OP = "env_look"
    workdir: str
    name: str


class Interpreter(Reply, frozen=True):
    path: Folder
    version: _Version
    implementation: Words


class EnvFind(Request[Interpreter], frozen=True, kw_only=True):
    """The interpreter that fits `python`, a version or a program, by the search of the uv at a path."""

    OP = "env_find"
    uv: str
    python: str


class EnvMade(Reply, frozen=True):
    made: bool  # not by another one meanwhile
    path: Folder
    versions: Mapping[Words, Words]  # of what was imported there
    seconds: Seconds


class EnvMake(Request[EnvMade], frozen=True, kw_only=True):
    """Make an environment from the lock in the payload, of an index or of a folder of wheels.

    With `ask_first` an index that does not answer one question is not waited for: there is another way.
    """

    OP = "env_make"
    workdir: str
    name: str
    uv: str
    interpreter: str
    index: str | None
    wheels: str | None
    ask_first: bool = False


class EnvSteps(Reply, frozen=True):
    step: Words
    done: Count  # bytes of what is fetched, packages of what is unpacked


class EnvProgress(Request[EnvSteps], frozen=True, kw_only=True):
    OP = "env_progress"
    workdir: str
    name: str
