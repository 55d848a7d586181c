"""Tasks that hang: suspected, looked at, and what is to be done about them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from orchestrator import ranges, wire
from orchestrator.errors import HostError
from orchestrator.events import HangKind, HangPassed, HangSuspected, Noted, StacksTaken
from orchestrator.model import Completion, OnHang, RunPlan, TaskId
from orchestrator.phases.context import Run, log
from orchestrator.phases.follow import Follower
from orchestrator.planning.takeover import speaks_for
from orchestrator.run import hang, reach, stacks
from orchestrator.store import RunFolder
from orchestrator.text import duration

_PATIENCE = 45.0  # seconds for all nodes to answer
_TRY = 4.0  # seconds for a connection between two hosts
_LINKS = 12.0  # seconds for all hosts to have tried theirs

T = TypeVar("T")
Asked = Mapping[str, Future[T]]  # by host


def _answers(asked: Asked[T]) -> tuple[dict[str, T], dict[str, str]]:
    """Return what the hosts answered, and why the others did not."""
    good: dict[str, T] = {}
    missing: dict[str, str] = {}
    for name, future in asked.items():
        try:
            good[name] = future.result(timeout=0)
        except HostError as error:
            missing[name] = error.in_one_line
        except Exception:  # given up, or too late
            missing[name] = "no answer in time"
    return good, missing


class LinkTester:
    """Finds hosts that do not reach each other any more, when tasks are silent or blame a peer.

    A test connects to the ports of tasks: only to TensorFlow's, which ignores a connection that says
    nothing, and to those of tasks that have ended. A program of another kind could take it for its peer.
    """

    def __init__(self, run: Run, follower: Follower) -> None:
        self._run = run
        self._follower = follower
        self._began = 0.0
        self._vitals: Asked[wire.Measured] = {}
        self._probes: Asked[wire.Probes] = {}
        self.trouble = ""  # what the last test has shown, and since when

    @property
    def busy(self) -> bool:
        return bool(self._vitals or self._probes)

    def begin(self) -> None:
        """Ask which hosts run TensorFlow; `look` goes on from there."""
        sessions = self._run.fleet.sessions
        if not self.busy and len(self._run.names) > 1:
            self._began = time.monotonic()
            request = wire.VitalsAsk(run=self._run.id, attempt=self._follower.attempt, closely=True)
            self._vitals = {name: sessions[name].submit(request) for name in self._run.names}

    def look(self) -> None:
        """Take the next step of a test, once all hosts have answered; never wait."""
        late = time.monotonic() - self._began > _LINKS
        if self._vitals and (late or all(future.done() for future in self._vitals.values())):
            measured, self._vitals = _answers(self._vitals)[0], {}
            self._began = time.monotonic()
            self._probe([name for name, one in measured.items() if all(t.tensorflow for t in one.tasks)])
        elif self._probes and (late or all(future.done() for future in self._probes.values())):
            asked, self._probes = self._probes, {}
            self._conclude(_answers(asked)[0])

    def result(self) -> str:
        """Wait for the test that goes on; return what is wrong, "" for nothing."""
        while self.busy and not self._run.stop.asked:
            self._follower.step(0.05)
            self.look()
        return self.trouble

    def _probe(self, names: Sequence[str]) -> None:
        ports = {spec.host: spec.port for spec in reversed(self._run.plan.tasks)}
        hosts = [host for host in self._run.hosts if host.name in names and host.name in ports]
        targets = [wire.ProbeTarget(host.name, host.address, ports[host.name]) for host in hosts]
        self._probes = {
            name: session.submit(
                wire.Probe(nonce="", timeout=_TRY, targets=[one for one in targets if one.host != name])
            )
            for host in (hosts if len(hosts) > 1 else ())
            if (session := self._run.fleet.sessions.get(name := host.name)) is not None
        }

    def _conclude(self, replies: Mapping[str, wire.Probes]) -> None:
        """Say what is new. Only hosts that answered count: of the others it is known that they are lost."""
        tried = {
            (name, one.host): one.why
            for name, reply in replies.items()
            for one in reply.results
            if one.host in replies
        }
        words = reach.in_words(reach.closed(tried), replies.keys())
        if words and not self.trouble.startswith(words):
            self.trouble = f"{words} since {self._since()}"
            self._run.bus.emit(Noted(self.trouble))
        elif self.trouble and not words:
            self.trouble = ""
            self._run.bus.emit(Noted("all hosts reach each other again"))

    def _since(self) -> str:
        """The last step that any task has reported, else the last word: until then they were in touch."""
        steps = [life.stepped for life in self._follower.lives.values() if life.step is not None]
        last = max(steps, default=min(self._follower.heard, self._began))
        return time.strftime("%H:%M:%S", time.localtime(time.time() - (time.monotonic() - last)))


@dataclass(frozen=True)
class RunStacks:
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
) -> RunStacks:
    """Judge what the nodes have answered, and keep the whole of it. Raise OSError without room for it."""
    at = time.time()
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
        for process in task.processes:
            yield from _process(process)
        if task.more:
            yield f"---- and {task.more} more processes"


def _process(process: wire.StackProcess) -> Iterator[str]:
    waits = f", waits in {process.waits}" if process.waits else ""
    taken = f", by {process.how}" if process.text else f", no stacks: {process.why or 'no Python'}"
    yield (
        f"---- pid {process.pid} {process.argv0}: state {process.state}{waits},"
        f" {process.cpu:.1f} s of CPU{taken}"
    )
    if process.text:
        yield process.text.rstrip("\n")


@dataclass(frozen=True)
class Hung:
    """Tasks hang, and something is to be done: the attempt has failed."""

    restart: bool  # it may be started again
    place: str  # where the odd one stands; "" when something from outside holds it, or none stands out
    seconds: float  # from the attempt's start to the suspicion
    cause: str  # one line, as a verdict says it
    task: str  # the odd one; "" when none stands out
    host: str
    hint: str


@dataclass
class _Suspicion:
    what: str  # "no word for 10 min"
    since: float
    answers: Asked[wire.StacksOf]
    taken: bool = False


class Watch:
    """Looks after the tasks of one attempt; `look` never waits."""

    def __init__(self, run: Run, follower: Follower, links: LinkTester) -> None:
        self._run = run
        self._links = links
        self._follower = follower
        self._began = self._since = time.monotonic()  # nothing before it is held against the tasks
        self._unknown = False  # a host was lost at the last look
        self._suspicion: _Suspicion | None = None
        self._quiet = False  # it was said that nobody is heard of
        self._quiet_since = 0.0

    def look(self) -> Hung | None:
        """Decide once per hang; None while there is nothing to do, or `on_hang` only reports."""
        now = time.monotonic()
        if any(self._follower.host(task) in self._run.losses.since for task in self._follower.waiting()):
            # Its tasks are unknown, and the others may well wait for them.
            self._unknown = True
            return None
        if self._unknown:
            self._unknown, self._since = False, now
        self._look_at_quiet(now)
        if not self._run.plan.hang_timeout:
            return None
        suspected = self._suspicion
        if suspected is None:
            found = self._look(now)
            if found is not None:
                self._suspect(found, now)
            return None
        if self._look(now) is None:
            self._suspicion = None
            self._run.bus.emit(HangPassed(now - suspected.since))
            return None
        if suspected.taken or not self._answered(suspected, now):
            return None
        suspected.taken = True
        return self._judge(suspected, now)

    def _look(self, now: float) -> hang.Hang | None:
        watched = hang.watched(self._follower.tasks)
        lives = {
            task: life
            for task, life in self._follower.lives.items()
            if task in watched and task not in self._follower.ends
        }
        plan = self._run.plan
        return hang.look(lives, plan.hang_timeout, now, since=self._since, completion=plan.completion)

    def _look_at_quiet(self, now: float) -> None:
        """Say when nobody was heard of for long: that costs nothing, and nobody has to ask for it."""
        if self._suspicion is not None:
            return
        waiting = set(self._follower.waiting())
        heard = max((self._follower.lives[task].heard for task in waiting), default=now)
        silent = now - max(self._since, heard)
        is_quiet = silent >= self._run.timings.quiet
        if self._quiet and not is_quiet:
            self._quiet = False
            self._run.bus.emit(HangPassed(now - self._quiet_since))
        elif is_quiet and not self._quiet:
            self._quiet, self._quiet_since = True, now
            self._links.begin()
            self._run.bus.emit(HangSuspected(HangKind.QUIET, tuple(map(str, sorted(waiting))), silent))

    def _ask(self) -> dict[str, Future[wire.StacksOf]]:
        request = wire.Stacks(run=self._run.id, attempt=self._follower.attempt)
        return {name: session.submit(request) for name, session in self._run.fleet.sessions.items()}

    def _tell(self, taken: RunStacks, odd: Sequence[stacks.Stand], found: str, seconds: float) -> None:
        tasks = tuple(one.task for one in odd)
        self._run.bus.emit(StacksTaken(tasks, found, str(taken.file), tuple(taken.missing), seconds))

    def _suspect(self, found: hang.Hang, now: float) -> None:
        run = self._run
        self._quiet = False
        run.bus.emit(HangSuspected(found.kind, tuple(map(str, found.tasks)), found.seconds))
        self._links.begin()
        self._suspicion = _Suspicion(_worded(found), now, self._ask())

    def _answered(self, suspected: _Suspicion, now: float) -> bool:
        return now - suspected.since > _PATIENCE or (
            not self._links.busy and all(one.done() for one in suspected.answers.values())
        )

    def _judge(self, suspected: _Suspicion, now: float) -> Hung | None:
        plan = self._run.plan
        taken = self._keep(suspected.answers)
        cause = "the tasks hang" if taken is None else taken.said
        odd = taken.finding.odd if taken else ()
        if self._links.trouble:  # then they wait for each other, and nobody is to blame
            odd, cause = (), self._links.trouble
        elif not odd and plan.completion is Completion.ALL and self._follower.ends:
            gone = ranges.fold(map(str, sorted(self._follower.ends)))
            cause = f"{gone} ended before the others, which may wait for it ({cause})"
        if taken is not None:
            self._tell(taken, odd, cause, now - suspected.since)
        if plan.on_hang is OnHang.REPORT:
            return None
        return Hung(
            place=stacks.place(odd[0]) if odd and not odd[0].stopped else "",
            seconds=suspected.since - self._began,
            restart=plan.on_hang is OnHang.RESTART,
            cause=f"{suspected.what}: {cause}",
            task=odd[0].task if odd else "",
            host=odd[0].host if odd else "",
            hint=_hint(odd, f"read the stacks of all tasks in {taken.file}" if taken else ""),
        )

    def _keep(self, answers: Asked[wire.StacksOf]) -> RunStacks | None:
        good, missing = _answers(answers)
        steps = {str(task): life.step for task, life in self._follower.lives.items()}
        try:
            return keep(self._run.folder, self._run.plan, good, missing, steps, hang=True)
        except Exception:  # no room, or text that nobody foresaw: the tasks hang all the same
            log.exception("the stacks cannot be kept")
            return None


def _worded(found: hang.Hang) -> str:
    if found.kind is HangKind.LAGGING:
        return f"{ranges.fold(map(str, found.tasks))} behind the others for {duration(found.seconds)}"
    return f"no word for {duration(found.seconds)}"


def _hint(odd: tuple[stacks.Stand, ...], where: str) -> str:
    if odd and odd[0].stopped:
        return f"`kill -CONT` lets it continue: a debugger, `kill -STOP` or Ctrl-Z stopped it; {where}"
    return where
