"""Following the tasks of one attempt: bytes to disk first, ends as facts, lost hosts until they are back."""

from __future__ import annotations

import contextlib
import queue
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from types import MappingProxyType
from typing import TypeAlias

from orchestrator import wire
from orchestrator.errors import HostError, Trouble
from orchestrator.events import (
    Event,
    GapPlace,
    Last,
    LogGap,
    Loss,
    Noted,
    TaskExited,
    TaskProgressed,
    TaskReported,
    TaskStarted,
)
from orchestrator.fleet import Lost, Session, TaskNews, problems
from orchestrator.model import TaskId
from orchestrator.names import is_validation
from orchestrator.phases.connect import keep_again
from orchestrator.phases.context import Emit, Run, log
from orchestrator.phases.loop import Followed, Reconnected, ViewerRequest, Watched
from orchestrator.phases.restart import recovery
from orchestrator.plainfile import tail_of
from orchestrator.run import fitlines, hang
from orchestrator.run.fitlines import Fit
from orchestrator.run.records import (
    Allowance,
    ReportLines,
    TaskPlace,
    final,
    last_error,
    reported,
    vanished,
)
from orchestrator.store import RunFolder
from orchestrator.store.mirror import Mirror, has_room
from orchestrator.store.reader import events_of, last_bytes

_AGAIN = 5.0  # seconds until what cannot be had now is tried again
_UNKNOWN = "its host knows nothing of it: it was never started, or its state folder was emptied"
_EPOCH, _CAUGHT_UP = 64 << 10, 8 << 20  # bytes of a log before the last point, and after it
_LOSS = re.compile(rb"(?i)\bloss\W{1,4}\d")  # as the program's own words have it: it trains
_HOLES = 3  # in what a host sends of its files, after which nobody believes it
LOG_CAP = 16 * 2**30  # bytes of one task's log that a node keeps
Known: TypeAlias = Mapping[TaskId, tuple[wire.TaskStatus, float]]  # ends, each with its node's clock offset


