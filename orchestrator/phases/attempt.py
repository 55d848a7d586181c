"""One attempt from its first task to its last: followed, stopped where its rules or a user say so."""

from __future__ import annotations

import math
from collections.abc import Mapping
from concurrent.futures import Future

from msgspec import Struct

from orchestrator import wire
from orchestrator.diagnosis.ends import GangDecision, decide, essential, succeeded
from orchestrator.diagnosis.ends import failed as ended_badly
from orchestrator.events import (
    Event,
    Noted,
    PeersReported,
    Phase,
    PhaseEnded,
    PhaseStarted,
    Stepped,
    StopBy,
    TaskExited,
    TaskProgressed,
)
from orchestrator.model import FrameworkName
from orchestrator.model import Role as TaskRole
from orchestrator.phases import allocation, stop
from orchestrator.phases.adopt import Adopted
from orchestrator.phases.context import Run, log
from orchestrator.phases.follow import Follower
from orchestrator.phases.hang import Hung, Watch
from orchestrator.plainfile import write_atomically
from orchestrator.run import peers, restarts, vitals

_CATCH_UP = 10.0  # seconds after a user's stop in which output that is behind may still come
_LEAVE_EVERY = 2.0


class Finished(Struct, frozen=True):
    """How an attempt ended."""

    exits: tuple[TaskExited, ...]
    good: bool
    by_user: bool  # a user stopped it, before any task had failed
    steps: Mapping[str, int]  # the last one that each task reported
    unproven: tuple[str, ...]  # hosts that did not answer at its end
    hung: Hung | None  # its tasks hung, and were stopped for it
    diverged: Mapping[str, str]  # task -> what its last loss is, where that is not a number
    apart: PeersReported | None = None  # its tasks trained each for itself


