"""One attempt from its first task to its last: followed, and stopped by its rules or by a user."""

import contextlib
import math
from collections.abc import Mapping
from concurrent.futures import Future

import msgspec
from msgspec import Struct

from orchestrator import wire
from orchestrator.diagnosis.ends import GangDecision, decide, essential, succeeded
from orchestrator.diagnosis.ends import failed as ended_badly
from orchestrator.events import (
    Noted,
    PeersReported,
    Phase,
    PhaseEnded,
    PhaseStarted,
    StopBy,
    TaskExited,
    TaskProgressed,
)
from orchestrator.model import OUTSIDE, FrameworkName
from orchestrator.model import Role as TaskRole
from orchestrator.phases import launch, recovery, stop
from orchestrator.phases.adopt import Adopted
from orchestrator.phases.context import Run, log
from orchestrator.phases.follow import Follower
from orchestrator.phases.hang import Hung, Watch
from orchestrator.plainfile import write_atomically
from orchestrator.run import hang, restarts, view
from orchestrator.text import duration
from orchestrator.value import Value

_EVALUATES = (
    "training is done; evaluator/0 has {} for the last checkpoint (evaluator_timeout under [job]);"
    " `stop` ends it now"
)
_LEAVE_EVERY = 2.0  # seconds between two checks for ended tasks whose output stays on the nodes


class Finished(Value):
    exits: tuple[TaskExited, ...]
    good: bool
    by_user: bool  # a user stopped it before any task had failed
    steps: Mapping[str, int]  # the last step that each task reported
    unproven: tuple[str, ...]  # hosts not verified clean at its end
    hung: Hung | None  # its tasks hung and were stopped
    diverged: Mapping[str, str]  # task -> its last loss, if that is not a finite number
    apart: PeersReported | None = None  # its tasks trained separately


