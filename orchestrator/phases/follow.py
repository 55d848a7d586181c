"""Following the tasks of one attempt: storing their output, and recording how they ended."""

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
    Stepped,
    TaskExited,
    TaskProgressed,
    TaskReported,
    TaskStarted,
)
from orchestrator.fleet import Lost, Session, TaskNews, problems
from orchestrator.model import TaskId
from orchestrator.names import is_validation
from orchestrator.node.base.lenient import FULL
from orchestrator.phases import recovery
from orchestrator.phases.context import Emit, Run, log
from orchestrator.phases.loop import Reconnected, ViewerRequest, Watched
from orchestrator.plainfile import tail_of
from orchestrator.run import fitlines, hang
from orchestrator.run.fitlines import Fit
from orchestrator.run.records import (
    LONGEST,
    Allowance,
    ReportLines,
    TaskPlace,
    final,
    last_error,
    reported,
    vanished,
)
from orchestrator.store.mirror import Mirror, has_room
from orchestrator.store.reader import events_of, last_bytes

_TOGETHER = 0.3  # seconds after an end: tasks that fail for one reason are reported together
_AGAIN = 5.0  # seconds until a failed request is repeated
_UNKNOWN = "its host has no record of it: it was never started, or its state folder was emptied"
_EPOCH = 64 << 10  # bytes at the end of a log that are searched for its epoch
_LOSS = re.compile(rb"(?i)\bloss\W{1,4}\d")  # in a task's own output: it trains
_HOLES = 3  # gaps in the streams of one host, after which it is no longer trusted
LOG_CAP = 16 * 2**30  # bytes of one task's log that a node keeps
NodeEnds: TypeAlias = Mapping[TaskId, tuple[wire.TaskStatus, float]]  # each with its node's clock offset


