"""How a run must end after a fault: the table that the rounds are judged by. Pure.

Where a race decides, several ends are right; each is as narrow as it can be. {task} and {host} are the
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
    cause: str = ""  # a regular expression that matches from the cause's beginning
    task: str = ""  # to blame
    kind: str = ""

    def __str__(self) -> str:
        return f"{self.status} {self.outcome} {self.cause!r} {self.task} {self.kind}".rstrip()


OK = Ending(0, "succeeded", "$")
STOPPED = Ending(130, "stopped", "stopped by the user$")


def failed(cause: str, task: str = "{task}", kind: str = "") -> Ending:
    return Ending(1, "failed", cause, task, kind)


def by(what: str, kind: str) -> Ending:
    """The victim, and what became of it."""
    return failed(r"{task} on {host} " + what, kind=kind)


# Before its tasks ran: 3 while nothing of it can be on a node, 1 after.
NEVER = (Ending(3, "cluster", "(connect|preflight|stage): {host}"), Ending(1, "cluster", "launch: {host}"))
# A new keeper cannot go on with what was never started.
KEEPERLESS = Ending(1, "cluster", "launch: its keeper was gone before ")

# The same with a local training between them, in which a host is waited for that may come back.
UNTRIED = Ending(1, "cluster", "(validate|launch): {host}")
CHECKED = (Ending(3, "cluster", "(connect|preflight|stage): {host}"), UNTRIED)

# Whether the others or the controller notice first.
HOST_LOST = failed(r"{host}: the host stopped answering at .*, and {task} is lost with it$", kind="host-lost")
FALLS_SILENT = by(r"stopped answering, according to worker/\d+ on node\d", kind="peer")

TRAINING: dict[str, tuple[Ending, ...]] = {
    "none": (OK,),
    "task-kill": (by("was killed by SIGKILL", "signal"),),
    "task-stop": (FALLS_SILENT,),
    "task-hang": (STOPPED,),
    "folder-gone": (by("is lost.*: its folder on this machine was removed", "lost"),),
    "task-exit": (by(r"exited with 1 after .*: ValueError: told to fail$", "exception"),),
    # Until the memory of its first victim is counted as free the kernel may take another: the supervisor.
    "oom": (by("ran out of memory(?: after .*)?: the kernel killed (?:it|a process)", "out-of-memory"),),
    "supervisor-kill": (by("is lost.*: its supervisor was killed by signal 9", "lost"),),
    "guard-kill": (OK,),
    "agent-kill": (OK,),
    "sshd-kill": (OK,),
    "keeper-kill": (OK,),
    "pause": (OK,),
    "pause-long": (FALLS_SILENT, HOST_LOST),
    "node-stop": (FALLS_SILENT, HOST_LOST),
    "node-restart": (failed(r"{host}: .*restarted", kind="rebooted"), FALLS_SILENT),
    "link-cut": (OK,),
    "link-cut-long": (FALLS_SILENT, HOST_LOST),
    "slow": (OK,),
    "lossy": (OK,),
    "pair-cut": (OK,),
    # Each side says that the other fell silent; the tasks beside them, that both did.
    "pair-cut-long": (
        FALLS_SILENT,
        failed(r"{peer} on .* stopped answering, according to", "{peer}", "peer"),
        failed(r"worker/\d on node\d exited with 1 after .*: UnavailableError: ", ANY, "peer"),
    ),
    "split": (OK,),
    "split-long": (
        failed(r"worker/\d on .* stopped answering, according to", ANY, "peer"),
        failed(r"worker/\d on node\d exited with 1 after .*: UnavailableError: ", ANY, "peer"),
    ),
    "keeper-cut": (OK,),
    "disk-full": (OK,),
    "controller-full": (OK,),
    "clock-jump": (OK,),
    "stop": (STOPPED,),
    "stop-now": (STOPPED,),
    "spare-stop": (OK,),
    "spare-cut": (OK,),
    "spare-gone": (OK,),
    "spare-back": (OK,),
    "spare-rejoin": (OK,),
    "fewer-stop": (OK,),
    "fewer-cut": (OK,),
    "too-few": (FALLS_SILENT, HOST_LOST),
    "spare-away": (OK,),
    "fewer-away": (OK,),
    "check-none": (OK,),
    "check-sshd": (OK,),
    "check-stop": (),
    "check-cut": (),
    "check-keeper": (),
    "check-viewer": (OK,),
    "check-both": (),
    "sync-full": (OK,),
}

# What may come of a fault that strikes before the tasks run; it may also meet them when they do.
EARLY: dict[str, tuple[Ending, ...]] = {
    "guard-kill": NEVER[1:],  # in the milliseconds before its supervisor has answered
    "agent-kill": NEVER,
    "sshd-kill": NEVER,
    "keeper-kill": (KEEPERLESS,),
    "pause-long": NEVER,
    "node-stop": NEVER,
    "node-restart": (*NEVER, OK),
    "link-cut-long": NEVER,
    "disk-full": NEVER,
    "check-sshd": CHECKED,
    "check-stop": CHECKED,
    "check-cut": CHECKED,
    "check-keeper": (KEEPERLESS,),
    "check-both": (KEEPERLESS,),
    "sync-full": CHECKED,
}

# The same, of one that strikes in the local training or later.
VALIDATING: dict[str, tuple[Ending, ...]] = {
    "check-sshd": (),
    "check-stop": (UNTRIED,),
    "check-cut": (UNTRIED,),
}


def endings(round_: Round, *, struck: bool) -> tuple[Ending, ...]:
    """The ends that are right for a round."""
    if not struck:  # the run was over before there was anything to strike at
        return (OK,)
    if round_.restarts and round_.fault != "too-few":
        return (OK,)
    found = TRAINING[round_.fault]
    early = EARLY.get(round_.fault, ())
    if round_.moment == "validate":
        early = VALIDATING.get(round_.fault, early)
    return (*found, *early) if round_.early else found


def replaced(round_: Round, *, struck: bool) -> tuple[tuple[str, str], ...]:
    """(host, by) of every host that has to be replaced, "" where the run goes on without it."""
    if not struck or not round_.restarts:
        return ()
    lost = round_.hosts[round_.victim]
    by = dict.fromkeys(("spare-stop", "spare-cut", "spare-away", *LATE), round_.spare)
    without = dict.fromkeys(("spare-gone", "fewer-stop", "fewer-cut", "fewer-away"), "")
    return tuple((lost, found) for fault, found in (by | without).items() if fault == round_.fault)


def fits(ending: Ending, round_: Round, ended: Mapping[str, Any]) -> bool:
    """Whether a run ended that way, by its RunEnded."""

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
