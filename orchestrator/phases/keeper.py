"""The keeper: the one process that owns a run, from the first connection to the verdict."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable

from orchestrator.errors import ExitStatus, OrchestrateError
from orchestrator.events import Event, Outcome, Phase, PhaseEnded, PhaseStarted, RunEnded, TaskExited
from orchestrator.fleet import Cancelled
from orchestrator.gang import Decision, decide, succeeded
from orchestrator.phases import connect, launch, preflight, stage, stop, validate
from orchestrator.phases.adopt import adopt, announce
from orchestrator.phases.context import Asked, PhaseFailed, Run, log
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
        # Until the tasks are followed, a request to stop must end whatever is being waited for.
        self._cancellable = True
        threading.Thread(target=self._listen, args=(control,), name="control", daemon=True).start()

    def guarded(self, work: Callable[[_Keeper], RunEnded]) -> ExitStatus:
        """Whatever happens, the run ends with one RunEnded, and a bug leaves its traceback."""
        run = self._run
        try:
            ended = work(self)
        except Cancelled:
            ended = self._stopped()
        except PhaseFailed as failure:
            ended = self._failed(failure)
        except OrchestrateError as error:
            ended = self._failed(PhaseFailed(Phase.STAGE, f"{error.what}: {error.why}", error.hint))
        except Exception:
            log.exception("a bug")
            with contextlib.suppress(Exception):
                self._end_all(kill=True)
            ended = self._ended(
                Outcome.FAILED,
                ExitStatus.BUG,
                cause="a bug in orchestrate ended the run",
                hint=f"please report it, with {run.folder.debug_log}",
            )
        run.bus.emit(ended)
        run.fleet.close()
        return ExitStatus(ended.status)

    def whole(self) -> RunEnded:
        run = self._run
        announce(run)
        connect.connect(run)
        run.folder.write_plan(run.plan)
        shared = preflight.preflight(run) if run.options.preflight else {}
        stage.stage(run, shared)
        if run.options.validate:
            validate.validate(run)
        placed = {spec.id: spec.host for spec in run.plan.tasks}
        launch.launch(run, FIRST)
        self._cancellable = False
        follower = Follower(run, FIRST, placed, self._told)
        follower.attach()
        return self._follow(follower)

    def adopted(self) -> RunEnded:
        run = self._run
        self._cancellable = False
        found = adopt(run)
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
            if run.stop.asked and not by_user:
                by_user = True
                run.fleet.resume()
                if stopper is None:
                    stopper = stop.Stopper(run, follower, by="user", why="", grace=run.plan.grace)
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
        started = failure.phase in (Phase.VALIDATE, Phase.LAUNCH)
        if started:
            self._end_all(kill=False, grace=self._run.plan.failure_grace, by="failure")
        status = ExitStatus.RUN_FAILED if started else ExitStatus.CLUSTER
        cause = f"{failure.phase.value}: {failure.cause}"
        return self._ended(Outcome.CLUSTER, status, cause=cause, hint=failure.hint)

    def _stopped(self) -> RunEnded:
        """A user asked for the end before or while the tasks were started."""
        self._end_all(kill=self._run.stop.kill, grace=self._run.plan.grace, by="user")
        return self._ended(Outcome.STOPPED, ExitStatus.INTERRUPTED, cause="stopped by the user")

    def _end_all(self, *, kill: bool, grace: float = 0.0, by: str = "failure") -> None:
        """Stop whatever this run has on the nodes, in any attempt."""
        run = self._run
        run.fleet.resume()
        if run.fleet.sessions:
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

    def _listen(self, control: int) -> None:
        """Take the viewers' requests from the control FIFO, for as long as the keeper lives."""
        os.set_blocking(control, True)
        buffer = b""
        while data := os.read(control, 4096):
            *lines, buffer = (buffer + data).split(b"\n")
            for line in lines:
                try:
                    want = json.loads(line).get("want")
                except (ValueError, AttributeError):
                    continue
                if want in ("stop", "kill"):
                    first = not self._run.stop.asked
                    self._run.stop.ask(kill=want == "kill")
                    if first and self._cancellable:
                        self._run.fleet.cancel()
                    self._run.inbox.put(Asked(kill=want == "kill"))
