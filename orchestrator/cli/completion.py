"""`orchestrate completion`: shell completion of verbs, options, runs, hosts and tasks.

A shell runs `orchestrate` itself for an answer, with _ARGCOMPLETE set. A Tab reads only local files and
prints nothing: what cannot be read is not offered.
"""

import argparse
import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

import argcomplete
from argcomplete.completers import FilesCompleter
from argcomplete.shell_integration import shellcode

from orchestrator.cli.args.parser import build
from orchestrator.cli.desk.out import say
from orchestrator.errors import ExitStatus, OrchestrateError
from orchestrator.model import RunPlan
from orchestrator.store import find, runs
from orchestrator.store.standing import over
from orchestrator.text import plain
from orchestrator.verbs import Caller, inventory

_MOST = 100  # the newest runs
_FILES = FilesCompleter(allowednames=("toml",))
_Completer = Callable[[str, argparse.Namespace], Iterable[str]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), metavar="SHELL", help="bash, zsh or fish")


def main(arguments: argparse.Namespace) -> int:
    say(*shellcode(["orchestrate"], shell=arguments.shell).strip("\n").split("\n"))
    return ExitStatus.OK


def answer() -> None:
    """Write the matching words and leave the process."""
    typed = os.environ["COMP_LINE"].split()
    parser, verbs = build(*typed[1:2])
    for verb in verbs.values():
        for action in verb._actions:  # noqa: SLF001 - argparse has no other way to list them
            if completer := _COMPLETERS.get(action.dest):
                vars(action)["completer"] = _quietly(completer)
    argcomplete.autocomplete(parser, always_complete_options=False)


def _quietly(completer: _Completer) -> Callable[..., list[str]]:
    def complete(*, prefix: str, parsed_args: argparse.Namespace, **_: object) -> list[str]:
        with contextlib.suppress(OrchestrateError, OSError, ValueError):
            return [word for word in completer(prefix, parsed_args) if word == plain(word)]
        return []

    return complete


def _runs(prefix: str, typed: argparse.Namespace) -> Iterator[str]:
    """Offer ids and names, the newest first; for `stop` only runs that are not over."""
    for folder in islice(runs(), _MOST):
        with contextlib.suppress(OrchestrateError):
            if typed.verb != "stop" or over(folder) is None:
                name = folder.read_plan().name
                yield from (word for word in (folder.run, name) if word and word.startswith(prefix))


def _hosts(prefix: str, typed: argparse.Namespace) -> Iterator[str]:
    """Offer the inventory's hosts, after any that precede a comma."""
    before, comma, _ = prefix.rpartition(",")
    taken = before.split(",")
    source = getattr(typed, "hosts", None)
    for host in inventory.load(None if source == prefix else source, Caller()).hosts:
        if host.name not in taken:
            yield f"{before}{comma}{host.name}"


def _tasks(_prefix: str, typed: argparse.Namespace) -> Iterator[str]:
    """Offer the tasks of the run; for a launch those of the previous one."""
    yield from (str(spec.id) for spec in _plan(typed).tasks)


def _plan(typed: argparse.Namespace) -> RunPlan:
    if (folder := find(getattr(typed, "run", None))) is None:
        raise FileNotFoundError
    return folder.read_plan()


_COMPLETERS: dict[str, _Completer] = {
    "run": _runs,
    "diff": _runs,
    "replay": _runs,
    "continues": _runs,
    "hosts": lambda prefix, typed: (*(_FILES(prefix) if "," not in prefix else ()), *_hosts(prefix, typed)),
    "only": _hosts,
    "exclude": _hosts,
    "task": _tasks,
    "attach": _tasks,
    "source": lambda prefix, typed: (*_tasks(prefix, typed), *(host.name for host in _plan(typed).hosts)),
}