class Follower:
    """Mirrors the tasks of one attempt and records how they ended.

    `step` handles what has arrived; everything runs in the thread that calls it.
    """

    def __init__(self, run: Run, attempt: str, placed: Mapping[TaskId, str], emit: Emit) -> None:
        self.ends: dict[TaskId, TaskExited] = {}
        self._run = run
        self.attempt = attempt
        self.placed = dict(placed)
        self._emit = emit
        self._on: dict[str, list[TaskId]] = {}  # host -> its tasks
        for task, name in placed.items():
            self._on.setdefault(name, []).append(task)
        now = run.clock.now()
        self.lives = {task: hang.Life(now) for task in placed}  # when each was last active
        self._mirrors = {task: Mirror(run.folder, attempt, str(task)) for task in placed}
        self.fits = {task: fitlines.Lines(several=len(placed) > 1) for task in placed}
        self._reports = {task: ReportLines() for task in placed}
        self._allowances: dict[tuple[TaskId, type[Event]], Allowance] = {}
        self._points = None if is_validation(attempt) else run.points
        self._reported: dict[TaskId, dict[str, int]] = {}  # by task: reported metrics, with their step
        self._doing: dict[TaskId, str] = {}  # each task's current data activity
        self.fetched = now  # when a task last reported one
        self.results: dict[TaskId, TaskReported] = {}  # the last report of each task
        self.diverged: dict[TaskId, str] = {}  # each task's last loss, if that is not a finite number
        self.peers: dict[str, wire.Peers] = {}  # each task's contact with the others, reported by its node
        self.first_loss: dict[TaskId, float] = {}  # when each task first reported a loss
        self._missing: dict[TaskId, int] = {}  # bytes of output that the node could not store
        self._reported_missing: dict[TaskId, int] = {}  # of these, already reported
        self._holes: Counter[str] = Counter()  # by host
        # When a task reported that an exception ended its main thread, while other threads keep it alive.
        self.held: dict[TaskId, float] = {
            task: now
            for task in placed
            if (error := last_error(last_bytes(run.folder.report(attempt, str(task))))) and error.held
        }
        self._due: dict[str, float] = {}  # host -> when to request its logs again, monotonic
        self._unwritten: int | None = None  # the number of the last error with the logs
        for task in placed:
            self._catch_up(task)
        self.stopping: Callable[[Session], None] | None = None  # repeats the stop on a host that comes back
        self._closed = False

    @property
    def last_output(self) -> float:
        """Return when a task last printed or reported anything."""
        return max(life.last_output for life in self.lives.values())

    def running(self) -> list[TaskId]:
        """Return the tasks whose end has not been recorded."""
        return [task for task in self.placed if task not in self.ends]

    def attach(self, hosts: Iterable[str] | None = None) -> None:
        """Request everything that is not on this machine yet, unless the start has already requested it."""
        for name in self._on if hosts is None else hosts:
            session = self._run.fleet.sessions.get(name)
            if session is None:
                recovery.lose(self._run, name, "there was no connection")
                continue
            requested, answer = self._run.followed.pop(name, (None, None))
            if answer is None or requested is not session:
                tasks = [
                    wire.From(str(task), self._mirrors[task].log.size, self._mirrors[task].report.size)
                    for task in self._on.get(name, ())  # a replaced host has none
                    if task not in self.ends
                ]
                answer = session.submit(wire.Follow(run=self._run.id, attempt=self.attempt, tasks=tasks))
            self._run.loop.when_done(answer, partial(self._answered, session))

    def fit(self, task: TaskId) -> Fit | None:
        """Return the metrics in what a task prints; only the epoch for a task that reports the rest."""
        fit = self.fits[task].fit
        return Fit(fit.epoch, fit.epochs) if fit and task in self._reported else fit

    def record_end(self, exited: TaskExited) -> None:
        """Record the end of a task that an earlier keeper has already reported."""
        if (task := TaskId.parse(exited.task)) in self.placed:
            self.ends[task] = exited

    def step(self, timeout: float) -> bool:
        """Handle messages until the timeout, or shortly after an end; return True if a viewer stops a run."""
        requested = self._take(timeout)
        self._fetch_deferred()
        self._show()
        return requested

    def give_up(self, earlier: NodeEnds = MappingProxyType({})) -> None:
        """Give up tasks that were stopped and take too long: their host stays lost, or KILL has no effect."""
        self.leave_behind(earlier)
        for task in self.running():
            silent, loss = recovery.silence(self._run, self.placed[task])
            why = silent or "it has not ended, for an unknown reason"
            self._end(vanished(self._place(task), why, self._run.clock.wall(), stopped=True, loss=loss))

    def give_up_host(self, name: str, taken: str = "") -> None:
        """Treat the tasks of a host that stays lost as failed; `taken` is Slurm's reason, if any."""
        self._lost(name, *((taken, Loss.TAKEN) if taken else recovery.silence(self._run, name)))

    def _distrust(self, error: HostError) -> None:
        """Treat the tasks of a host that sends false data as failed, instead of waiting for them."""
        recovery.lose(self._run, error.host, recovery.reason(error), pause=_AGAIN)
        self._lost(error.host, f"its host {error.in_one_line}", Loss.UNREACHABLE)

    def _lost(self, name: str, why: str, loss: Loss) -> None:
        for task in self.running():
            if self.placed[task] == name:
                self._end(vanished(self._place(task), why, self._run.clock.wall(), loss=loss))

    def close(self) -> None:
        self._closed = True
        self._show(now=True)
        for mirror in self._mirrors.values():
            mirror.close()

    def _take(self, timeout: float) -> bool:
        run, before = self._run, len(self.ends)
        deadline = run.clock.now() + timeout
        while True:
            try:
                item = run.loop.get(timeout=max(0.0, deadline - run.clock.now()))
            except queue.Empty:
                return False
            match item:
                case ViewerRequest():
                    return True
                case Watched():
                    return False
                case Reconnected(session):
                    if recovery.regain(run, session):
                        self.attach([session.host.name])
                        if self.stopping is not None:
                            self.stopping(session)
                case _ if run.fleet.sessions.get(item.session.host.name) is not item.session:
                    pass  # from an abandoned session: another one sends it again
                case Lost(error=error) if error.kind == Trouble.PROTOCOL:
                    self._distrust(error)
                case Lost(error=error):
                    recovery.lose(run, item.host, recovery.reason(error))
                case TaskNews():
                    self._mirrored(item)
            if len(self.ends) > before:
                deadline = min(deadline, run.clock.now() + _TOGETHER)
            if run.clock.now() >= deadline or len(self.ends) == len(self.placed):
                return False

    def _answered(self, session: Session, future: Future[wire.Unknown]) -> None:
        """Process the reply to a `follow`: tasks of which the node has no record, or an error."""
        name, error = session.host.name, future.exception()
        if self._closed or self._run.fleet.sessions.get(name) is not session:
            return
        if isinstance(error, HostError) and session.alive:
            recovery.lose(self._run, name, error.in_one_line, pause=_AGAIN)
        for unknown in future.result().missing if error is None else ():
            task = self.task_on(name, unknown)
            if task is not None and task not in self.ends:
                self._end(vanished(self._place(task), _UNKNOWN, self._run.clock.wall()))

    def _mirrored(self, frame: TaskNews) -> None:
        """Store a frame; if this machine has no room for it, it stays on the node."""
        if frame.news.stream in frame.session.dropped:
            return
        try:
            self._frame(frame)
        except OSError as error:
            self._defer(frame, error)
        except ValueError as error:  # a gap in the stream
            self._holes[frame.host] += 1
            if self._holes[frame.host] < _HOLES:
                recovery.lose(self._run, frame.host, str(error))
            else:
                self._distrust(problems.foreign(frame.session.host, str(error)))
        else:
            # Free space alone proves nothing: a quota or the number of files may be exhausted.
            if self._unwritten in FULL and not self._due and frame.payload:
                self._unwritten = None
                self._emit(Noted("there is space again on this machine: the logs are being fetched"))

    def _defer(self, frame: TaskNews, error: OSError) -> None:
        """Pause a stream that has no room; its host stays connected and can be stopped."""
        frame.session.unfollow(frame.news.stream)
        if not self._due and error.errno != self._unwritten:
            folder = self._run.folder.path
            where = error.filename or folder
            log.warning("no room for the logs: %s", error)
            fix = f"`df -h {shlex.quote(str(folder))}`, then make room: " if error.errno in FULL else ""
            what = f"the logs wait on their hosts: {error.strerror} on this machine ({where}); "
            self._emit(Noted(f"{what}{fix}the run continues by itself"))
        self._unwritten = error.errno
        self._due[frame.host] = self._run.clock.now() + _AGAIN

    def _fetch_deferred(self) -> None:
        """Once there is room, request again the logs that wait on their hosts."""
        now = self._run.clock.now()
        for name in self._due:  # its tasks may have printed: this machine cannot tell
            for task in self._on.get(name, ()):
                hang.record_activity(self.lives, task, now)
        due = [name for name, when in self._due.items() if now >= when]
        if due and not has_room(self._run.folder.path):
            self._due.update(dict.fromkeys(due, now + _AGAIN))
        elif due:
            for name in due:
                del self._due[name]
            self.attach(due)

    def _frame(self, frame: TaskNews) -> None:
        news = frame.news
        task = self.task_on(frame.host, news.task)
        if task is None or task in self.ends or news.attempt != self.attempt:
            return
        mirror = self._mirrors[task]
        if not isinstance(news, wire.StateNews):
            hang.record_activity(self.lives, task, self._run.clock.now())
        match news:
            case wire.LogNews(offset=offset, times=times):
                here = mirror.log.size
                mirror.add_log(offset, frame.payload, times)
                printed = self.fits[task].feed(frame.payload[max(0, here - offset) :])
                self._printed(task, printed, times, frame.session.clock_offset)
                if task not in self.first_loss and _LOSS.search(frame.payload):
                    self.first_loss[task] = self._run.clock.now()
            case wire.ReportNews(offset=offset):
                before = mirror.report.size
                try:
                    mirror.report.add(offset, frame.payload)
                finally:  # what was stored despite the full disk is not sent again
                    if mirror.report.size > before:
                        self._records(task, frame.payload[before - offset : mirror.report.size - offset])
            case wire.StateNews(state=state):
                self._state(task, frame.session, state)

    def task_on(self, host: str, name: str) -> TaskId | None:
        """Return the task with this name on a host; None if it runs elsewhere."""
        try:
            task = TaskId.parse(name)
        except ValueError:
            return None
        return task if self.placed.get(task) == host else None

    def leave_behind(self, earlier: NodeEnds = MappingProxyType({})) -> None:
        """Report the tasks that ended on their nodes although their output is incomplete here.

        `earlier` are ends that nodes reported before: a host may be lost by now.
        """
        for task, (record, clock_offset) in {**earlier, **ended_on_nodes(self._run, self.attempt)}.items():
            if task in self.placed and task not in self.ends:
                if (behind := record.log_size - self._mirrors[task].log.size) > 0:
                    why = f"not fetched: the rest of its log is on {self.placed[task]}"
                    self._emit(LogGap(str(task), GapPlace.CONTROLLER, behind, why))
                self._end(final(self._place(task), record.state, clock_offset, self._run.clock.wall()))

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
                self._progressed(task, event, self._run.clock.wall())
                continue
            if isinstance(event, TaskReported):
                self.results[task] = event
                if event.data.get("held") and event.kind is Last.ERROR:
                    self.held[task] = now
            if isinstance(event, Stepped):
                self.fetched = now
                if self._doing.get(task) == event.step:  # it continues: users have seen this
                    continue
                self._doing[task] = event.step
            if event is not None:
                kind = task, type(event)
                if self._allowances.setdefault(kind, Allowance()).take(now):
                    self._emit(event)

    def _state(self, task: TaskId, session: Session, state: wire.TaskRecord) -> None:
        self.peers[str(task)] = state.peers
        missing, shown = state.missing, self._reported_missing.get(task, 0)
        # A gap grows while there is no room: it is reported at its beginning, and as a whole at the end.
        if missing > shown and (not shown or state.state.final):
            self._reported_missing[task] = missing
            self._emit(LogGap(str(task), GapPlace.NODE, missing - shown, state.gaps[-1].why))
        if missing != self._missing.get(task, 0):
            self._missing[task] = missing
            # It prints, but its node has no room for it.
            hang.record_activity(self.lives, task, self._run.clock.now())
        if not state.state.final:
            return
        self._end(final(self._place(task), state, session.clock_offset, self._run.clock.wall()))

    def _place(self, task: TaskId) -> TaskPlace:
        return TaskPlace(task, self.placed[task], self.attempt)

    def _printed(
        self, task: TaskId, fits: Iterable[tuple[int, Fit]], times: Sequence[tuple[int, int]], ahead: float
    ) -> None:
        """Record the metrics that a task printed, except those that it also reports."""
        now, reported = self._run.clock.wall(), self._reported.get(task, {})
        for end, fit in fits:
            event = fit.progress(str(task))
            at = next((ns / 1e9 - ahead for offset, ns in reversed(times) if offset < end), now)
            if reported:
                others = {name: value for name, value in event.metrics.items() if name not in reported}
                event = TaskProgressed(str(task), max(reported.values()), None, None, metrics=others)
            if not reported or event.metrics:
                self._progressed(task, event, at if at < now - _AGAIN else now, printed=True)

    def _progressed(self, task: TaskId, event: TaskProgressed, at: float, *, printed: bool = False) -> None:
        """Record a point, and emit it at a readable rate; a loss that is not a finite number at once."""
        if event.loss is not None or event.diverged:
            self.first_loss.setdefault(task, self._run.clock.now())
        if not printed:
            self._reported[task] = dict.fromkeys(("loss", *event.metrics), event.step)
        before = self.diverged.get(task, "")
        if event.diverged or event.loss is not None:
            self.diverged[task] = event.diverged
        if event.diverged and not before:
            self._emit(Noted(f"{task}: its loss is {event.diverged} at step {event.step}"))
        shown = [event]
        if self._points is not None:
            changed = before != self.diverged.get(task, "")
            made = self._points.take(event, self.attempt, at)
            shown = [point.event for point in made or self._points.newest(str(task), now=changed)]
        for point in shown:
            self._emit(point)

    def _show(self, *tasks: TaskId, now: bool = False) -> None:
        """Show viewers the newest points of tasks, by default of all."""
        if self._points is None:
            return
        for task in tasks or self.placed:
            for point in self._points.newest(str(task), now=now):
                self._emit(point.event)
        try:
            self._points.write()
        except OSError as error:  # no room: they wait
            log.debug("points: %s", error)

    def _catch_up(self, task: TaskId) -> None:
        """Read the end of what an earlier keeper has fetched: the metrics, the epoch, an incomplete line."""
        mirror, fits = self._mirrors[task], self.fits[task]
        for line in self._reports[task].feed(tail_of(mirror.report.path, LONGEST)[0]):
            with contextlib.suppress(ValueError):
                if isinstance(event := reported(task, line), TaskProgressed):
                    self._reported[task] = dict.fromkeys(("loss", *event.metrics), event.step)
        data, fits.offset = tail_of(mirror.log.path, _EPOCH)
        fits.feed(data)

    def _end(self, exited: TaskExited) -> None:
        self._show(TaskId.parse(exited.task), now=True)
        self.ends[TaskId.parse(exited.task)] = exited
        self._emit(exited)


