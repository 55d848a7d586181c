"""Ending a run's tasks: requesting the end, waiting, and verifying that nothing remains."""

from orchestrator import wire
from orchestrator.events import Noted, StopBy, StopRequested
from orchestrator.fleet import Session
from orchestrator.phases import recovery
from orchestrator.phases.context import Run, log
from orchestrator.phases.follow import Follower

_WAIT = 1.0  # seconds that a host waits for the end of its tasks before it replies, and a kill request for us
_AGAIN = 0.1  # seconds until a request is repeated on a host that failed to reply


class Stopper:
    """One stop of a run, repeated for hosts that come back and escalated to a kill on request."""

    def __init__(self, run: Run, follower: Follower, *, by: StopBy, why: str, grace: float) -> None:
        self._run = run
        self._follower = follower
        self.by = by
        self._killing = by is StopBy.USER and run.stop.kill  # at once, without a grace period
        self._grace = 0.0 if self._killing else grace
        own = run.timings.stop_impatient if self._killing else run.timings.stop_unreachable
        self.deadline = run.clock.now() + self._grace + own
        run.emit(StopRequested(by, why, self._grace))
        follower.stopping = self._send
        self._send_to_all()

    def escalate(self) -> None:
        """Escalate to KILL, without a grace period."""
        if not self._killing:
            self._killing = True
            self._run.emit(StopRequested(StopBy.USER, "requested again", 0.0))
            self.deadline = min(self.deadline, self._run.clock.now() + self._run.timings.stop_impatient)
            self._send_to_all()

    def _send_to_all(self) -> None:
        for session in list(self._run.fleet.sessions.values()):
            self._send(session)

    def _send(self, session: Session) -> None:
        attempt = self._follower.attempt
        session.submit(_request(self._run, self.by, self._grace, kill=self._killing, attempt=attempt))


def end_all(run: Run, *, kill: bool, grace: float, by: StopBy) -> None:
    """End every task of a run, in any attempt; wait until nothing is alive or time is up.

    A host that was lost meanwhile is tried again: parts of the run may be alive there.
    """
    is_shown = False

    def send(hosts: list[str]) -> None:
        """Request the end of every task; report it once any existed."""
        nonlocal is_shown
        answers = run.fleet.ask(_request(run, by, 0.0 if kill else grace, kill=kill), hosts=hosts)
        if not is_shown and any(reply.asked for reply in answers.good.values()):
            is_shown = True
            run.emit(StopRequested(by, "", 0.0 if kill else grace))

    # Before anything is checked: an agent replies when the starts in progress are done.
    send(list(run.fleet.sessions))
    began = run.clock.now()
    while run.clock.now() - began < (0.0 if kill else grace) + run.timings.stop_unreachable:
        if run.stop.kill and not kill:
            kill = True
            run.emit(StopRequested(StopBy.USER, "requested again", 0.0))
            send(list(run.fleet.sessions))
        # First, because a host whose connection broke unnoticed may have live tasks.
        recovery.wait_for_lost(run, 0.1, lambda session: send([session.host.name]))
        states = run.fleet.ask(wire.States(run=run.id, wait=_WAIT), timeout=10.0)
        alive = any(task.alive for reply in states.good.values() for task in reply.tasks)
        impatient = run.clock.now() - began > run.timings.stop_impatient
        if not alive and not states.bad and (not run.lost or impatient):
            return
        if states.bad:
            run.clock.sleep(_AGAIN)


def _request(run: Run, by: StopBy, grace: float, *, kill: bool, attempt: str = "") -> wire.Stop:
    """Return the request. After a user's, no keeper can start the run again; others end only `attempt`."""
    return wire.Stop(run=run.id, grace=grace, kill=kill, final=by is StopBy.USER, attempt=attempt)


def sweep(run: Run) -> list[str]:
    """Verify that nothing of the run is alive; return the hosts for which this could not be verified."""
    back: list[Session] = []
    recovery.wait_for_lost(run, run.timings.last_try, back.append)
    if back:  # they have not received the stop
        end_all(run, kill=True, grace=0.0, by=StopBy.USER if run.stop.requested else StopBy.FAILURE)
    answers = run.fleet.ask(wire.Sweep(run=run.id), timeout=30.0)
    run.alive = {name for name, reply in answers.good.items() if reply.alive}
    for name, reply in answers.good.items():
        if reply.killed:
            log.warning("%s: swept %s", name, reply.killed)
        if reply.alive:
            log.error("%s: still alive: %s", name, reply.alive)
            run.emit(Noted(f"{name}: {', '.join(reply.alive)} could not be ended"))
    for name, error in answers.bad.items():
        log.error("%s: cannot prove that nothing is left: %s", name, error.what)
    proven = {name for name, reply in answers.good.items() if not reply.alive}
    return [host.name for host in (*run.hosts, *run.plan.retired) if host.name not in proven]
