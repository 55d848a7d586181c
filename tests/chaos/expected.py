"""The correct ends of a run after each fault, as a table for judging rounds. Pure.

Where a race decides, several ends are correct; each is as narrow as possible. {task} and {host} are the
victim's, {peer} is the other task of a pair.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.chaos.rounds import Round

LATE = ("spare-back", "spare-rejoin")  # the lost host comes back while the spare trains
LATE_ATTEMPTS = 2
ANY = "any"  # task


@dataclass(frozen=True)
class Ending:
    status: int
    outcome: str
    cause: str = ""  # a regular expression for the start of the cause
    task: str = ""  # the one to blame
    kind: str = ""

    def __str__(self) -> str:
        return f"{self.status} {self.outcome} {self.cause!r} {self.task} {self.kind}".rstrip()


OK = Ending(0, "succeeded", "$")


def failed(cause: str, task: str = "{task}", kind: str = "") -> Ending:
    return Ending(1, "failed", cause, task, kind)


def by(what: str, kind: str) -> Ending:
    """Return an end with the victim as its cause."""
    return failed(r"{task} on {host} " + what, kind=kind)


# Before its tasks ran: 3 while no part of it can be on a node, 1 after.
NEVER = (Ending(3, "cluster", "(connect|preflight|stage): {host}"), Ending(1, "cluster", "launch: {host}"))
# A new keeper cannot continue a run that never started.
KEEPERLESS = Ending(1, "cluster", "launch: its keeper ended before ")

# The same with a local validation in between, which waits for a host that may return.
UNTRIED = Ending(1, "cluster", "(validate|launch): {host}")
CHECKED = (Ending(3, "cluster", "(connect|preflight|stage): {host}"), UNTRIED)

# Depends on whether the other tasks or the controller notice first.
HOST_LOST = failed(r"{host}: the host has not answered since .* {task} is lost with it$", kind="host-lost")
FALLS_SILENT = by(r"stopped answering, according to worker/\d+ on node\d", kind="peer")

# A run survives every other fault.
TRAINING: dict[str, tuple[Ending, ...]] = {
    "task-kill": (by("was killed by SIGKILL", "signal"),),
    # Until its first victim's memory is freed, the kernel may also kill the supervisor.
    "oom": (by("ran out of memory(?: after .*)?: the kernel killed (?:it|a process)", "out-of-memory"),),
    "supervisor-kill": (by("is lost.*: its supervisor was killed by signal 9", "lost"),),
    "pause-long": (FALLS_SILENT, HOST_LOST),
    "node-stop": (FALLS_SILENT, HOST_LOST),
    "node-restart": (failed(r"{host}: .*restarted", kind="rebooted"), FALLS_SILENT),
    "link-cut-long": (FALLS_SILENT, HOST_LOST),
    # Each side reports that the other fell silent; the remaining tasks report both.
    "pair-cut-long": (
        FALLS_SILENT,
        failed(r"{peer} on .* stopped answering, according to", "{peer}", "peer"),
        failed(r"worker/\d on node\d exited with 1 after .*: UnavailableError: ", ANY, "peer"),
    ),
    "split-long": (
        failed(r"worker/\d on .* stopped answering, according to", ANY, "peer"),
        failed(r"worker/\d on node\d exited with 1 after .*: UnavailableError: ", ANY, "peer"),
    ),
    "too-few": (FALLS_SILENT, HOST_LOST),
    "check-stop": (),
    "check-cut": (),
}

# Results of a fault before the tasks run; it may also strike them once they do.
EARLY: dict[str, tuple[Ending, ...]] = {
    "guard-kill": NEVER[1:],  # in the milliseconds before its supervisor has replied
    "agent-kill": NEVER,
    "sshd-kill": NEVER,
    "keeper-kill": (KEEPERLESS,),
    "pause-long": NEVER,
    "node-stop": NEVER,
    "node-restart": (*NEVER, OK),
    "link-cut-long": NEVER,
    "disk-full": NEVER,
    "check-stop": CHECKED,
    "check-cut": CHECKED,
}

# The same for a fault in the local validation or later.
VALIDATING: dict[str, tuple[Ending, ...]] = {"check-stop": (UNTRIED,), "check-cut": (UNTRIED,)}


def endings(round_: Round, *, struck: bool) -> tuple[Ending, ...]:
    """Return the correct ends of a round."""
    if not struck:  # the run ended before the fault had a target
        return (OK,)
    if round_.restarts and round_.fault != "too-few":
        return (OK,)
    found = TRAINING.get(round_.fault, (OK,))
    early = EARLY.get(round_.fault, ())
    if round_.moment == "validate":
        early = VALIDATING.get(round_.fault, early)
    return (*found, *early) if round_.early else found


def replaced(round_: Round, *, struck: bool) -> tuple[tuple[str, str], ...]:
    """Return (host, by) of every host that must be replaced, "" if the run continues without it."""
    if not struck or not round_.restarts:
        return ()
    lost = round_.hosts[round_.victim]
    by = dict.fromkeys(("spare-stop", "spare-cut", "spare-away", *LATE), round_.spare)
    without = dict.fromkeys(("spare-gone", "fewer-stop", "fewer-cut", "fewer-away"), "")
    return tuple((lost, found) for fault, found in (by | without).items() if fault == round_.fault)


def fits(ending: Ending, round_: Round, ended: Mapping[str, Any]) -> bool:
    """Return whether a run's RunEnded matches this end."""

    def filled(text: str) -> str:
        for name, value in (
            ("{task}", f"worker/{round_.victim}"),
            ("{host}", round_.hosts[round_.victim]),
            ("{peer}", f"worker/{round_.peer}"),
        ):
            text = text.replace(name, value)
        return text

    return (
        (ended["status"], ended["outcome"]) == (ending.status, ending.outcome)
        and re.match(filled(ending.cause), ended["cause"]) is not None
        and ended["kind"] in ((ending.kind,) if ending.outcome == "failed" else ("", "start"))
        and filled(ending.task) in (ended["cause_task"], ANY)
    )
