"""Tasks that hang: suspected, looked at, and what is to be done about them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from orchestrator import ranges, wire
from orchestrator.errors import HostError
from orchestrator.events import HangKind, HangPassed, HangSuspected, Noted, StacksTaken
from orchestrator.model import OnHang
from orchestrator.phases.context import Run, log
from orchestrator.phases.follow import Follower
from orchestrator.phases.reach import LinkTester
from orchestrator.phases.stacks import RunStacks, keep
from orchestrator.run import hang, stacks
from orchestrator.text import duration

_PATIENCE = 45.0  # seconds for all nodes to answer


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
    answers: Mapping[str, Future[wire.StacksOf]]
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
        self._wish: dict[str, Future[wire.StacksOf]] = {}  # the stacks that a viewer wants
        self._wished = 0.0
        self._quiet_since = 0.0

    def look(self) -> Hung | None:
        """What is to be done now, once per hang; None while there is nothing, or `on_hang` only reports."""
        now = time.monotonic()
        self._look_at_wish(now)
        if any(self._follower.host(task) in self._run.lost for task in self._follower.waiting()):
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
        if self._quiet and silent < hang.QUIET:
            self._quiet = False
            self._run.bus.emit(HangPassed(now - self._quiet_since))
        elif not self._quiet and silent >= hang.QUIET:
            self._quiet, self._quiet_since = True, now
            self._run.bus.emit(HangSuspected(HangKind.QUIET, tuple(map(str, sorted(waiting))), silent))

    def _look_at_wish(self, now: float) -> None:
        """Take the stacks that a viewer asked for, whether or not anything hangs."""
        if self._run.wants_stacks.is_set() and not self._wish:
            self._run.wants_stacks.clear()
            self._wish, self._wished = self._ask(), now
        if self._wish and (now - self._wished > _PATIENCE or all(one.done() for one in self._wish.values())):
            taken, self._wish = self._keep(self._wish), {}
            if taken is None:
                self._run.bus.emit(Noted("the stacks cannot be kept; debug.log of the run has why"))
            else:
                self._tell(taken, taken.finding.odd, taken.said, now - self._wished)

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
        self._suspicion = _Suspicion(_worded(found), now, self._ask())

    @staticmethod
    def _answered(suspected: _Suspicion, now: float) -> bool:
        return now - suspected.since > _PATIENCE or all(one.done() for one in suspected.answers.values())

    def _judge(self, suspected: _Suspicion, now: float) -> Hung | None:
        plan = self._run.plan
        taken = self._keep(suspected.answers)
        cause = "the tasks hang" if taken is None else taken.said
        odd = taken.finding.odd if taken else ()
        if self._links.trouble:  # then they wait for each other, and nobody is to blame
            odd, cause = (), self._links.trouble
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

    def _keep(self, answers: Mapping[str, Future[wire.StacksOf]]) -> RunStacks | None:
        good: dict[str, wire.StacksOf] = {}
        missing: dict[str, str] = {}
        for host, future in answers.items():
            try:
                good[host] = future.result(timeout=0)
            except HostError as error:
                missing[host] = error.in_one_line
            except Exception:  # given up, or too late
                missing[host] = f"no answer within {_PATIENCE:g} s"
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