class Attempt:
    """An attempt whose tasks were started; `adopted` is how far an earlier keeper had come with it."""

    def __init__(self, run: Run, name: str, adopted: Adopted | None = None) -> None:
        self.name = name
        self._run = run
        self._adopted = adopted
        self._looked = 0  # stopped tasks of which the nodes were asked who stopped them
        self._doing: dict[str, str] = {}  # what each task does about its data
        self._apart = adopted.apart if adopted is not None else None
        self._began = run.clock.now()
        self._diverged: dict[str, str] = {}  # what each task's last loss is, where it is not a number
        placed = {spec.id: spec.host for spec in run.plan.tasks}
        self._follower = Follower(run, name, placed, self._told)
        for exited in adopted.exits if adopted is not None else ():
            self._follower.know(exited)
        self._next_leave = math.inf
        self._follower.attach()

    def _told(self, event: Event) -> None:
        if isinstance(event, TaskProgressed):
            self._look_at_loss(event)
        elif isinstance(event, Stepped):
            if self._doing.get(event.who) == event.step:  # what it does is news, and not how far it is
                return
            self._doing[event.who] = event.step
        self._run.emit(event)

    def _look_at_loss(self, event: TaskProgressed) -> None:
        """A loss that is not finite is said once, when it is first reported."""
        if event.diverged and event.task not in self._diverged:
            self._run.emit(Noted(f"{event.task}: its loss is {event.diverged} at step {event.step}"))
        if event.diverged:
            self._diverged[event.task] = event.diverged
        elif event.loss is not None:
            self._diverged.pop(event.task, None)

    def follow(self) -> Finished:
        """Until every task has ended, or cannot be waited for any longer; what is left is swept away."""
        run, follower = self._run, self._follower
        began = run.clock.now()
        run.emit(PhaseStarted(Phase.FOLLOW, len(run.hosts)))
        stopper: stop.Stopper | None = None
        asked: float | None = None  # when a user asked for the end, seconds since the epoch
        hung: Hung | None = None
        watch = Watch(run, follower)
        gauge = Gauge(run, follower)
        while True:
            follower.step(0.5 if stopper is None else 0.1)
            elsewhere = self._stopped_elsewhere() if stopper is None else None
            if (run.stop.asked or elsewhere) and asked is None:
                asked = elsewhere or run.clock.wall()
                run.fleet.resume()
                self._next_leave = run.clock.now() + _CATCH_UP
                if stopper is None:
                    why = "asked for from another machine" if elsewhere and not run.stop.asked else ""
                    stopper = self._stop(StopBy.USER, why, run.plan.grace)
            if asked is not None and run.clock.now() >= self._next_leave:
                self._next_leave = run.clock.now() + _LEAVE_EVERY
                follower.leave_behind()  # however much of their output is still there
            if run.stop.kill and stopper is not None:
                stopper.sharpen()
            match decide(follower.placed, follower.ends, run.plan.completion):
                case GangDecision.ENDED:
                    break
                case GangDecision.STOP_FAILED if stopper is None:
                    blame = f"{self._failed()[0].task} failed"
                    stopper = self._stop(StopBy.FAILURE, blame, run.plan.failure_grace)
                case GangDecision.STOP_COMPLETE if stopper is None:
                    stopper = self._stop(StopBy.COMPLETION, "the chief is done", run.plan.grace)
                case GangDecision.GO_ON if stopper is None and (hung := watch.look()) is not None:
                    stopper = self._stop(StopBy.FAILURE, hung.why, run.plan.failure_grace)
                case _:
                    pass
            # An attempt that has failed waits for a lost host no longer than one that continues.
            if (stopper is None or stopper.by is StopBy.FAILURE) and (gone := self._given_up()):
                follower.give_up_host(gone)
            for name, why in allocation.taken(run).items():
                follower.give_up_host(name, why)
            if stopper is not None and run.clock.now() > stopper.deadline:
                follower.give_up()
                break
            gauge.look()
            self._look_at_peers(peers.CLEAR)
        follower.close()
        unproven = () if allocation.fate(run).over else tuple(stop.sweep(run))  # Slurm ends all of a job
        good = hung is None and succeeded(follower.placed, follower.ends, run.plan.completion)
        if good:
            self._look_at_peers(peers.SHORT, ended=True)
        run.emit(PhaseEnded(Phase.FOLLOW, good, run.clock.now() - began))
        # What fails after the stop was asked for may fail because of it: a peer was killed a moment earlier.
        failed = asked is None or any(one.ended < asked for one in self._failed())
        # What matters was done before anybody was told to stop: the run has succeeded.
        done = good and not any(
            follower.ends[task].stopped for task in essential(follower.placed, run.plan.completion)
        )
        stopped = not failed and not done and hung is None
        for task, lines in follower.fits.items():
            if lines.fit is not None and lines.fit.diverged:
                self._diverged.setdefault(str(task), lines.fit.diverged)
        steps = {str(task): life.step for task, life in follower.lives.items() if life.step is not None}
        return Finished(
            tuple(follower.ends.values()), good, stopped, steps, unproven, hung, self._diverged, self._apart
        )

    def _look_at_peers(self, clear: float, *, ended: bool = False) -> None:
        """Report once that the tasks train each for itself, and that they do not any more."""
        run, now, follower = self._run, self._run.clock.now(), self._follower
        if run.plan.recipe.framework is FrameworkName.NONE:
            return
        trained = [when for when in follower.trains.values() if ended or now - when > peers.SETTLED]
        longest = max((end.seconds for end in follower.ends.values()), default=0.0)
        if not trained and self._apart is None and max(now - self._began, longest) < clear:
            return
        alone = {TaskRole.PS, TaskRole.EVALUATOR}
        tasks = [str(task) for task in follower.placed if task.role not in alone]
        found = peers.apart(follower.peers, tasks, trains=bool(trained))
        met = wire.Peers.MET in follower.peers.values()  # else a host has not answered a new keeper yet
        if (found and not self._apart) or (self._apart and met):
            self._apart = found
            run.emit(found or PeersReported((), False))

    def _stopped_elsewhere(self) -> float | None:
        """When a user stopped the run from another machine (seconds since the epoch); None: nobody did.

        An earlier keeper may have stopped its tasks for another reason: then the nodes know better.
        """
        stopped = [end.ended for end in self._follower.ends.values() if end.stopped]
        if len(stopped) == self._looked:
            return None
        self._looked = len(stopped)
        if self._adopted is not None:
            answers = self._run.fleet.ask(wire.States(run=self._run.id), timeout=10.0)
            if not any(found.stopped for reply in answers.good.values() for found in reply.runs):
                return None
        return min(stopped)

    def _stop(self, by: StopBy, why: str, grace: float) -> stop.Stopper:
        return stop.Stopper(self._run, self._follower, by=by, why=why, grace=grace)

    def _failed(self) -> list[TaskExited]:
        return [exited for exited in self._follower.ends.values() if ended_badly(exited)]

    def _given_up(self) -> str:
        """A host that its attempt is better off without; "" for none."""
        run, follower = self._run, self._follower
        now = run.clock.now()
        if not run.plan.restarts.most:
            return ""  # with nothing to restart its tasks are waited for
        return restarts.given_up(
            {name: now - since for name, since in run.lost.items()},
            {follower.placed[task] for task in follower.waiting()},
            hosts=len(run.hosts),
            silent=now - follower.heard,
            patience=run.plan.restarts.host_timeout,
        )