class Follower:
    """Mirrors the tasks of one attempt and keeps what is known of their ends.

    `step` handles what has arrived; everything runs on the thread that calls it.
    """

    def __init__(self, run: Run, attempt: str, placed: Mapping[TaskId, str], told: Emit) -> None:
        self.ends: dict[TaskId, TaskExited] = {}
        self._run = run
        self.attempt = attempt
        self.placed = dict(placed)
        self._told = told
        self._on: dict[str, list[TaskId]] = {}  # host -> its tasks
        for task, name in placed.items():
            self._on.setdefault(name, []).append(task)
        now = run.clock.now()
        self.lives = {task: hang.Life(now) for task in placed}  # when each was heard of last
        self._mirrors = {task: Mirror(run.folder, attempt, str(task)) for task in placed}
        self.fits = {task: fitlines.Lines(several=len(placed) > 1) for task in placed}
        self._reports = {task: ReportLines() for task in placed}
        self._shares: dict[tuple[TaskId, type[Event]], Allowance] = {}
        self._points = None if is_validation(attempt) else run.points
        self._reported: dict[TaskId, dict[str, int]] = {}  # the figures that tasks report, each with its step
        self._diverged: dict[TaskId, str] = {}
        self.peers: dict[str, wire.Peers] = {}  # how far each has come with the others, as its node tells
        self.trains: dict[TaskId, float] = {}  # when each showed a loss first
        self._missing: dict[TaskId, int] = {}  # bytes
        self._said_missing: dict[TaskId, int] = {}  # of them, what somebody was told of
        self._holes: Counter[str] = Counter()  # by host
        self._asked_keep = self._run.clock.now()
        # When a main thread was reported as ended by an exception, or a traceback was printed last.
        self.held: dict[TaskId, float] = {
            task: now for task in placed if reported_held(run.folder, attempt, str(task))
        }
        self.traced: dict[TaskId, float] = {}
        self._deferred: dict[tuple[int, int], Session] = {}  # streams for which there was no room
        self._due: dict[str, float] = {}  # host -> when to ask again for its logs, monotonic
        for task in placed:
            self._catch_up(task)
        self.stopping: Callable[[Session], None] | None = None  # what a host that comes back is told

    @property
    def heard(self) -> float:
        """When a task last printed or reported anything."""
        return max(life.heard for life in self.lives.values())

    def waiting(self) -> list[TaskId]:
        """The tasks whose end is not known yet."""
        return [task for task in self.placed if task not in self.ends]

    def attach(self, hosts: Iterable[str] | None = None) -> None:
        """Ask the agents for everything that is not on our disk yet."""
        for name in self._on if hosts is None else hosts:
            session = self._run.fleet.sessions.get(name)
            if session is None:
                self._lose(name, "there was no connection")
                continue
            tasks = [
                wire.From(str(task), self._mirrors[task].log.size, self._mirrors[task].report.size)
                for task in self._on.get(name, ())  # a host that was replaced has none
                if task not in self.ends
            ]
            answer = session.submit(wire.Follow(run=self._run.id, attempt=self.attempt, tasks=tasks))
            answer.add_done_callback(partial(self._answered, session))

    def fit(self, task: TaskId) -> Fit | None:
        """Return what a task prints of its training; only the epoch of one that reports the rest."""
        fit = self.fits[task].fit
        return Fit(fit.epoch, fit.epochs) if fit and task in self._reported else fit

    def know(self, exited: TaskExited) -> None:
        """Take over an end that an earlier keeper has told already."""
        if (task := TaskId.parse(exited.task)) in self.placed:
            self.ends[task] = exited

    def step(self, timeout: float) -> bool:
        """Handle what arrives within `timeout` seconds; True when a viewer asked for something."""
        asked = self._take(timeout)
        if self._run.losses.unkept and self._run.clock.now() - self._asked_keep > _AGAIN:
            self._asked_keep = self._run.clock.now()
            for name in list(self._run.losses.unkept):
                if (session := self._run.fleet.sessions.get(name)) is not None:
                    keep_again(self._run, session)
        self._fetch_deferred()
        self._show()
        return asked

    def give_up(self, known: Known = MappingProxyType({})) -> None:
        """End what was told to stop and is not waited for any longer: its host stays lost, or KILL fails."""
        self.leave_behind(known)
        for task in self.waiting():
            silent, loss = recovery.silence(self._run, self.placed[task])
            why = silent or "it has not ended, and nothing tells why"
            self._end(vanished(self._place(task), why, self._run.clock.wall(), stopped=True, loss=loss))

    def give_up_host(self, name: str, taken: str = "") -> None:
        """Take the tasks of a host that stays lost for failed; `taken` is why, where Slurm says it."""
        self._lost(name, *((taken, Loss.TAKEN) if taken else recovery.silence(self._run, name)))

    def _distrust(self, error: HostError) -> None:
        """Take the tasks of a host that lies for failed: it would lie again, so nobody waits for them."""
        self._lose(error.host, recovery.reason(error), pause=_AGAIN)
        self._lost(error.host, f"its host {error.in_one_line}", Loss.UNREACHABLE)

    def _lost(self, name: str, why: str, loss: Loss) -> None:
        for task in self.waiting():
            if self.placed[task] == name:
                self._end(vanished(self._place(task), why, self._run.clock.wall(), loss=loss))

    def close(self) -> None:
        self._show(now=True)
        for mirror in self._mirrors.values():
            mirror.close()

    def _take(self, timeout: float) -> bool:
        deadline = self._run.clock.now() + timeout
        while True:
            try:
                item = self._run.loop.get(timeout=max(0.0, deadline - self._run.clock.now()))
            except queue.Empty:
                return False
            match item:
                case ViewerRequest():
                    return True
                case Watched():
                    return False
                case Reconnected(session):
                    if recovery.regain(self._run, session):
                        self.attach([session.host.name])
                        if self.stopping is not None:
                            self.stopping(session)
                case _ if self._run.fleet.sessions.get(item.session.host.name) is not item.session:
                    pass  # of a session that was given up: another one tells it again
                case Followed(session, missing, error):
                    if error is not None:
                        self._lose(session.host.name, error.in_one_line, pause=_AGAIN)
                    for task in filter(None, (self.task_on(session.host.name, name) for name in missing)):
                        if task not in self.ends:
                            self._end(vanished(self._place(task), _UNKNOWN, self._run.clock.wall()))
                case Lost(error=error) if error.kind == Trouble.PROTOCOL:
                    self._distrust(error)
                case Lost(error=error):
                    self._lose(item.host, recovery.reason(error))
                case TaskNews():
                    self._mirrored(item)
            if self._run.clock.now() >= deadline or len(self.ends) == len(self.placed):
                return False

    def _answered(self, session: Session, future: Future[wire.Unknown]) -> None:
        """From the session's reader: what became of a `follow`."""
        error = future.exception()
        if error is None:
            self._run.loop.put(Followed(session, future.result().missing))
        elif isinstance(error, HostError) and session.alive:
            self._run.loop.put(Followed(session, error=error))

    def _mirrored(self, frame: TaskNews) -> None:
        """Take a frame in; when this machine has no room for it, it waits on the node."""
        if (id(frame.session), frame.news.stream) in self._deferred:
            return
        try:
            self._frame(frame)
        except OSError as error:
            self._defer(frame, error)
        except ValueError as error:  # a hole in the stream
            self._holes[frame.host] += 1
            if self._holes[frame.host] < _HOLES:
                self._lose(frame.host, str(error))
            else:
                self._distrust(problems.foreign(frame.session.host, str(error)))

    def _defer(self, frame: TaskNews, error: OSError) -> None:
        """End a stream for which there is no room; its host stays connected, and can be stopped."""
        frame.session.submit(wire.Unfollow(target=frame.news.stream))
        self._deferred[id(frame.session), frame.news.stream] = frame.session
        if not self._due:
            folder = self._run.folder.path
            where = error.filename or folder
            log.warning("no room for the logs: %s", error)
            self._told(
                Noted(
                    f"the logs wait on their hosts: {error.strerror} on this machine ({where});"
                    f" `df -h {shlex.quote(str(folder))}`, then make room: the run continues by itself"
                )
            )
        self._due[frame.host] = self._run.clock.now() + _AGAIN

    def _fetch_deferred(self) -> None:
        """Ask again for the logs that wait on their hosts, once there is room for them."""
        now = self._run.clock.now()
        for name in self._due:  # its tasks may print: nothing here can tell
            for task in self._on.get(name, ()):
                hang.heard(self.lives, task, now)
        due = [name for name, when in self._due.items() if now >= when]
        if due and not has_room(self._run.folder.path):
            self._due.update(dict.fromkeys(due, now + _AGAIN))
        elif due:
            for name in due:
                del self._due[name]
            if not self._due:
                self._told(Noted("there is room again on this machine: the logs are fetched"))
            self.attach(due)

    def _frame(self, frame: TaskNews) -> None:
        news = frame.news
        task = self.task_on(frame.host, news.task)
        if task is None or task in self.ends or news.attempt != self.attempt:
            return
        mirror = self._mirrors[task]
        if not isinstance(news, wire.StateNews):
            hang.heard(self.lives, task, self._run.clock.now())
        match news:
            case wire.LogNews(offset=offset, times=times):
                here = mirror.log.size
                mirror.add_log(offset, frame.payload, times)
                printed = self.fits[task].feed(frame.payload[max(0, here - offset) :])
                self._printed(task, printed, times, frame.session.clock_offset)
                if b"Traceback (most recent call last)" in frame.payload:
                    self.traced[task] = self._run.clock.now()
                if task not in self.trains and _LOSS.search(frame.payload):
                    self.trains[task] = self._run.clock.now()
            case wire.ReportNews(offset=offset):
                known = mirror.report.size
                try:
                    mirror.report.add(offset, frame.payload)
                finally:  # what found room on a full disk is not sent again
                    if mirror.report.size > known:
                        self._records(task, frame.payload[known - offset : mirror.report.size - offset])
            case wire.StateNews(state=state):
                self._state(task, frame.session, state)

    def task_on(self, host: str, name: str) -> TaskId | None:
        """The task that a host speaks of; None unless it is one of its own."""
        try:
            task = TaskId.parse(name)
        except ValueError:
            return None
        return task if self.placed.get(task) == host else None

    def leave_behind(self, known: Known = MappingProxyType({})) -> None:
        """End tasks that have ended by their nodes' word though their output is not all here, and say so.

        `known` are such words from before: a host may be lost by now.
        """
        for task, (told, clock_offset) in {**known, **ended_on_nodes(self._run, self.attempt)}.items():
            if task in self.placed and task not in self.ends:
                if (behind := told.log_size - self._mirrors[task].log.size) > 0:
                    why = f"not fetched: the rest of its log is on {self.placed[task]}"
                    self._told(LogGap(str(task), GapPlace.CONTROLLER, behind, why))
                self._end(final(self._place(task), told.state, clock_offset, self._run.clock.wall()))

    def _records(self, task: TaskId, data: bytes) -> None:
        for line in self._reports[task].feed(data):
            try:
                event = reported(task, line)
            except ValueError:
                log.warning("%s reported what is not a JSON object: %r", task, line[:200])
                continue
            now = self._run.clock.now()
            if isinstance(event, TaskProgressed):
                hang.stepped(self.lives, task, event.step, now)
                self._progressed(task, event, self._run.clock.wall(), self._reports[task].end)
                continue
            if isinstance(event, TaskReported) and event.data.get("held") and event.kind is Last.ERROR:
                self.held[task] = now
            if event is not None:
                kind = task, type(event)
                if self._shares.setdefault(kind, Allowance()).take(now):
                    self._told(event)

    def _state(self, task: TaskId, session: Session, state: wire.TaskRecord) -> None:
        self.peers[str(task)] = state.peers
        missing, said = state.missing, self._said_missing.get(task, 0)
        # It grows for as long as there is no room: said at its beginning, and as a whole at the end.
        if missing > said and (not said or state.state.final):
            self._said_missing[task] = missing
            self._told(LogGap(str(task), GapPlace.NODE, missing - said, state.gaps[-1].why))
        if missing != self._missing.get(task, 0):
            self._missing[task] = missing
            hang.heard(self.lives, task, self._run.clock.now())  # it prints, and its node has no room for it
        if not state.state.final:
            return
        self._end(final(self._place(task), state, session.clock_offset, self._run.clock.wall()))

    def _place(self, task: TaskId) -> TaskPlace:
        return TaskPlace(task, self.placed[task], self.attempt)

    def _printed(
        self, task: TaskId, fits: Iterable[tuple[int, Fit]], times: Sequence[tuple[int, int]], ahead: float
    ) -> None:
        """Take what a task printed of its training; of one that reports only what it does not report."""
        now, reported = self._run.clock.wall(), self._reported.get(task, {})
        for end, fit in fits:
            event = fit.progress(str(task))
            at = next((ns / 1e9 - ahead for offset, ns in reversed(times) if offset < end), now)
            if reported:
                others = {name: one for name, one in event.metrics.items() if name not in reported}
                event = TaskProgressed(str(task), max(reported.values()), None, None, metrics=others)
            if not reported or event.metrics:
                self._progressed(task, event, at if at < now - _AGAIN else now, end, printed=True)

    def _progressed(
        self, task: TaskId, event: TaskProgressed, at: float, end: int, *, printed: bool = False
    ) -> None:
        """Keep a point, and tell of it as often as a person can read; a loss that is no number at once."""
        if event.loss is not None or event.diverged:
            self.trains.setdefault(task, self._run.clock.now())
        if not printed:
            self._reported[task] = dict.fromkeys(("loss", *event.metrics), event.step)
        shown = [event]
        if self._points is not None:
            changed = event.diverged != self._diverged.get(task, "")
            made = self._points.take(event, self.attempt, at, end, printed=printed)
            shown = [one.event for one in made or self._points.newest(str(task), now=changed)]
        self._diverged[task] = event.diverged
        for one in shown:
            self._told(one)

    def _show(self, *tasks: TaskId, now: bool = False) -> None:
        """Let viewers see the newest points of tasks, of all without one."""
        if self._points is None:
            return
        for task in tasks or self.placed:
            for point in self._points.newest(str(task), now=now):
                self._told(point.event)
        try:
            self._points.write()
        except OSError as error:  # no room: they wait
            log.debug("points: %s", error)

    def _catch_up(self, task: TaskId) -> None:
        """Take the points of what an earlier keeper had brought here, and had not taken."""
        if self._points is None:
            return
        last, printed = (self._points.last(self.attempt, str(task), printed=one) for one in (False, True))
        report, log_end = last.end if last else 0, printed.end if printed else 0
        if last is not None:
            self._reported[task] = dict.fromkeys(("loss", *last.values), last.step)
        mirror, lines, fits = self._mirrors[task], self._reports[task], self.fits[task]
        lines.end = report
        for line in lines.feed(tail_of(mirror.report.path, report)[0]):
            with contextlib.suppress(ValueError):
                if isinstance(event := reported(task, line), TaskProgressed):
                    self._progressed(task, event, self._run.clock.wall(), lines.end)
        data, fits.offset = tail_of(mirror.log.path, max(0, log_end - _EPOCH), _CAUGHT_UP)
        known = max(0, log_end - fits.offset)
        fits.feed(data[:known])  # for the epoch
        self._printed(task, fits.feed(data[known:]), (), 0.0)

    def _end(self, exited: TaskExited) -> None:
        self._show(TaskId.parse(exited.task), now=True)
        self.ends[TaskId.parse(exited.task)] = exited
        self._told(exited)

    def _lose(self, name: str, why: str, *, pause: float = 0.0) -> None:
        recovery.lose(self._run, name, why, pause=pause)


