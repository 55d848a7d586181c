"""Ending what runs: ask, wait, and prove that nothing is left."""

from __future__ import annotations

import time

from orchestrator.events import StopRequested
from orchestrator.fleet import Session
from orchestrator.phases.context import Run, log
from orchestrator.phases.follow import Follower

UNREACHABLE = 30.0  # seconds that a stop waits for a host that is lost, beyond the grace


class Stopper:
    """One stop of a run, repeated to hosts that come back and sharpened when asked to kill."""

    def __init__(self, run: Run, follower: Follower, *, by: str, why: str, grace: float) -> None:
        self._run = run
        self._follower = follower
        self._grace = grace
        self._killing = False
        self.deadline = time.monotonic() + grace + UNREACHABLE
        run.bus.emit(StopRequested(by, why, grace))
        follower.stopping = self._tell
        self._tell_all()

    def sharpen(self) -> None:
        """From now on: KILL, no grace."""
        if not self._killing:
            self._killing = True
            self._run.bus.emit(StopRequested("user", "asked again", 0.0))
            self.deadline = min(self.deadline, time.monotonic() + UNREACHABLE)
            self._tell_all()

    def _tell_all(self) -> None:
        for session in list(self._run.fleet.sessions.values()):
            self._tell(session)

    def _tell(self, session: Session) -> None:
        session.submit(
            "stop", run=self._run.id, attempt=None, tasks=None, grace=self._grace, kill=self._killing
        )


class EndAll:
    """Ends every task of a run on the hosts that answer, in whatever attempt, without following them."""

    def __init__(self, run: Run, *, kill: bool, grace: float, by: str) -> None:
        self._run = run
        self._kill = kill
        self._grace = grace
        # Told before anything is looked at: an agent answers when the starts under way are done.
        if self._tell():
            run.bus.emit(StopRequested(by, "", 0.0 if kill else grace))

    def wait(self) -> None:
        """Until nothing is alive, or the time in which everything should have been killed is over."""
        deadline = time.monotonic() + self._grace + UNREACHABLE
        while self._alive() and time.monotonic() < deadline:
            if self._run.stop.kill and not self._kill:
                self._kill = True
                self._run.bus.emit(StopRequested("user", "asked again", 0.0))
                self._tell()
            time.sleep(0.1)

    def _tell(self) -> bool:
        """Ask for the end of every task; whether there was any."""
        fields = {
            "run": self._run.id,
            "attempt": None,
            "tasks": None,
            "grace": self._grace,
            "kill": self._kill,
        }
        answers = self._run.fleet.ask("stop", lambda _: fields)
        return any(reply.result["asked"] for reply in answers.good.values())

    def _alive(self) -> bool:
        answers = self._run.fleet.ask("states", lambda _: {"run": self._run.id}, timeout=10.0)
        return any(
            task["alive"]
            for reply in answers.good.values()
            for run in reply.result["runs"]
            for task in run["tasks"]
        )


def sweep(run: Run) -> list[str]:
    """Prove that nothing of the run is alive where hosts answer; return the hosts that do not."""
    answers = run.fleet.ask("sweep", lambda _: {"run": run.id}, timeout=30.0)
    for name, reply in answers.good.items():
        if reply.result["killed"]:
            log.warning("%s: swept %s", name, reply.result["killed"])
    for name, error in answers.bad.items():
        log.error("%s: cannot prove that nothing is left: %s", name, error.what)
    return [host.name for host in run.hosts if host.name not in answers.good]
