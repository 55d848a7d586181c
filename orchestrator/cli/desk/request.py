"""From a command line to the request of its verb."""

from __future__ import annotations

import argparse
import os
from typing import TypeVar

from msgspec import Struct

from orchestrator.cli.desk.person import Person
from orchestrator.model import Terminal
from orchestrator.requests import LaunchRequest, Selection, make
from orchestrator.verbs import inventory

_T = TypeVar("_T", bound=Struct)


def selection_of(arguments: argparse.Namespace) -> Selection:
    return make(Selection, vars(arguments))


def request_of(kind: type[_T], arguments: argparse.Namespace, person: Person, **more: object) -> _T:
    """Make a request of the options named like its fields, and of the inventory that they name."""
    given = {**vars(arguments), **more}
    if "inventory" not in given:
        given["inventory"] = inventory.chosen(selection_of(arguments), person)
    if given.get("env") is not None:
        given["env"] = dict(given["env"])
    return make(kind, given)


def launch_request(arguments: argparse.Namespace, person: Person) -> LaunchRequest:
    terminal = None
    if (task := arguments.attach) is not None and not arguments.dry_run:
        size = os.get_terminal_size()
        terminal = Terminal(task, size.lines, size.columns, os.environ.get("TERM", "xterm"))
    other_ports = arguments.other_ports or arguments.hosts == inventory.SLURM  # nobody chose those
    return request_of(LaunchRequest, arguments, person, terminal=terminal, other_ports=other_ports)