class Attempt:
    """An attempt whose tasks were started; `adopted` is the progress under an earlier keeper."""

    def __init__(self, run: Run, name: str, adopted: Adopted | None = None) -> None:
        self._run = run
        self._adopted = adopted
        self._stops_checked = 0  # stopped tasks whose nodes were asked who stopped them
        self._apart = adopted.apart if adopted is not None else None
        self._began = run.clock.now()
        placed = {spec.id: spec.host for spec in run.plan.tasks}
        self._follower = Follower(run, name, placed, run.emit)
        for exited in adopted.exits if adopted is not None else ():
            self._follower.record_end(exited)
        self._follower.attach()

    def follow(self) -> Finished:
        """Follow until every task has ended or is given up; then end whatever remains."""
        run, follower = self._run, self._follower
        run.emit(PhaseStarted(Phase.FOLLOW, len(run.hosts)))
        stopper: stop.Stopper | None = None
        requested: float | None = None  # when a user requested the end, seconds since the epoch
        hung: Hung | None = None
        evaluated = next_leave = math.inf  # when the evaluator's time is up; when output stays on the nodes
        watch = Watch(run, follower)
        gauge = Gauge(run, follower, self._began)
        ahead = False  # the next attempt's tasks were started ahead
        with contextlib.closing(follower):
            while True:
                follower.step(0.5)
                elsewhere = self._stopped_elsewhere() if stopper is None else None
                if (run.stop.requested or elsewhere) and requested is None:
                    requested = run.stop.at or elsewhere or run.clock.wall()
                    run.fleet.resume()
                    next_leave = run.clock.now() + run.timings.catch_up
                    if stopper is None:
                        why = "requested from another machine" if elsewhere and not run.stop.requested else ""
                        stopper = self._stop(StopBy.USER, why, run.plan.grace)
                if run.clock.now() >= next_leave:
                    next_leave = run.clock.now() + _LEAVE_EVERY
                    follower.leave_behind()  # even if much of their output is still on the nodes
                if run.stop.kill and stopper is not None:
                    stopper.escalate()
                match decide(follower.placed, follower.ends, run.plan.completion):
                    case GangDecision.ENDED:
                        break
                    case GangDecision.STOP_FAILED if stopper is None:
                        blame = f"{self._failed()[0].task} failed"
                        stopper = self._stop(StopBy.FAILURE, blame, run.plan.failure_grace)
                    case GangDecision.EVALUATE if stopper is None and run.clock.now() < evaluated:
                        if evaluated == math.inf:
                            evaluated = run.clock.now() + run.plan.evaluator_timeout
                            run.emit(Noted(_EVALUATES.format(duration(run.plan.evaluator_timeout))))
                    case GangDecision.STOP_COMPLETE | GangDecision.EVALUATE if stopper is None:
                        stopper = self._stop(StopBy.COMPLETION, "training is done", run.plan.grace)
                    case GangDecision.GO_ON if stopper is None and (hung := watch.look()) is not None:
                        stopper = self._stop(StopBy.FAILURE, hung.why, run.plan.failure_grace)
                # A failed attempt waits for a lost host no longer than a continuing one.
                if (stopper is None or stopper.by is StopBy.FAILURE) and (gone := self._given_up()):
                    follower.give_up_host(gone)
                for name, why in run.taken().items():
                    follower.give_up_host(name, why)
                if stopper is not None and run.clock.now() > stopper.deadline:
                    follower.give_up()
                    break
                gauge.look()
                if not ahead and stopper is None and launch.due(run, follower.first_loss.values()):
                    ahead = True
                    launch.begin_ahead(run, spare=True)
                self._look_at_peers(hang.CLEAR)
        unproven = () if run.allocation().over else tuple(stop.sweep(run))  # Slurm ends everything in a job
        good = hung is None and succeeded(follower.placed, follower.ends, run.plan.completion)
        if good:
            self._look_at_peers(hang.SHORT, ended=True)
        run.emit(PhaseEnded(Phase.FOLLOW, good, run.clock.now() - self._began))
        # A failure after the stop was requested may be its consequence: a peer was killed a moment earlier.
        failed = requested is None or any(failure.ended < requested for failure in self._failed())
        # The deciding tasks were done before the others were stopped: the run has succeeded.
        done = good and not any(
            follower.ends[task].stopped for task in essential(follower.placed, run.plan.completion)
        )
        stopped = not failed and not done and hung is None
        losses = {
            str(task): follower.diverged.get(task) or (lines.fit.diverged if lines.fit else "")
            for task, lines in follower.fits.items()
        }
        steps = {str(task): life.step for task, life in follower.lives.items() if life.step is not None}
        return Finished(
            tuple(follower.ends.values()),
            good,
            stopped,
            steps,
            unproven,
            hung,
            {task: loss for task, loss in losses.items() if loss},
            self._apart,
        )

    def _look_at_peers(self, clear: float, *, ended: bool = False) -> None:
        """Report once that the tasks train separately, and once that they no longer do."""
        run, now, follower = self._run, self._run.clock.now(), self._follower
        if run.plan.recipe.framework is FrameworkName.NONE:
            return
        trained = [when for when in follower.first_loss.values() if ended or now - when > hang.SETTLED]
        longest = max((end.seconds for end in follower.ends.values()), default=0.0)
        seconds = longest if ended else max(now - self._began, longest)  # their output may take long to come
        if not trained and self._apart is None and seconds < clear:
            return
        tasks = [str(task) for task in follower.placed if task.role not in (TaskRole.PS, *OUTSIDE)]
        apart = hang.apart(follower.peers, tasks, trains=bool(trained))
        # Otherwise a host has not yet replied to a new keeper.
        states = {*follower.peers.values()}
        has_met = not {wire.Peers.MET, wire.Peers.UNPATCHED}.isdisjoint(states)
        if self._apart and not self._apart.connected:  # an import may take longer than `clear`
            has_met = has_met or wire.Peers.IDLE in states
        if apart != self._apart and (not self._apart or has_met):
            self._apart = apart
            run.emit(apart or PeersReported((), False))

    def _stopped_elsewhere(self) -> float | None:
        """Return when a user stopped the run from another machine (since the epoch); None if nobody did.

        An earlier keeper may have stopped its tasks for another reason; in that case the nodes have the
        answer.
        """
        stopped = [end.ended for end in self._follower.ends.values() if end.stopped]
        if len(stopped) == self._stops_checked:
            return None
        self._stops_checked = len(stopped)
        if self._adopted is not None:
            answers = self._run.fleet.ask(wire.States(run=self._run.id), timeout=10.0)
            if not any(record.stopped for reply in answers.good.values() for record in reply.runs):
                return None
        return min(stopped)

    def _stop(self, by: StopBy, why: str, grace: float) -> stop.Stopper:
        return stop.Stopper(self._run, self._follower, by=by, why=why, grace=grace)

    def _failed(self) -> list[TaskExited]:
        return [exited for exited in self._follower.ends.values() if ended_badly(exited)]

    def _given_up(self) -> str:
        """Return a lost host whose tasks should now count as failed; "" if none."""
        run, follower, now = self._run, self._follower, self._run.clock.now()
        if not run.plan.restarts.most:
            return ""  # tasks that cannot be restarted are waited for
        lost = {name: now - since for name, since in run.lost.items()}
        gone = restarts.given_up(
            lost,
            {follower.placed[task] for task in follower.running()},
            silent=now - follower.last_output,
            patience=run.plan.restarts.host_timeout,
        )
        # If no host answers, this machine's own network may have failed.
        return gone if len(lost) < len(run.hosts) or (gone and recovery.replaceable(run)) else ""


