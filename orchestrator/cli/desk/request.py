"""From a command line to the request of its verb."""

from __future__ import annotations

import argparse
from typing import TypeVar

from msgspec import Struct

from orchestrator.cli.desk.person import Person
from orchestrator.requests import Selection, make
from orchestrator.verbs import inventory

_T = TypeVar("_T", bound=Struct)


def selection_of(arguments: argparse.Namespace) -> Selection:
    return make(Selection, vars(arguments))


def request_of(kind: type[_T], arguments: argparse.Namespace, person: Person, **more: object) -> _T:
    """Return a request from the options named like its fields, and the inventory they select."""
    given = {**vars(arguments), **more}
    if "inventory" not in given:
        given["inventory"] = inventory.chosen(selection_of(arguments), person)
    if given.get("env") is not None:
        given["env"] = dict(given["env"])
    return make(kind, given)
