"""Following tasks: their log, their report and their state as stream frames, from any offset.

A watched folder that changed marks its tail as due; due tails take turns, one frame each, for as long
as the outbox has room. A final state goes out only behind the last byte of log and report.
"""

from __future__ import annotations

import errno
import os

from ..base import ending
from ..base.annotations import Any, Callable
from ..base.fault import NodeError
from ..serve.agent import Agent, Request
from ..task import control, state
from .inotify import LOOK_EVERY, Watcher
from .tail import Tail

_SETTLE_SECONDS = 30.0
_SHORT = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)  # of what others may give back


class Follower:
    """All the tails of an agent."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._watcher = Watcher(agent.loop)
        self._due: list[Tail] = []
        self._tails: dict[Tail, tuple[int, Callable[[], None]]] = {}  # with its watch
        self._settling: set[Tail] = set()
        agent.outbox.on_room = self._pump
        self._look_around()

    def add(self, tail: Tail) -> None:
        def wake() -> None:
            self._wake(tail)

        self._tails[tail] = (self._watcher.add(tail.folder.path, wake), wake)
        self._agent.loop.after(0.0, wake)  # behind the reply

    def drop(self, stream: int) -> None:
        for tail in [tail for tail in self._tails if tail.stream == stream]:
            self._forget(tail)

    def _wake(self, tail: Tail) -> None:
        if tail in self._tails and tail not in self._due:
            self._due.append(tail)
        self._pump()

    def _pump(self) -> None:
        while self._due and self._agent.outbox.room:
            tail = self._due.pop(0)
            try:
                frame = tail.next_frame()
            except OSError as error:
                if error.errno not in _SHORT:
                    raise
                continue  # it is due again with the next look
            if frame is not None:
                self._agent.send(*frame)
                self._due.append(tail)
            if tail.over:
                self._forget(tail)

    def _forget(self, tail: Tail) -> None:
        self._watcher.remove(*self._tails.pop(tail))
        if tail in self._due:
            self._due.remove(tail)
        tail.close()

    def _look_around(self) -> None:
        """What no watch tells: a lock that was let go by two killed processes, or an event that was lost."""
        self._agent.loop.after(LOOK_EVERY, self._look_around)
        for tail in list(self._tails):
            self._wake(tail)
            try:
                if tail in self._tails and tail not in self._settling and not control.is_locked(tail.folder):
                    self._settle(tail)
            except (OSError, NodeError):
                pass  # no descriptor or process is left for it, or its disk fails: the next look tells

    def _settle(self, tail: Tail) -> None:
        """In a child, since killing what is left may take a moment; the new state file wakes the tail."""
        folder = tail.folder

        def work() -> Any:
            gone = not os.path.exists(folder.lock)
            if gone:
                ending.sweep(f"{folder.run}/{folder.attempt}/{folder.task}")
            else:
                control.settle(folder)
            return {"ok": True, "gone": gone}, b""

        def done(reply: Any) -> None:
            if reply[0].get("gone") and tail in self._tails:
                tail.bury(state.REMOVED)
                self._wake(tail)
            pause = 0.0 if reply[0]["ok"] else _SETTLE_SECONDS  # something cannot be killed: later again
            self._agent.loop.after(pause, lambda: self._settling.discard(tail))

        self._agent.jobs.run("settle", work, done, seconds=_SETTLE_SECONDS)
        self._settling.add(tail)


def follow(agent: Agent, request: Request) -> dict[str, Any]:
    """Start a stream with the request's id; return the tasks that are not here."""
    folders = [
        (agent.paths.task(request["run"], request["attempt"], wanted["task"]), wanted)
        for wanted in request["tasks"]
    ]
    missing = []
    for folder, wanted in folders:
        try:
            state.read(folder)
        except FileNotFoundError:
            missing.append(wanted["task"])
            continue
        tail = Tail(int(request["id"]), folder, int(wanted.get("log") or 0), int(wanted.get("report") or 0))
        _follower(agent).add(tail)
    return {"missing": missing}


def unfollow(agent: Agent, request: Request) -> dict[str, Any]:
    """End the stream of an earlier `follow`."""
    _follower(agent).drop(int(request["target"]))
    return {}


def _follower(agent: Agent) -> Follower:
    if "follower" not in agent.rooms:
        agent.rooms["follower"] = Follower(agent)
    follower: Follower = agent.rooms["follower"]
    return follower