def reported_held(folder: RunFolder, attempt: str, task: str) -> bool:
    """Return True if the task has reported an exception after which something keeps it alive."""
    error = last_error(last_bytes(folder.report(attempt, task)))
    return error is not None and error.held != ""


def ended_on_nodes(run: Run, attempt: str) -> Known:
    """Tasks of an attempt that have ended, as their hosts tell, and how far each clock is ahead."""
    placed = {(spec.host, str(spec.id)): spec.id for spec in run.plan.tasks}
    answers = run.fleet.ask(wire.States(run=run.id), timeout=10.0)
    clocks = {name: session.clock_offset for name, session in run.fleet.sessions.items()}
    return {
        placed[name, one.task]: (one, clocks.get(name, 0.0))
        for name, reply in answers.good.items()
        for one in reply.tasks
        if one.attempt == attempt and one.state.state.final and not one.alive and (name, one.task) in placed
    }


_PATIENCE = 30.0  # seconds for what is on the nodes to come here


def collect(run: Run, attempt: str) -> None:
    """Bring the output of an attempt's tasks here, and tell how each ended that was started, or is on a host.

    Also of tasks that nobody told of: their keeper may have been killed over it.
    """
    there = ended_on_nodes(run, attempt)
    history = [stamped.event for stamped in events_of(run.folder)]
    started = {event.task for event in history if isinstance(event, TaskStarted) and event.attempt == attempt}
    tasks = [spec for spec in run.plan.tasks if spec.id in there or str(spec.id) in started]
    if not tasks:
        return
    for spec in tasks:
        if str(spec.id) not in started:
            run.emit(TaskStarted(str(spec.id), spec.host, attempt, there[spec.id][0].state.started_as))
    follower = Follower(run, attempt, {spec.id: spec.host for spec in tasks}, run.emit)
    for event in history:
        if isinstance(event, TaskExited) and event.attempt == attempt:
            follower.know(event)
    follower.attach()
    deadline = run.clock.now() + _PATIENCE
    while run.clock.now() < deadline:
        if all(follower.placed[task] in run.losses.since for task in follower.waiting()):
            break
        if follower.step(0.2) and run.stop.kill:
            break  # a user has no more patience
    follower.give_up(there)
    follower.close()
