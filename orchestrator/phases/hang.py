"""Hanging tasks: detecting them, taking their stacks, and restarting or ending the run."""

import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from orchestrator import ranges, wire
from orchestrator.diagnosis.verdict import Verdict
from orchestrator.errors import HostError
from orchestrator.events import FailureKind, HangKind, HangPassed, HangSuspected, StacksTaken
from orchestrator.model import Completion, OnHang, RunPlan, TaskId
from orchestrator.phases.context import Run, unforeseen
from orchestrator.phases.follow import Follower
from orchestrator.planning.takeover import speaks_for
from orchestrator.run import hang, stacks
from orchestrator.store import RunFolder
from orchestrator.text import duration
from orchestrator.value import Value

_PATIENCE = 45.0  # seconds for all nodes to reply
_PAUSED = 5.0  # seconds between two calls of `look`, usually 0.5, that show that this process was frozen


class RunStacks(Value):
    """The stacks of a run's tasks at one moment."""

    finding: stacks.StackFinding
    sentence: str  # the same on one line
    missing: Mapping[str, str]  # host -> why it returned none
    file: Path
    tasks: Sequence[tuple[str, wire.TaskStacks]]  # what the nodes reported, each with its host


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
    """Judge the nodes' replies and store them in full. Raise OSError if there is no room."""
    replies = [
        (host, task)
        for host, reply in good.items()
        for answered in reply.tasks
        if (task := stacks.living(answered)) is not None and speaks_for(plan, host, task.attempt, task.task)
    ]
    replies.sort(key=lambda reply: (TaskId.parse(reply[1].task), reply[1].attempt))
    each = [stacks.stack_of(task.task, host, task.processes, steps.get(task.task)) for host, task in replies]
    finding = stacks.find(each, plan.completion)
    sentence = stacks.sentence(finding, hang=hang)
    head = f"run {plan.run}, {time.strftime('%Y-%m-%d %H:%M:%S %z', time.localtime(at))}\n{sentence}\n"
    text = head + "\n".join(_whole(finding, replies, missing)) + "\n"
    return RunStacks(finding, sentence, missing, folder.write_stacks(at, text), replies)


def _whole(
    finding: stacks.StackFinding, replies: Sequence[tuple[str, wire.TaskStacks]], missing: Mapping[str, str]
) -> Iterator[str]:
    yield from (f"no stacks from {host}: {why}" for host, why in missing.items())
    yield ""
    yield from stacks.folded(finding)
    for host, task in replies:
        yield f"\n==== {task.task} on {host}, attempt {task.attempt}"
        for process in task.processes:
            waits = f", waits in {process.waits}" if process.waits else ""
            taken = "" if process.text else f", no stacks: {process.why or 'no Python'}"
            state = f"state {process.state}{waits}, {process.cpu:.1f} s of CPU{taken}"
            yield f"---- pid {process.pid} {process.argv0}: {state}"
            if process.text:
                yield process.text.rstrip("\n")
        if task.more:
            yield f"---- and {task.more} more processes"


class Hung(Value):
    """An attempt that failed although no task has ended: tasks hang, or one survives its exception."""

    restart: bool  # it may be restarted
    place: str  # where the odd task hangs; "" if it was stopped from outside, or none differs
    seconds: float  # from the attempt's start to the suspicion
    verdict: Verdict | None  # the host of the odd task; None if that task reported an exception
    why: str = "the tasks hang"


class _Suspicion(Struct):
    what: str  # "no output for 10 min"
    since: float
    answers: Mapping[str, Future[wire.StacksOf]]  # by host
    over: bool  # no further action follows


class Watch:
    """Watches the tasks of one attempt for hangs; `look` never blocks."""

    def __init__(self, run: Run, follower: Follower) -> None:
        self._run = run
        self._follower = follower
        # Silence before `_since` does not count against the tasks.
        self._began = self._since = self._looked = run.clock.now()
        self._suspicion: _Suspicion | None = None

    def look(self) -> Hung | None:
        """Return each hang once; None while there is none, or if `on_hang` only reports it."""
        now, before = self._run.clock.now(), self._looked
        self._looked = now
        if now - before > _PAUSED and self._suspicion is None:  # their output is yet to be read
            self._since = now
        if any(self._follower.placed[task] in self._run.since_lost for task in self._follower.running()):
            # Its tasks are unknown, and the others may be waiting for them.
            self._since = now
            return None
        for task, since in self._follower.held.items():
            if task not in self._follower.ends and now - since >= self._run.timings.held:
                why = f"{task} has failed, but does not end"
                seconds = since - self._began
                return Hung(restart=True, place=f"held: {task}", seconds=seconds, verdict=None, why=why)
        current, suspected = self._look(now), self._suspicion
        if suspected is None:
            if current is not None:
                self._suspect(current, now)
            return None
        if current is None:
            self._suspicion = None
            self._run.emit(HangPassed(now - suspected.since))
            return None
        late = now - suspected.since > _PATIENCE
        if suspected.over or not (late or all(answer.done() for answer in suspected.answers.values())):
            return None
        suspected.over = True
        return self._judge(suspected, now)

    def _look(self, now: float) -> HangSuspected | None:
        plan, follower = self._run.plan, self._follower
        if plan.terminal is not None:
            return None  # somebody uses a prompt
        watched = hang.watched(follower.placed) - follower.ends.keys()
        lives = {task: life for task, life in follower.lives.items() if task in watched}
        patience = plan.hang_timeout or self._run.timings.quiet
        return hang.look(lives, patience, now, since=self._since, completion=plan.completion)

    def _suspect(self, symptom: HangSuspected, now: float) -> None:
        run = self._run
        only_reports = not run.plan.hang_timeout  # no action was requested, and taking stacks has a cost
        run.emit(replace(symptom, kind=HangKind.QUIET) if only_reports else symptom)
        request = wire.Stacks(run=run.id, attempt=self._follower.attempt)
        sessions = {} if only_reports else run.fleet.sessions
        answers = {name: session.submit(request) for name, session in sessions.items()}
        what = f"no output for {duration(symptom.seconds)}"
        if symptom.kind is HangKind.LAGGING:
            what = f"{ranges.fold(symptom.tasks)} behind the others for {duration(symptom.seconds)}"
        self._suspicion = _Suspicion(what, now, answers, over=only_reports)

    def _judge(self, suspected: _Suspicion, now: float) -> Hung | None:
        plan = self._run.plan
        taken = self._keep(suspected.answers)
        cause = "the tasks hang" if taken is None else taken.sentence
        odd = taken.finding.odd if taken else ()
        if not odd and plan.completion is Completion.ALL and self._follower.ends:
            gone = ranges.fold(map(str, sorted(self._follower.ends)))
            cause = f"{gone} ended before the others, which may wait for it ({cause})"
        if taken is not None:
            missing, tasks = tuple(taken.missing), tuple(task.task for task in odd)
            self._run.emit(StacksTaken(tasks, cause, str(taken.file), missing, now - suspected.since))
        if plan.on_hang is OnHang.REPORT:
            return None
        return Hung(
            place=stacks.place(odd[0]) if odd and not odd[0].stopped else "",
            seconds=suspected.since - self._began,
            restart=plan.on_hang is OnHang.RESTART,
            verdict=Verdict(
                FailureKind.HANG,
                cause_task=odd[0].task if odd else "",
                cause_host=odd[0].host if odd else "",
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
        except Exception as error:  # no room, or unexpected text: the tasks hang in any case
            unforeseen("the stacks cannot be kept", error)
            return None