_WRITE_EVERY, _AT_ONCE = 1.0, 0.1  # the latter where a viewer has just asked
_ASK_EVERY = 5.0
_WATCHED = 15.0  # seconds after a viewer's last word in which somebody looks


class Gauge(Struct):
    """Tell viewers what the tasks do now; no node is asked while nobody looks, and `look` never waits."""

    run: Run
    follower: Follower
    wrote: float = 0.0
    asked: float = 0.0
    answers: dict[str, Future[wire.Measured]] = {}  # by host
    last: dict[str, tuple[float, wire.TaskVitals]] = {}  # by task: when it came
    busy: dict[str, float] = {}  # by task, since the answer before

    def look(self) -> None:
        now = self.run.clock.now()
        pause = _WRITE_EVERY if self.run.watched < self.wrote else _AT_ONCE
        if now - self.run.watched > _WATCHED or now - self.wrote < pause:
            return
        self.wrote = now
        self._take(now)
        if now - self.asked >= _ASK_EVERY:
            self.asked = now
            self._ask()
        try:
            write_atomically(self.run.folder.vitals, vitals.encode(self._made(now)))
        except OSError as error:  # no room: a board without these numbers is still one
            log.debug("vitals: %s", error)

    def _made(self, now: float) -> vitals.Vitals:
        wall = self.run.clock.wall()
        tasks = {}
        for task in self.follower.waiting():
            _, last = self.last.get(str(task), (0.0, None))
            tasks[str(task)] = vitals.Vital(
                heard=wall - max(0.0, now - self.follower.lives[task].heard),
                fit=self.follower.fit(task),
                cpu=self.busy.get(str(task)),
                memory=last.memory if last else None,
                gpu_memory=last.gpu_memory or None if last else None,
                gpu_busy=last.gpu_busy if last and last.gpu_memory else None,
            )
        return vitals.Vitals(wall, self.follower.attempt, tasks)

    def _ask(self) -> None:
        wanted = {self.follower.placed[task] for task in self.follower.waiting()}
        for name, session in list(self.run.fleet.sessions.items()):
            if name in wanted and name not in self.answers:
                request = wire.VitalsAsk(run=self.run.id, attempt=self.follower.attempt)
                self.answers[name] = session.submit(request)

    def _take(self, now: float) -> None:
        for name, future in list(self.answers.items()):
            if not future.done():
                continue
            del self.answers[name]
            if future.cancelled() or future.exception() is not None:
                continue
            for told in future.result().tasks:
                if self.follower.task_on(name, told.task) is not None:
                    at, before = self.last.get(told.task, (now, told))
                    if now > at and told.cpu >= before.cpu:
                        self.busy[told.task] = (told.cpu - before.cpu) / (now - at)
                    self.last[told.task] = now, told
