"""The keeper: the one process that owns a run, from the first connection to the verdict."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from functools import partial

from orchestrator.errors import ExitStatus, OrchestrateError
from orchestrator.events import (
    Event,
    Outcome,
    Phase,
    PhaseEnded,
    PhaseStarted,
    RunEnded,
    RunLeft,
    TaskExited,
)
from orchestrator.fleet import Cancelled
from orchestrator.gang import Decision, decide, succeeded
from orchestrator.phases import connect, launch, preflight, stage, stop, validate
from orchestrator.phases.adopt import adopt, announce
from orchestrator.phases.context import PhaseFailed, Run, log
from orchestrator.phases.control import Control
from orchestrator.phases.follow import Follower
from orchestrator.store.tail import last_lines
from orchestrator.verdict import judge

FIRST = "1"  # the attempt a launch begins with
_LAST_LINES = 20


def keep_new(run: Run, control: int) -> ExitStatus:
    """Take a run from its plan to its end; the exit status is also in its RunEnded."""
    return _Keeper(run, control).guarded(lambda keeper: keeper.whole())


def keep_adopted(run: Run, control: int) -> ExitStatus:
    """Go on with a run whose keeper is gone."""
    return _Keeper(run, control).guarded(lambda keeper: keeper.adopted())


class _Keeper:
    def __init__(self, run: Run, control: int) -> None:
        self._run = run
        self._unproven: tuple[str, ...] = ()
        self._exits: list[TaskExited] = []
        self._started = False  # something of the run may be alive on the nodes
        # Until the tasks are followed, a request to stop must end whatever is being waited for.
        self._control = Control(run, control)

    def guarded(self, work: Callable[[_Keeper], RunEnded | RunLeft]) -> ExitStatus:
        """Whatever happens, the run ends with one RunEnded, and a bug leaves its traceback."""
        ended = self._conclude(lambda: work(self))
        self._run.bus.emit(ended)
        self._run.fleet.close()
        return ExitStatus(ended.status) if isinstance(ended, RunEnded) else ExitStatus.CLUSTER

    def _conclude(self, work: Callable[[], RunEnded | RunLeft]) -> RunEnded | RunLeft:
        """What `work` comes to. Its exceptions come to an end of their own, and so do those of that end."""
        end: Callable[[], RunEnded]
        try:
            return work()
        except Cancelled:
            end = self._stopped
        except PhaseFailed as failure:
            end = partial(self._failed, failure)
        except OrchestrateError as error:
            end = partial(self._failed, PhaseFailed(Phase.STAGE, f"{error.what}: {error.why}", error.hint))
        except Exception:
            log.exception("a bug")
            end = self._broken
        return self._conclude(end)

    def whole(self) -> RunEnded:
        run = self._run
        announce(run)
        connect.connect(run)
        run.folder.write_plan(run.plan)
        shared = preflight.preflight(run) if run.options.preflight else {}
        stage.stage(run, shared)
        self._started = True
        if run.options.validate:
            validate.validate(run)
        placed = {spec.id: spec.host for spec in run.plan.tasks}
        launch.launch(run, FIRST)
        self._control.cancels = False
        follower = Follower(run, FIRST, placed, self._told)
        follower.attach()
        return self._follow(follower)

    def adopted(self) -> RunEnded | RunLeft:
        run = self._run
        self._control.cancels = False
        self._started = True
        found = adopt(run)
        if isinstance(found, RunLeft):
            return found
        placed = {spec.id: spec.host for spec in run.plan.tasks}
        follower = Follower(run, found.attempt, placed, self._told)
        for exited in found.exits:  # the last keeper said so already
            self._exits.append(exited)
            follower.know(exited)
        follower.attach()
        return self._follow(follower)

    def _told(self, event: Event) -> None:
        if isinstance(event, TaskExited):
            self._exits.append(event)
        self._run.bus.emit(event)

    def _follow(self, follower: Follower) -> RunEnded:
        run = self._run
        began = time.monotonic()
        run.bus.emit(PhaseStarted(Phase.FOLLOW, len(run.hosts)))
        stopper: stop.Stopper | None = None
        by_user = False
        while True:
            follower.step(0.5 if stopper is None else 0.1)
            elsewhere = stopper is None and any(end.stopped for end in follower.ends.values())
            if (run.stop.asked or elsewhere) and not by_user:
                by_user = True
                run.fleet.resume()
                if stopper is None:
                    why = "asked for from another machine" if elsewhere and not run.stop.asked else ""
                    stopper = stop.Stopper(run, follower, by="user", why=why, grace=run.plan.grace)
            if run.stop.kill and stopper is not None:
                stopper.sharpen()
            match decide(follower.tasks, follower.ends, run.plan.completion):
                case Decision.ENDED:
                    break
                case Decision.STOP_FAILED if stopper is None:
                    stopper = stop.Stopper(
                        run, follower, by="failure", why=self._blame(), grace=run.plan.failure_grace
                    )
                case Decision.STOP_COMPLETE if stopper is None:
                    stopper = stop.Stopper(
                        run, follower, by="completion", why="the chief is done", grace=run.plan.grace
                    )
                case _:
                    pass
            if stopper is not None and time.monotonic() > stopper.deadline:
                follower.give_up("its host cannot be reached")
                break
        self._sweep()
        good = succeeded(follower.tasks, follower.ends, run.plan.completion)
        run.bus.emit(PhaseEnded(Phase.FOLLOW, good, time.monotonic() - began))
        if by_user and not self._failed_before_stop():
            return self._ended(Outcome.STOPPED, ExitStatus.INTERRUPTED, cause="stopped by the user")
        if good:
            return self._ended(Outcome.SUCCEEDED, ExitStatus.OK)
        return self._verdict()

    def _failed_before_stop(self) -> bool:
        return any(not exit_.stopped and exit_.code != 0 for exit_ in self._exits)

    def _blame(self) -> str:
        first = next(exit_ for exit_ in self._exits if not exit_.stopped and exit_.code != 0)
        return f"{first.task} failed"

    def _verdict(self) -> RunEnded:
        verdict = judge(tuple(self._exits), self._tail)
        return self._ended(
            Outcome.FAILED,
            ExitStatus.RUN_FAILED,
            cause=verdict.cause,
            task=verdict.task,
            lines=verdict.last_lines,
            hint=verdict.hint,
        )

    def _tail(self, task: str, attempt: str) -> tuple[str, ...]:
        return last_lines(self._run.folder.log(attempt, task.replace("/", "-")), _LAST_LINES)

    def _failed(self, failure: PhaseFailed) -> RunEnded:
        """A phase could not be finished: end what was started."""
        if self._run.stop.asked:
            return self._stopped()
        self._end_all(kill=False, grace=self._run.plan.failure_grace, by="failure")
        status = ExitStatus.RUN_FAILED if self._started else ExitStatus.CLUSTER
        cause = f"{failure.phase.value}: {failure.cause}"
        return self._ended(Outcome.CLUSTER, status, cause=cause, hint=failure.hint)

    def _stopped(self) -> RunEnded:
        """A user asked for the end before or while the tasks were started."""
        self._end_all(kill=self._run.stop.kill, grace=self._run.plan.grace, by="user")
        return self._ended(Outcome.STOPPED, ExitStatus.INTERRUPTED, cause="stopped by the user")

    def _broken(self) -> RunEnded:
        with contextlib.suppress(Exception):
            self._end_all(kill=True, grace=0.0, by="failure")
        return self._ended(
            Outcome.FAILED,
            ExitStatus.BUG,
            cause="a bug in orchestrate ended the run",
            hint=f"please report it, with {self._run.folder.debug_log}",
        )

    def _end_all(self, *, kill: bool, grace: float, by: str) -> None:
        """Stop whatever this run has on the nodes, in any attempt."""
        run = self._run
        run.fleet.resume()
        if self._started:
            stop.EndAll(run, kill=kill, grace=grace, by=by).wait()
            self._sweep()

    def _sweep(self) -> None:
        self._unproven = tuple(stop.sweep(self._run))

    def _ended(
        self,
        outcome: Outcome,
        status: ExitStatus,
        *,
        cause: str = "",
        task: str = "",
        lines: tuple[str, ...] = (),
        hint: str = "",
    ) -> RunEnded:
        run, unproven = self._run, self._unproven
        if unproven:
            hint = (
                f"{', '.join(unproven)} did not answer, so nothing is proven there; when it does: "
                f"orchestrate stop {run.id}"
            )
        return RunEnded(
            run=run.id,
            outcome=outcome,
            status=int(status),
            seconds=time.time() - run.plan.created,
            cause=cause,
            cause_task=task,
            last_lines=lines,
            folder=str(run.folder.path),
            hint=hint,
            unproven=unproven,
        )
