"""Ending what runs: ask, wait, and prove that nothing is left."""

from __future__ import annotations

import time
from typing import Any

from orchestrator.events import StopRequested
from orchestrator.fleet import Session
from orchestrator.phases import recovery
from orchestrator.phases.context import Run, log
from orchestrator.phases.follow import Follower

UNREACHABLE = 30.0  # seconds that a stop waits for a host that is lost, beyond the grace
IMPATIENT = 10.0  # the same, of a user who asked twice, and where nothing is known to be alive
_LAST_TRY = 2.0  # seconds to get a host back for the proof that nothing is left


class Stopper:
    """One stop of a run, repeated to hosts that come back and sharpened when asked to kill."""

    def __init__(self, run: Run, follower: Follower, *, by: str, why: str, grace: float) -> None:
        self._run = run
        self._follower = follower
        self.by = by
        self._killing = by == "user" and run.stop.kill  # at once, without a grace before
        self._grace = 0.0 if self._killing else grace
        self.deadline = time.monotonic() + self._grace + (IMPATIENT if self._killing else UNREACHABLE)
        run.bus.emit(StopRequested(by, why, self._grace))
        follower.stopping = self._tell
        self._tell_all()

    def sharpen(self) -> None:
        """From now on: KILL, no grace."""
        if not self._killing:
            self._killing = True
            self._run.bus.emit(StopRequested("user", "asked again", 0.0))
            self.deadline = min(self.deadline, time.monotonic() + IMPATIENT)
            self._tell_all()

    def _tell_all(self) -> None:
        for session in list(self._run.fleet.sessions.values()):
            self._tell(session)

    def _tell(self, session: Session) -> None:
        session.submit("stop", **_request(self._run, self.by, self._grace, kill=self._killing))


class EndAll:
    """Ends every task of a run, in whatever attempt, without following them."""

    def __init__(self, run: Run, *, kill: bool, grace: float, by: str) -> None:
        self._run = run
        self._kill = kill
        self._grace = 0.0 if kill else grace
        self._by = by
        self._told = False

    def wait(self) -> None:
        """Until nothing is alive, or the time in which everything should have been killed is over.

        A host that was lost on the way is tried again: something of the run may be alive there.
        """
        run = self._run
        # Told before anything is looked at: an agent answers when the starts under way are done.
        self._tell(list(run.fleet.sessions))
        began = time.monotonic()
        while time.monotonic() - began < self._grace + UNREACHABLE:
            if run.stop.kill and not self._kill:
                self._kill, self._grace = True, 0.0
                run.bus.emit(StopRequested("user", "asked again", 0.0))
                self._tell(list(run.fleet.sessions))
            # First: a connection that broke unseen must not pass for a host where nothing is alive.
            recovery.gather(run, 0.1, lambda session: self._tell([session.host.name]))
            lost = any(host.name in run.lost for host in run.hosts)
            if not self._alive() and (not lost or time.monotonic() - began > IMPATIENT):
                return
            time.sleep(0.05)

    def _tell(self, hosts: list[str]) -> None:
        """Ask for the end of every task; say so once there was any."""
        request = _request(self._run, self._by, self._grace, kill=self._kill)
        answers = self._run.fleet.ask("stop", lambda _: request, hosts=hosts)
        if not self._told and any(reply.result["asked"] for reply in answers.good.values()):
            self._told = True
            self._run.bus.emit(StopRequested(self._by, "", self._grace))

    def _alive(self) -> bool:
        """Whether anything is, or may be where no answer came."""
        answers = self._run.fleet.ask("states", lambda _: {"run": self._run.id}, timeout=10.0)
        return bool(answers.bad) or any(
            task["alive"]
            for reply in answers.good.values()
            for run in reply.result["runs"]
            for task in run["tasks"]
        )


def _request(run: Run, by: str, grace: float, *, kill: bool) -> dict[str, Any]:
    """`final`: what a user has stopped is not to be started any more, by whoever keeps it."""
    return {
        "run": run.id,
        "attempt": None,
        "tasks": None,
        "grace": grace,
        "kill": kill,
        "final": by == "user",
    }


def sweep(run: Run) -> list[str]:
    """Prove that nothing of the run is alive where hosts answer; return the hosts that do not."""
    back: list[Session] = []
    recovery.gather(run, _LAST_TRY, back.append)
    if back:  # nobody has told them yet that the run is over
        EndAll(run, kill=True, grace=0.0, by="user" if run.stop.asked else "failure").wait()
    answers = run.fleet.ask("sweep", lambda _: {"run": run.id}, timeout=30.0)
    for name, reply in answers.good.items():
        if reply.result["killed"]:
            log.warning("%s: swept %s", name, reply.result["killed"])
        if reply.result["alive"]:
            log.error("%s: still alive: %s", name, reply.result["alive"])
    for name, error in answers.bad.items():
        log.error("%s: cannot prove that nothing is left: %s", name, error.what)
    proven = {name for name, reply in answers.good.items() if not reply.result["alive"]}
    return [host.name for host in (*run.hosts, *run.plan.retired) if host.name not in proven]
