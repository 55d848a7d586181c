"""Following the tasks of one attempt: bytes to disk first, ends as facts, lost hosts until they are back."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from orchestrator.errors import HostError
from orchestrator.events import (
    Event,
    HostLost,
    HostRecovered,
    LogGap,
    TaskExited,
    TaskProgressed,
    TaskReady,
    TaskReported,
)
from orchestrator.fleet import Frame, Session
from orchestrator.gang import End
from orchestrator.model import TaskId
from orchestrator.phases.context import Asked, Reconnected, Run, log
from orchestrator.store.mirror import Mirror

BEAT = 5.0  # seconds between an agent's heartbeats
SILENCE = 20.0  # seconds without a byte from a host until it counts as lost
KEEP_ALIVE = 20.0  # seconds between our own words to an agent
_BACKOFF = (0.3, 0.7, 1.0, 2.0, 3.0, 5.0)  # seconds; the last one repeats
FINAL = ("exited", "lost", "unstarted")


class Follower:
    """Mirrors the tasks of one attempt and keeps what is known of their ends.

    `step` handles what has arrived; everything runs on the thread that calls it.
    """

    def __init__(
        self, run: Run, attempt: str, placed: Mapping[TaskId, str], told: Callable[[Event], None]
    ) -> None:
        self.ends: dict[TaskId, End] = {}
        self.lost: dict[str, float] = {}  # host -> since when (monotonic)
        self._run = run
        self._attempt = attempt
        self._placed = dict(placed)
        self._told = told
        self._mirrors = {task: Mirror(run.folder, attempt, task.slug) for task in placed}
        self._partial: dict[TaskId, bytes] = {}
        self._gaps: dict[TaskId, int] = {}
        self._spoke = time.monotonic()
        self.stopping: Callable[[Session], None] | None = None  # what a host that comes back is told

    @property
    def tasks(self) -> list[TaskId]:
        return list(self._placed)

    def waiting(self) -> list[TaskId]:
        """The tasks whose end is not known yet."""
        return [task for task in self._placed if task not in self.ends]

    def attach(self, hosts: Iterable[str] | None = None) -> None:
        """Ask the agents for everything that is not on our disk yet."""
        for name in set(self._placed.values()) if hosts is None else hosts:
            session = self._run.fleet.sessions.get(name)
            if session is None:
                self._begin_recovery(name, "there was no connection")
                continue
            tasks = [
                {"task": str(task), "log": mirror.log_size, "report": mirror.report_size}
                for task, mirror in self._mirrors.items()
                if self._placed[task] == name and task not in self.ends
            ]
            session.submit("beats", every=BEAT)
            session.submit("follow", run=self._run.id, attempt=self._attempt, tasks=tasks)

    def know(self, exited: TaskExited) -> None:
        """Take over an end that an earlier keeper has told already."""
        self.ends[TaskId.parse(exited.task)] = End(
            exited.code, exited.signal, exited.lost, exited.stopped, exited.seconds, exited.ended
        )

    def step(self, timeout: float) -> bool:
        """Handle what arrives within `timeout` seconds; True when a viewer asked for something."""
        asked = self._take(timeout)
        self._watch()
        return asked

    def give_up(self, why: str) -> None:
        """End what cannot be known any more: tasks on hosts that stay lost."""
        for task in self.waiting():
            self._end(task, End(None, None, why, stopped=False, seconds=0.0, ended=time.time()))

    def close(self) -> None:
        for mirror in self._mirrors.values():
            mirror.close()

    def _take(self, timeout: float) -> bool:
        deadline = time.monotonic() + timeout
        asked = False
        while True:
            try:
                item = self._run.inbox.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                return asked
            match item:
                case Asked():
                    return True
                case Reconnected(session):
                    self._recovered(session)
                case Frame(lost=str(why)):
                    if self._run.fleet.sessions.get(item.host) is item.session:
                        self._begin_recovery(item.host, why)
                case Frame():
                    asked |= self._frame(item)
            if time.monotonic() >= deadline or len(self.ends) == len(self._placed):
                return asked

    def _frame(self, frame: Frame) -> bool:
        header = frame.header
        if "task" not in header:
            return False
        task = TaskId.parse(header["task"])
        mirror = self._mirrors.get(task)
        if mirror is None or task in self.ends or header.get("attempt", self._attempt) != self._attempt:
            return False
        match header["kind"]:
            case "log":
                mirror.add_log(header["offset"], frame.payload, header["times"])
            case "report":
                fresh = frame.payload[max(0, mirror.report_size - header["offset"]) :]
                mirror.add_report(header["offset"], frame.payload)
                self._records(task, fresh)
            case "state":
                self._state(task, frame.session, header["state"])
        return False

    def _records(self, task: TaskId, data: bytes) -> None:
        *lines, self._partial[task] = (self._partial.get(task, b"") + data).split(b"\n")
        for line in lines:
            try:
                record = msgspec.json.decode(line, type=dict[str, Any])
            except (msgspec.DecodeError, msgspec.ValidationError):
                log.warning("%s reported what is no JSON object: %r", task, line[:200])
                continue
            if (event := report_event(task, record)) is not None:
                self._told(event)

    def _state(self, task: TaskId, session: Session, state: Mapping[str, Any]) -> None:
        gaps = state.get("gaps") or []
        for gap in gaps[self._gaps.get(task, 0) :]:
            self._told(LogGap(str(task), "node", gap["bytes"], gap.get("why", "")))
        self._gaps[task] = len(gaps)
        if state["state"] not in FINAL:
            return
        started, ended = state.get("started_ns"), state.get("ended_ns")
        lost = state.get("message", "") or "its supervisor was killed" if state["state"] == "lost" else ""
        if state["state"] == "unstarted":
            lost = state.get("message", "") or "it could not be started"
        self._end(
            task,
            End(
                code=state.get("exit_code"),
                signal=state.get("exit_signal"),
                lost=lost,
                stopped=state.get("want", "run") != "run",
                seconds=(ended - started) / 1e9 if started and ended else 0.0,
                ended=(ended / 1e9 - session.clock_offset) if ended else time.time(),
            ),
        )

    def _end(self, task: TaskId, end: End) -> None:
        self.ends[task] = end
        self._told(
            TaskExited(
                task=str(task),
                host=self._placed[task],
                attempt=self._attempt,
                code=end.code,
                signal=end.signal,
                lost=end.lost,
                seconds=end.seconds,
                ended=end.ended,
                stopped=end.stopped,
            )
        )

    def _watch(self) -> None:
        now = time.monotonic()
        speak = now - self._spoke > KEEP_ALIVE
        for name, session in list(self._run.fleet.sessions.items()):
            if name in self.lost:
                continue
            if now - session.heard > SILENCE:
                self._begin_recovery(name, f"no word for {SILENCE:.0f} s")
            elif speak:
                session.submit("ping")
        if speak:
            self._spoke = now

    def _begin_recovery(self, name: str, why: str) -> None:
        if name in self.lost:
            return
        self.lost[name] = time.monotonic()
        log.warning("lost %s: %s", name, why)
        session = self._run.fleet.sessions.pop(name, None)
        if session is not None:
            session.close()
        if not any(self._placed[task] == name for task in self.waiting()):
            return  # nothing of it is still awaited
        self._told(HostLost(name, why))
        threading.Thread(target=self._reconnect, args=(name,), name=f"reconnect {name}", daemon=True).start()

    def _reconnect(self, name: str) -> None:
        host = self._run.plan.host(name)
        for attempt in range(1_000_000):
            time.sleep(_BACKOFF[min(attempt, len(_BACKOFF) - 1)])
            if name not in self.lost:
                return
            try:
                session = self._run.fleet.open(host)
            except HostError as error:
                log.info("still lost: %s %s: %s", name, error.what, error.why)
                continue
            self._run.inbox.put(Reconnected(session))
            return

    def _recovered(self, session: Session) -> None:
        name = session.host.name
        since = self.lost.pop(name, None)
        if since is None:
            session.close()
            return
        self._run.fleet.sessions[name] = session
        self._told(HostRecovered(name, time.monotonic() - since))
        session.submit("keep", run=self._run.id, who=self._run.who, plan=None)
        self.attach([name])
        if self.stopping is not None:
            self.stopping(session)


def report_event(task: TaskId, record: Mapping[str, Any]) -> Event | None:
    """The event that one record of a task's report stands for; None for a kind we do not know."""
    match record.get("kind"):
        case "ready":
            return TaskReady(str(task), str(record.get("note", "")))
        case "progress":
            step = record.get("step")
            return TaskProgressed(
                str(task),
                step if isinstance(step, int) else 0,
                _number(record.get("loss")),
                _number(record.get("steps_per_second")),
            )
        case "result" | "error" as kind:
            return TaskReported(str(task), kind, {k: v for k, v in record.items() if k != "kind"})
    return None


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None
