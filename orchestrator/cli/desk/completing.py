"""Completion of our command line: verbs, options, and the runs, hosts and tasks there are.

A shell runs `orchestrate` itself for an answer, with _ARGCOMPLETE set: argcomplete then stands in for the
command. Only what this machine has is looked at, and nothing is ever said: a Tab reaches no host.
"""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import argcomplete
from argcomplete.completers import BaseCompleter, DirectoriesCompleter, FilesCompleter

from orchestrator.cli.args import options, parser
from orchestrator.cli.desk import inventory
from orchestrator.errors import OrchestrateError
from orchestrator.model import RunPlan
from orchestrator.store import RunFolder, find, runs
from orchestrator.text import plain

_MOST = 200  # runs, the newest
_NAMED = 20  # of these are asked for their --name

Completer = Callable[..., Iterable[str]]


def answer() -> None:
    """Write the words that fit and leave the process; return when no shell asks."""
    ours, verbs = parser.build()
    line, point = os.environ.get("COMP_LINE", "").encode(), os.environ.get("COMP_POINT", "")
    behind = b" -- " in line[: int(point) if point.isdigit() else None]
    for verb, sub in verbs.items():
        if behind and options.takes_command(sub):
            sub.add_argument("program", nargs="*", help=argparse.SUPPRESS)
        for action in sub._actions:  # noqa: SLF001 - argparse has no other way to list them
            if completer := _COMPLETERS.get(f"{verb} {action.dest}", _COMPLETERS.get(action.dest)):
                vars(action)["completer"] = completer
    # Where a word of another kind may stand, an option is offered when a dash was typed.
    argcomplete.autocomplete(ours, always_complete_options=False, default_completer=_Nothing())


def quietly(completer: Completer) -> Completer:
    """Make a completer that offers nothing where something cannot be read."""

    def complete(**known: object) -> Iterable[str]:
        with contextlib.suppress(OrchestrateError, OSError, ValueError):
            return list(completer(**known))
        return []

    return complete


@quietly
def run_ids(prefix: str = "", **_: object) -> Iterator[str]:
    """Offer ids, the newest first, and the names of the last ones."""
    folders = list(runs())[:_MOST]
    yield from (folder.run for folder in folders if folder.run.startswith(prefix))
    for folder in folders[:_NAMED]:
        with contextlib.suppress(OrchestrateError):
            name = folder.read_plan().name  # of a run that was taken over: a node's word
            if name and name.startswith(prefix) and name == plain(name):
                yield name


@quietly
def host_names(parsed_args: argparse.Namespace, prefix: str = "", **_: object) -> Iterator[str]:
    """Yield the inventory's hosts, behind the commas that stand there already."""
    before, comma, _last = prefix.rpartition(",")
    taken = set(before.split(","))
    for host in inventory.load(parsed_args.hosts).hosts:
        if host.name not in taken:
            yield f"{before}{comma}{host.name}"


@quietly
def task_names(parsed_args: argparse.Namespace, **_: object) -> Iterator[str]:
    yield from (str(spec.id) for spec in _plan(parsed_args).tasks)


@quietly
def task_or_host(parsed_args: argparse.Namespace, **_: object) -> Iterator[str]:
    plan = _plan(parsed_args)
    yield from (*(str(spec.id) for spec in plan.tasks), *(host.name for host in plan.hosts))


@quietly
def ssh_aliases(**_: object) -> tuple[str, ...]:
    """The names that ~/.ssh/config gives to hosts."""
    from orchestrator.cli.desk.choosing import aliases

    return aliases(Path("~/.ssh/config").expanduser())


def _plan(parsed_args: argparse.Namespace) -> RunPlan:
    folder: RunFolder | None = find(getattr(parsed_args, "run", None))
    if folder is None:
        raise FileNotFoundError
    return folder.read_plan()


class _Nothing(BaseCompleter):
    """The completer of a word that is the user's own."""

    def __call__(self, **_: object) -> tuple[str, ...]:
        return ()


_FILES = FilesCompleter()
_COMPLETERS: dict[str, Completer] = {
    "run": run_ids,
    "hosts": FilesCompleter(allowednames=("toml",)),
    "only": host_names,
    "exclude": host_names,
    "task": task_names,
    "source": task_or_host,
    "host": ssh_aliases,
    "hostfile": _FILES,
    "ssh_config": _FILES,
    "python": _FILES,
    "program": _FILES,
    "init to": _FILES,
    "pull to": DirectoriesCompleter(),
    "code": DirectoriesCompleter(),
    "pull code": _Nothing(),
}