_WRITE_EVERY, _AT_ONCE = 1.0, 0.1  # seconds; the latter if a viewer has just requested the values
_ASK_EVERY = 5.0  # seconds between two samples for a viewer
_SAMPLES, _MAX_ASK_INTERVAL = 20, 30.0  # in a short attempt; seconds between two in a long one
_WATCHED = 15.0  # seconds after a viewer's last message during which it counts as watching


class Gauge(Struct):
    """Samples the resources that tasks use, more often while a viewer watches; `look` never blocks."""

    run: Run
    follower: Follower
    began: float
    wrote: float = 0.0
    sampled: float = 0.0
    answers: dict[str, Future[wire.Measured]] = {}  # by host
    last: dict[str, tuple[float, wire.TaskVitals]] = {}  # by task: when it arrived
    busy: dict[str, float] = {}  # by task: CPUs in use since the reply before

    def look(self) -> None:
        now = self.run.clock.now()
        self._take(now)
        watched = now - self.run.watched <= _WATCHED
        longest = _ASK_EVERY if watched else _MAX_ASK_INTERVAL
        if now - self.sampled >= min(longest, max(_ASK_EVERY, (now - self.began) / _SAMPLES)):
            self.sampled = now
            request = wire.VitalsAsk(run=self.run.id, attempt=self.follower.attempt)
            hosts = {self.follower.placed[task] for task in self.follower.running()} - {*self.answers}
            for name in sorted(hosts):  # in one order in every history of the simulator
                if (session := self.run.fleet.sessions.get(name)) is not None:
                    self.answers[name] = session.submit(request)
        if not watched or now - self.wrote < (_WRITE_EVERY if self.run.watched < self.wrote else _AT_ONCE):
            return
        self.wrote = now
        try:
            write_atomically(self.run.folder.vitals, msgspec.json.encode(self._made(now)))
        except OSError as error:  # disk full: the display works without these numbers
            log.debug("vitals: %s", error)

    def _made(self, now: float) -> view.Vitals:
        wall = self.run.clock.wall()
        tasks = {}
        for task in self.follower.running():
            _, last = self.last.get(str(task), (0.0, None))
            tasks[str(task)] = view.Vital(
                heard=wall - max(0.0, now - self.follower.lives[task].last_output),
                fit=self.follower.fit(task),
                cpu=self.busy.get(str(task)),
                memory=last.memory if last else None,
                gpu_memory=last.gpu_memory or None if last else None,
                gpu_busy=last.gpu_busy if last and last.gpu_memory else None,
            )
        return view.Vitals(wall, self.follower.attempt, tasks)

    def _take(self, now: float) -> None:
        for name, future in list(self.answers.items()):
            if not future.done():
                continue
            del self.answers[name]
            if future.exception() is not None:
                continue
            tasks = {
                record.task: record
                for record in future.result().tasks
                if self.follower.task_on(name, record.task)
            }
            for task, use in tasks.items():
                at, before = self.last.get(task, (now, use))
                if now > at and use.cpu >= before.cpu:
                    self.busy[task] = (use.cpu - before.cpu) / (now - at)
                self.last[task] = now, use
            self._keep(name, tasks)

    def _keep(self, host: str, tasks: Mapping[str, wire.TaskVitals]) -> None:
        values = {"memory": float(sum(use.memory for use in tasks.values()))}
        if busy := [self.busy[task] for task in tasks if task in self.busy]:
            values["cpu"] = sum(busy)
        if any(use.gpu_memory for use in tasks.values()):
            values["gpu_memory"] = float(sum(use.gpu_memory or 0 for use in tasks.values()))
            values["gpu_busy"] = float(max(use.gpu_busy or 0 for use in tasks.values()))
        if tasks and (usage := self.run.usage) is not None:
            use = TaskProgressed(host, 0, None, None, metrics=values)
            usage.take(use, self.follower.attempt, self.run.clock.wall())
            try:
                usage.write()
            except OSError as error:  # disk full: it waits
                log.debug("usage: %s", error)
