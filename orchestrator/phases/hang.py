"""Tasks that hang: suspected, looked at, and what is to be done about them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path

from msgspec import Struct

from orchestrator import ranges, wire
from orchestrator.diagnosis.lastwords import LOOKED_AT
from orchestrator.diagnosis.statement import Statement
from orchestrator.diagnosis.verdict import Verdict
from orchestrator.errors import HostError
from orchestrator.events import FailureKind, HangKind, HangPassed, HangSuspected, Noted, StacksTaken
from orchestrator.model import Completion, OnHang, RunPlan, TaskId
from orchestrator.phases.context import Run, log
from orchestrator.phases.follow import Follower
from orchestrator.planning.takeover import speaks_for
from orchestrator.run import hang, stacks
from orchestrator.store import RunFolder
from orchestrator.store.reader import last_lines
from orchestrator.text import duration

_PATIENCE = 45.0  # seconds for all nodes to answer


class RunStacks(Struct, frozen=True):
    """The stacks of a run's tasks, at one moment."""

    finding: stacks.StackFinding
    said: str  # the same in one line
    missing: Mapping[str, str]  # host -> why it gave none
    file: Path
    tasks: Sequence[tuple[str, wire.TaskStacks]]  # what the nodes said, each with its host


def keep(
    folder: RunFolder,
    plan: RunPlan,
    good: Mapping[str, wire.StacksOf],
    missing: Mapping[str, str],
    steps: Mapping[str, int | None],
    *,
    hang: bool,
    at: float,
) -> RunStacks:
    """Judge what the nodes have answered, and keep the whole of it. Raise OSError without room for it."""
    told = [
        (host, task)
        for host, reply in good.items()
        for answered in reply.tasks
        if (task := stacks.living(answered)) is not None and speaks_for(plan, host, task.attempt, task.task)
    ]
    told.sort(key=lambda one: (TaskId.parse(one[1].task), one[1].attempt))
    stands = [stacks.stand(task.task, host, task.processes, steps.get(task.task)) for host, task in told]
    finding = stacks.find(stands, plan.completion)
    said = stacks.sentence(finding, hang=hang)
    head = f"run {plan.run}, {time.strftime('%Y-%m-%d %H:%M:%S %z', time.localtime(at))}\n{said}\n"
    text = head + "\n".join(_whole(finding, told, missing)) + "\n"
    return RunStacks(finding, said, missing, folder.write_stacks(at, text), told)


def _whole(
    finding: stacks.StackFinding, told: Sequence[tuple[str, wire.TaskStacks]], missing: Mapping[str, str]
) -> Iterator[str]:
    yield from (f"no stacks from {host}: {why}" for host, why in missing.items())
    yield ""
    yield from stacks.folded(finding)
    for host, task in told:
        yield f"\n==== {task.task} on {host}, attempt {task.attempt}"
        for one in task.processes:
            waits = f", waits in {one.waits}" if one.waits else ""
            taken = "" if one.text else f", no stacks: {one.why or 'no Python'}"
            yield f"---- pid {one.pid} {one.argv0}: state {one.state}{waits}, {one.cpu:.1f} s of CPU{taken}"
            if one.text:
                yield one.text.rstrip("\n")
        if task.more:
            yield f"---- and {task.more} more processes"


class Hung(Struct, frozen=True):
    """An attempt that has failed without an end: its tasks hang, or one outlives its exception."""

    restart: bool  # it may be started again
    place: str  # where the odd one stands; "" when something from outside holds it, or none stands out
    seconds: float  # from the attempt's start to the suspicion
    verdict: Verdict | None  # whose task is the odd one; None where that task reported an exception
    why: str = "the tasks hang"


class _Suspicion(Struct):
    what: str  # "no word for 10 min"
    since: float
    answers: Mapping[str, Future[wire.StacksOf]]  # by host
    over: bool  # nothing is to be done, or was done


