"""Following the tasks of one attempt: bytes to disk first, ends as facts, lost hosts until they are back."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any

from orchestrator import hang
from orchestrator.errors import HostError
from orchestrator.events import Event, LogGap, TaskExited, TaskProgressed
from orchestrator.fleet import Frame, Reply, Session
from orchestrator.gang import End
from orchestrator.model import TaskId
from orchestrator.phases import recovery
from orchestrator.phases.connect import keep_again
from orchestrator.phases.context import Asked, Followed, Reconnected, Run, log
from orchestrator.records import final, reported
from orchestrator.store.mirror import Mirror

_AGAIN = 5.0  # seconds until what cannot be had now is tried again
FINAL = ("exited", "lost", "unstarted")


class Follower:
    """Mirrors the tasks of one attempt and keeps what is known of their ends.

    `step` handles what has arrived; everything runs on the thread that calls it.
    """

    def __init__(
        self, run: Run, attempt: str, placed: Mapping[TaskId, str], told: Callable[[Event], None]
    ) -> None:
        self.ends: dict[TaskId, End] = {}
        self._run = run
        self._attempt = attempt
        self._placed = dict(placed)
        self._told = told
        now = time.monotonic()
        self.lives = {task: hang.Life(now) for task in placed}  # when each was heard of last
        self._mirrors = {task: Mirror(run.folder, attempt, task.slug) for task in placed}
        self._partial: dict[TaskId, bytes] = {}
        self._gaps: dict[TaskId, int] = {}
        self._missing: dict[TaskId, int] = {}  # bytes
        self._messages: dict[TaskId, str] = {}  # what its supervisor has to say of it
        self._asked_keep = time.monotonic()
        self.stopping: Callable[[Session], None] | None = None  # what a host that comes back is told

    @property
    def heard(self) -> float:
        """When a task last printed or reported anything."""
        return max(life.heard for life in self.lives.values())

    @property
    def attempt(self) -> str:
        return self._attempt

    def host(self, task: TaskId) -> str:
        return self._placed[task]

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
                self._lose(name, "there was no connection")
                continue
            tasks = [
                {"task": str(task), "log": mirror.log_size, "report": mirror.report_size}
                for task, mirror in self._mirrors.items()
                if self._placed[task] == name and task not in self.ends
            ]
            answer = session.submit("follow", run=self._run.id, attempt=self._attempt, tasks=tasks)
            answer.add_done_callback(partial(self._answered, session))

    def know(self, exited: TaskExited) -> None:
        """Take over an end that an earlier keeper has told already."""
        self.ends[TaskId.parse(exited.task)] = End(
            exited.code, exited.signal, exited.lost, exited.stopped, exited.seconds, exited.ended
        )

    def step(self, timeout: float) -> bool:
        """Handle what arrives within `timeout` seconds; True when a viewer asked for something."""
        asked = self._take(timeout)
        self._keep_again()
        return asked

    def give_up(self, why: str) -> None:
        """End what was told to stop and is not waited for any longer: its host stays lost, or KILL fails."""
        for task in self.waiting():
            name = self._placed[task]
            silent, loss = recovery.silence(self._run, name)
            known = silent or self._messages.get(task) or why
            end = End(None, None, known, stopped=True, seconds=0.0, ended=time.time())
            self._end(task, end, {"loss": loss})

    def give_up_host(self, name: str, why: str) -> None:
        """Take the tasks of a host that stays lost for failed."""
        for task in self.waiting():
            if self._placed[task] == name:
                silent, loss = recovery.silence(self._run, name)
                end = End(None, None, silent or why, stopped=False, seconds=0.0, ended=time.time())
                self._end(task, end, {"loss": loss})

    def close(self) -> None:
        for mirror in self._mirrors.values():
            mirror.close()

    def _take(self, timeout: float) -> bool:
        deadline = time.monotonic() + timeout
        while True:
            try:
                item = self._run.inbox.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                return False
            match item:
                case Asked():
                    return True
                case Reconnected(session):
                    self._regain(session)
                case _ if self._run.fleet.sessions.get(item.session.host.name) is not item.session:
                    pass  # of a session that was given up: another one tells it again
                case Followed(session, missing, error):
                    self._followed(session, missing, error)
                case Frame(lost=str(why)):
                    self._lose(item.host, why)
                case Frame():
                    self._mirrored(item)
            if time.monotonic() >= deadline or len(self.ends) == len(self._placed):
                return False

    def _answered(self, session: Session, future: Future[Reply]) -> None:
        """From the session's reader: what became of a `follow`."""
        error = future.exception()
        if error is None:
            self._run.inbox.put(Followed(session, tuple(future.result().result["missing"])))
        elif isinstance(error, HostError) and session.alive:
            self._run.inbox.put(Followed(session, error=error))

    def _followed(self, session: Session, missing: tuple[str, ...], error: HostError | None) -> None:
        if error is not None:
            self._lose(session.host.name, f"{error.what}: {error.why}", pause=_AGAIN)
        for name in missing:
            task = TaskId.parse(name)
            if task in self._placed and task not in self.ends:
                why = "its host knows nothing of it: it was never started, or its state folder was emptied"
                self._end(task, End(None, None, why, stopped=False, seconds=0.0, ended=time.time()), {})

    def _mirrored(self, frame: Frame) -> None:
        """Take a frame in; when this machine has no room for it, it waits on the node."""
        try:
            self._frame(frame)
        except OSError as error:
            self._lose(
                frame.host, f"{error.strerror} on this machine; its logs wait over there", pause=_AGAIN
            )
        except ValueError as error:  # a hole in the stream
            self._lose(frame.host, str(error))

    def _frame(self, frame: Frame) -> None:
        header = frame.header
        if "task" not in header:
            return
        task = TaskId.parse(header["task"])
        mirror = self._mirrors.get(task)
        if mirror is None or task in self.ends or header.get("attempt", self._attempt) != self._attempt:
            return
        if header["kind"] != "state":
            hang.heard(self.lives, task, time.monotonic())
        match header["kind"]:
            case "log":
                mirror.add_log(header["offset"], frame.payload, header["times"])
            case "report":
                offset, known = header["offset"], mirror.report_size
                try:
                    mirror.add_report(offset, frame.payload)
                finally:  # what found room on a full disk is not sent again
                    if mirror.report_size > known:
                        self._records(task, frame.payload[known - offset : mirror.report_size - offset])
            case "state":
                self._state(task, frame.session, header["state"])

    def _records(self, task: TaskId, data: bytes) -> None:
        *lines, self._partial[task] = (self._partial.get(task, b"") + data).split(b"\n")
        for line in lines:
            try:
                event = reported(task, line)
            except ValueError:
                log.warning("%s reported what is no JSON object: %r", task, line[:200])
                continue
            if isinstance(event, TaskProgressed):
                hang.stepped(self.lives, task, event.step, time.monotonic())
            if event is not None:
                self._told(event)

    def _state(self, task: TaskId, session: Session, state: Mapping[str, Any]) -> None:
        gaps = state.get("gaps") or []
        for gap in gaps[self._gaps.get(task, 0) :]:
            self._told(LogGap(str(task), "node", gap["bytes"], gap.get("why", "")))
        self._gaps[task] = len(gaps)
        if (missing := sum(gap["bytes"] for gap in gaps)) != self._missing.get(task, 0):
            self._missing[task] = missing
            hang.heard(self.lives, task, time.monotonic())  # it prints, and its node has no room for it
        self._messages[task] = state.get("message", "")
        if state["state"] not in FINAL:
            return
        self._end(task, *final(state, session.clock_offset, time.time()))

    def _end(self, task: TaskId, end: End, more: Mapping[str, Any]) -> None:
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
                **more,
            )
        )

    def _keep_again(self) -> None:
        if self._run.unkept and time.monotonic() - self._asked_keep > _AGAIN:
            self._asked_keep = time.monotonic()
            for name in list(self._run.unkept):
                if (session := self._run.fleet.sessions.get(name)) is not None:
                    keep_again(self._run, session)

    def _lose(self, name: str, why: str, *, pause: float = 0.0) -> None:
        awaited = any(self._placed[task] == name for task in self.waiting())
        recovery.lose(self._run, name, why, self._told if awaited else None, pause=pause)

    def _regain(self, session: Session) -> None:
        if not recovery.regain(self._run, session, self._told):
            return
        self.attach([session.host.name])
        if self.stopping is not None:
            self.stopping(session)
