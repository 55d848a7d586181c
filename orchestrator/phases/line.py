"""Waiting for machines that are shared: first come, first served, and all hosts or none."""

from __future__ import annotations

import time

from orchestrator import wire
from orchestrator.events import Noted, Phase
from orchestrator.fleet import Cancelled
from orchestrator.groups import grouped
from orchestrator.phases.connect import machine
from orchestrator.phases.context import Run, fail_on
from orchestrator.phases.restart import recovery
from orchestrator.ranges import fold

_TURN, _MOMENT = 1.0, 0.1  # seconds between two looks; where somebody decides just now


def wait_in_line(run: Run) -> None:
    """Return when all hosts are ours; raise PhaseFailed for one that is lost in line.

    Every place is taken before any machine is: of two runs that share hosts, the one that was launched later
    finds the other one's place on each of them.
    """
    told = ""
    _stand(run, go=False)
    while waits := {name: reply for name, reply in _stand(run, go=True).items() if not reply.granted}:
        _stand(run, go=False)  # all or none
        behind = grouped((_words(reply.ahead[0]), name) for name, reply in waits.items() if reply.ahead)
        words = "; ".join(f"{fold(hosts)} for {who}" for who, hosts in behind.items())
        if words and words != told:
            run.emit(Noted(f"in line: waits on {words}"))
            told = words
        if run.stop.wait(_TURN if behind else _MOMENT):
            raise Cancelled


def _stand(run: Run, *, go: bool) -> dict[str, wire.InLine]:
    """Ask all hosts, again where one was lost and is back."""
    since, owner = round(run.plan.created, 3), run.plan.owner
    places = {
        host.name: wire.StandInLine(run=run.id, owner=owner, machine=machine(host), since=since, go=go)
        for host in run.hosts
    }
    while (answers := run.fleet.ask(places)).bad:
        recovery.gather(run, run.timings.host_return)
        if run.stop.asked:
            raise Cancelled
        others = {name: error for name, error in answers.bad.items() if not error.lost}
        fail_on(run, Phase.CONNECT, recovery.losses(run) or others)
    return answers.good


def _words(place: wire.Ahead) -> str:
    when = time.strftime("%a %H:%M", time.localtime(place.since))
    return f"run {place.run} of {place.owner} ({'there' if place.runs else 'in line'} since {when})"
