"""Watching a run that was started here: loaded once its keeper is at work, which does not wait for it."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Collection, Sequence

from orchestrator.checks.network import without
from orchestrator.cli.desk import watch
from orchestrator.cli.desk.interrupts import Interrupts
from orchestrator.cli.desk.out import tell
from orchestrator.errors import ExitStatus
from orchestrator.events import CheckReported, HostFailed, PairReported, RunEnded, Stamped
from orchestrator.model import Fold, Host
from orchestrator.ranges import expand_all, fold
from orchestrator.render import Look, choose
from orchestrator.store import RunFolder, RunReader
from orchestrator.text import count

BEHIND = 8 << 20  # bytes of one log that a terminal may be behind before lines are dropped


def follow(folder: RunFolder, arguments: argparse.Namespace, interrupts: Interrupts) -> int:
    """Watch a run that was started here until it ends."""
    tasks = {str(task) for task in arguments.task}

    def wanted(task: str) -> bool:
        return not tasks or task in tasks

    folding = Fold(arguments.fold) if arguments.fold else None
    look = Look(fold=folding, wanted=wanted)
    renderer = choose(sys.stdout, arguments.json, sys.stderr, look)
    drawn = sys.stdout.isatty() and not arguments.json
    behind = BEHIND if drawn else None
    reader = RunReader(folder, wanted=wanted, drop_behind=behind, blocks=renderer.takes_blocks)
    plan = folder.read_plan()
    hosts = plan.hosts
    readiness = Readiness(hosts)

    if not drawn and not arguments.json and folding is None and len(plan.tasks) > 1:
        tell("note: a pipe gets every task's lines; --fold similar shows those that are alike once")
    status = watch.own(folder, reader, renderer, interrupts, heard=readiness.hear)
    if (out := readiness.out()) and not arguments.json and arguments.verb == "launch":
        tell(_without(len(hosts), out, arguments))
    return status


def _without(total: int, out: Collection[str], arguments: argparse.Namespace) -> str:
    """Name the option for the other hosts, which are perhaps not ready: nobody may have looked at them."""
    names = shlex.quote(fold([*expand_all(arguments.exclude or ""), *out]))
    return f"`--exclude {names}` trains on the other {total - len(out)} of {count(total, 'host')}"


class Readiness:
    """Which hosts kept a run from its start, as its events tell it."""

    def __init__(self, hosts: Sequence[Host]) -> None:
        self._hosts = hosts
        self._checks: list[CheckReported] = []
        self._pairs: list[PairReported] = []
        self._failed: set[str] = set()
        self._never_began = False

    def hear(self, stamped: Stamped) -> None:
        match stamped.event:
            case CheckReported() as check:
                self._checks.append(check)
            case PairReported() as pair:
                self._pairs.append(pair)
            case HostFailed(host=host):
                self._failed.add(host)
            case RunEnded(status=status):
                self._never_began = status == ExitStatus.CLUSTER

    def out(self) -> tuple[str, ...]:
        """The hosts without which it could have begun; () where there is no such way, or it did begin."""
        if not self._never_began:
            return ()
        return without(self._hosts, self._checks, self._pairs, self._failed)
