"""One attempt from its first task to its last: followed, stopped where its rules or a user say so."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from orchestrator import restarts
from orchestrator.events import Event, Phase, PhaseEnded, PhaseStarted, TaskExited, TaskProgressed
from orchestrator.gang import Decision, decide, succeeded
from orchestrator.phases import stop
from orchestrator.phases.adopt import Adopted
from orchestrator.phases.context import Run
from orchestrator.phases.follow import Follower
from orchestrator.phases.hang import Hung, Watch


@dataclass(frozen=True)
class Finished:
    """How an attempt ended."""

    exits: tuple[TaskExited, ...]
    good: bool
    by_user: bool  # a user stopped it, before any task had failed
    steps: Mapping[str, int]  # the last one that each task reported
    unproven: tuple[str, ...]  # hosts that did not answer at its end
    hung: Hung | None  # its tasks hung, and were stopped for it


class Attempt:
    """An attempt whose tasks were started; `adopted` is how far an earlier keeper had come with it."""

    def __init__(self, run: Run, name: str, adopted: Adopted | None = None) -> None:
        known = adopted.exits if adopted is not None else ()
        self.name = name
        self._run = run
        self._adopted = adopted
        self._looked = 0  # stopped tasks of which the nodes were asked who stopped them
        self._exits = list(known)
        self._steps: dict[str, int] = {}
        placed = {spec.id: spec.host for spec in run.plan.tasks}
        self._follower = Follower(run, name, placed, self._told)
        for exited in known:
            self._follower.know(exited)
        self._follower.attach()

    def _told(self, event: Event) -> None:
        if isinstance(event, TaskExited):
            self._exits.append(event)
        elif isinstance(event, TaskProgressed):
            self._steps[event.task] = event.step
        self._run.bus.emit(event)

    def follow(self) -> Finished:
        """Until every task has ended, or cannot be waited for any longer; what is left is swept away."""
        run, follower = self._run, self._follower
        began = time.monotonic()
        run.bus.emit(PhaseStarted(Phase.FOLLOW, len(run.hosts)))
        stopper: stop.Stopper | None = None
        asked: float | None = None  # when a user asked for the end, seconds since the epoch
        hung: Hung | None = None
        watch = Watch(run, follower)
        if (by := self._begun()) and not run.stop.asked:
            grace = run.plan.grace if by == "completion" else run.plan.failure_grace
            stopper = self._stop(by, "as its last keeper began to", grace)
        while True:
            follower.step(0.5 if stopper is None else 0.1)
            elsewhere = self._stopped_elsewhere() if stopper is None else None
            if (run.stop.asked or elsewhere) and asked is None:
                asked = elsewhere or time.time()
                run.fleet.resume()
                if stopper is None:
                    why = "asked for from another machine" if elsewhere and not run.stop.asked else ""
                    stopper = self._stop("user", why, run.plan.grace)
            if run.stop.kill and stopper is not None:
                stopper.sharpen()
            match decide(follower.tasks, follower.ends, run.plan.completion):
                case Decision.ENDED:
                    break
                case Decision.STOP_FAILED if stopper is None:
                    stopper = self._stop("failure", self._blame(), run.plan.failure_grace)
                case Decision.STOP_COMPLETE if stopper is None:
                    stopper = self._stop("completion", "the chief is done", run.plan.grace)
                case Decision.GO_ON if stopper is None and (hung := watch.look()) is not None:
                    stopper = self._stop("failure", "the tasks hang", run.plan.failure_grace)
                case _:
                    pass
            # An attempt that has failed waits for a lost host no longer than one that goes on.
            if (stopper is None or stopper.by == "failure") and (gone := self._given_up()):
                follower.give_up_host(gone, f"no word from it for {run.plan.restarts.host_timeout:.0f} s")
            if stopper is not None and time.monotonic() > stopper.deadline:
                follower.give_up("it has not ended, and nothing tells why")
                break
        follower.close()
        unproven = tuple(stop.sweep(run))
        good = hung is None and succeeded(follower.tasks, follower.ends, run.plan.completion)
        run.bus.emit(PhaseEnded(Phase.FOLLOW, good, time.monotonic() - began))
        # What fails after the stop was asked for may fail of it: a peer was killed a moment earlier.
        failed = asked is None or any(one.ended < asked for one in self._failed())
        stopped = not failed and hung is None
        return Finished(tuple(self._exits), good, stopped, self._steps, unproven, hung)

    def _begun(self) -> str:
        """Why the last keeper was stopping what is still alive; "" when it was not."""
        return self._adopted.stopping if self._adopted is not None and self._follower.waiting() else ""

    def _stopped_elsewhere(self) -> float | None:
        """When a user stopped the run from another machine (seconds since the epoch); None: nobody did.

        An earlier keeper may have stopped its tasks for another reason: then the nodes know better.
        """
        stopped = [end.ended for end in self._follower.ends.values() if end.stopped]
        if len(stopped) == self._looked:
            return None
        self._looked = len(stopped)
        if self._adopted is not None:
            answers = self._run.fleet.ask("states", lambda _: {"run": self._run.id}, timeout=10.0)
            runs = [found for reply in answers.good.values() for found in reply.result["runs"]]
            if not any(found["stopped"] for found in runs):
                return None
        return min(stopped)

    def _stop(self, by: str, why: str, grace: float) -> stop.Stopper:
        return stop.Stopper(self._run, self._follower, by=by, why=why, grace=grace)

    def _failed(self) -> list[TaskExited]:
        return [exited for exited in self._exits if not exited.stopped and exited.code != 0]

    def _blame(self) -> str:
        return f"{self._failed()[0].task} failed"

    def _given_up(self) -> str:
        """A host that its attempt is better off without; "" for none."""
        run, follower, now = self._run, self._follower, time.monotonic()
        if not run.plan.restarts.most:
            return ""  # with nothing to restart its tasks are waited for
        return restarts.given_up(
            {host.name: now - run.lost[host.name] for host in run.hosts if host.name in run.lost},
            {follower.host(task) for task in follower.waiting()},
            hosts=len(run.hosts),
            silent=now - follower.heard,
            patience=run.plan.restarts.host_timeout,
        )