class Watch:
    """Looks after the tasks of one attempt; `look` never waits."""

    def __init__(self, run: Run, follower: Follower) -> None:
        self._run = run
        self._follower = follower
        self._began = self._since = run.clock.now()  # nothing before it is held against the tasks
        self._suspicion: _Suspicion | None = None
        self._noted: set[TaskId] = set()  # whose silence after a traceback was reported

    def look(self) -> Hung | None:
        """Decide once per hang; None while there is nothing to do, or `on_hang` only reports."""
        now = self._run.clock.now()
        if any(self._follower.placed[task] in self._run.losses.since for task in self._follower.waiting()):
            # Its tasks are unknown, and the others may well wait for them.
            self._since = now
            return None
        if (held := self._held(now)) is not None:
            return held
        found, suspected = self._look(now), self._suspicion
        if suspected is None:
            if found is not None:
                self._suspect(found, now)
            return None
        if found is None:
            self._suspicion = None
            self._run.emit(HangPassed(now - suspected.since))
            return None
        late = now - suspected.since > _PATIENCE
        if suspected.over or not (late or all(one.done() for one in suspected.answers.values())):
            return None
        suspected.over = True
        return self._judge(suspected, now)

    def _held(self, now: float) -> Hung | None:
        """Fail the attempt for a task that outlives its exception; warn of one that may."""
        follower, patience = self._follower, self._run.timings.held
        for task, since in follower.held.items():
            if task not in follower.ends and now - since >= patience:
                why = f"{task} has failed, and does not end"
                return Hung(
                    restart=True, place=f"held: {task}", seconds=since - self._began, verdict=None, why=why
                )
        for task, since in list(follower.traced.items()):
            quiet = now - follower.lives[task].heard
            if task in follower.ends or now - since > quiet + 1.0:  # it goes on
                del follower.traced[task]
            elif quiet >= patience and task not in self._noted:
                self._noted.add(task)
                lines = last_lines(self._run.folder.log(follower.attempt, str(task)), LOOKED_AT)
                said = Statement(lines)
                if what := said.loose or (said.exception and f"{said.exception} was raised"):
                    self._run.emit(
                        Noted(f"{task} has printed nothing for {duration(quiet)} after a traceback: {what}")
                    )
        return None

    def _look(self, now: float) -> hang.Hang | None:
        watched = hang.watched(self._follower.placed)
        lives = {
            task: life
            for task, life in self._follower.lives.items()
            if task in watched and task not in self._follower.ends
        }
        plan = self._run.plan
        if plan.terminal is not None:
            return None  # somebody sits at a prompt
        patience = plan.hang_timeout or self._run.timings.quiet
        return hang.look(lives, patience, now, since=self._since, completion=plan.completion)

    def _suspect(self, found: hang.Hang, now: float) -> None:
        run, only_said = (
            self._run,
            not self._run.plan.hang_timeout,
        )  # it costs nothing, and nobody asked for more
        kind = HangKind.QUIET if only_said else found.kind
        run.emit(HangSuspected(kind, tuple(map(str, found.tasks)), found.seconds))
        request = wire.Stacks(run=run.id, attempt=self._follower.attempt)
        sessions = {} if only_said else run.fleet.sessions
        answers = {name: session.submit(request) for name, session in sessions.items()}
        what = f"no word for {duration(found.seconds)}"
        if found.kind is HangKind.LAGGING:
            what = f"{ranges.fold(map(str, found.tasks))} behind the others for {duration(found.seconds)}"
        self._suspicion = _Suspicion(what, now, answers, over=only_said)

    def _judge(self, suspected: _Suspicion, now: float) -> Hung | None:
        plan = self._run.plan
        taken = self._keep(suspected.answers)
        cause = "the tasks hang" if taken is None else taken.said
        odd = taken.finding.odd if taken else ()
        if not odd and plan.completion is Completion.ALL and self._follower.ends:
            gone = ranges.fold(map(str, sorted(self._follower.ends)))
            cause = f"{gone} ended before the others, which may wait for it ({cause})"
        if taken is not None:
            missing, tasks = tuple(taken.missing), tuple(one.task for one in odd)
            self._run.emit(StacksTaken(tasks, cause, str(taken.file), missing, now - suspected.since))
        if plan.on_hang is OnHang.REPORT:
            return None
        return Hung(
            place=stacks.place(odd[0]) if odd and not odd[0].stopped else "",
            seconds=suspected.since - self._began,
            restart=plan.on_hang is OnHang.RESTART,
            verdict=Verdict(
                FailureKind.HANG,
                task=odd[0].task if odd else "",
                host=odd[0].host if odd else "",
                cause=f"{suspected.what}: {cause}",
                hint=f"read the stacks of all tasks in {taken.file}" if taken else "",
            ),
        )

    def _keep(self, answers: Mapping[str, Future[wire.StacksOf]]) -> RunStacks | None:
        good: dict[str, wire.StacksOf] = {}
        missing: dict[str, str] = {}
        for name, future in answers.items():
            try:
                good[name] = future.result(timeout=0)
            except HostError as error:
                missing[name] = error.in_one_line
            except Exception:  # given up, or too late
                missing[name] = "no answer in time"
        steps = {str(task): life.step for task, life in self._follower.lives.items()}
        try:
            at = self._run.clock.wall()
            return keep(self._run.folder, self._run.plan, good, missing, steps, hang=True, at=at)
        except Exception:  # no room, or text that nobody foresaw: the tasks hang all the same
            log.exception("the stacks cannot be kept")
            return None