def ended_on_nodes(run: Run, attempt: str) -> NodeEnds:
    """Return the tasks of an attempt that ended according to their hosts, and each clock's offset."""
    placed = {(spec.host, str(spec.id)): spec.id for spec in run.plan.tasks}
    answers = run.fleet.ask(wire.States(run=run.id), timeout=10.0)
    clocks = {name: session.clock_offset for name, session in run.fleet.sessions.items()}
    return {
        placed[name, record.task]: (record, clocks.get(name, 0.0))
        for name, reply in answers.good.items()
        for record in reply.tasks
        if record.attempt == attempt
        and record.state.state.final
        and not record.alive
        and (name, record.task) in placed
    }


_PATIENCE = 30.0  # seconds for the output on the nodes to arrive


def collect(run: Run, attempt: str) -> None:
    """Fetch the output of an attempt's tasks, and report the end of each that was started or is on a host.

    This includes tasks without a start event: their keeper may have been killed before it wrote one.
    """
    on_nodes = ended_on_nodes(run, attempt)
    history = [stamped.event for stamped in events_of(run.folder)]
    started = {event.task for event in history if isinstance(event, TaskStarted) and event.attempt == attempt}
    tasks = [spec for spec in run.plan.tasks if spec.id in on_nodes or str(spec.id) in started]
    if not tasks:
        return
    for spec in tasks:
        if str(spec.id) not in started:
            run.emit(TaskStarted(str(spec.id), spec.host, attempt, on_nodes[spec.id][0].state.started_as))
    follower = Follower(run, attempt, {spec.id: spec.host for spec in tasks}, run.emit)
    for event in history:
        if isinstance(event, TaskExited) and event.attempt == attempt:
            follower.record_end(event)
    follower.attach()
    deadline = run.clock.now() + _PATIENCE
    with contextlib.closing(follower):
        while run.clock.now() < deadline:
            if all(follower.placed[task] in run.since_lost for task in follower.running()):
                break
            if follower.step(0.2) and run.stop.kill:
                break  # a user has requested a kill
        follower.give_up(on_nodes)
