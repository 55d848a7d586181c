"""The runs that this machine knows: what is on disk, made true first."""

from __future__ import annotations

import json
import os
import time
from typing import Any, Iterator

from ..base import ending, lenient, locks
from ..base.paths import Paths, TaskFolder
from ..serve.agent import Agent, Request
from . import control, state
from .tasks import store_plan

_ROOM = 12 << 20  # bytes of an answer: plans of large clusters are long, and a message holds 16 MB
_WORD_EVERY = 0.25  # seconds between two touches of the keeper's file


def states(agent: Agent, request: Request) -> dict[str, Any]:
    """Every task of one run or of all; a task whose processes were killed is settled as lost.

    Of all runs those that continue are told, and of the others the newest: `more` is how many are not.
    """
    paths, told, more, room = agent.paths, [], 0, _ROOM
    runs = reversed(paths.runs()) if request.get("run") is None else [request["run"]]
    for run in runs:  # their names begin with the date
        if not os.path.isdir(paths.run(run)):
            continue
        found = _run(paths, run)
        size = len(json.dumps(found))
        if size <= room or _continues(found):
            told.append(found)
            room -= size
        else:
            more += 1
    return {"runs": told, "more": more}


def _continues(found: dict[str, Any]) -> bool:
    kept = found["keeper"] is not None and found["keeper"]["alive"]
    return kept or any(task["alive"] for task in found["tasks"])


def keep(agent: Agent, request: Request) -> dict[str, Any]:
    """Become the agent of the run's keeper, for as long as we live; only one can be.

    While an agent that the same keeper has lost is still there, its place is not free yet; but our
    words are the keeper's all the same.
    """
    paths, run = agent.paths, request["run"]
    kept: dict[str, int] = agent.rooms.setdefault("keepers", {})  # with the lock
    words: dict[str, int] = agent.rooms.setdefault("words", {})
    store_plan(paths, run, request.get("plan"))
    if run in words and os.fstat(words[run]).st_nlink == 0:  # cleaned away meanwhile
        kept.pop(run, None)
        os.close(words.pop(run))
    if run not in words:
        words[run] = os.open(paths.keeper(run), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        agent.on_word = _Word(words)
    fd = words[run]
    if run not in kept:
        if not locks.take(fd, locks.GLANCE):
            holder = _keeper(paths, run)
            if holder is None or holder["who"] != request["who"]:
                os.close(words.pop(run))
            return {"granted": False, "holder": holder}
        kept[run] = fd
    text = json.dumps({"who": request["who"]}).encode()
    os.pwrite(fd, text, 0)
    os.ftruncate(fd, len(text))
    return {"granted": True, "holder": _keeper(paths, run)}


class _Word:
    """Every word of the controller is a word of the keeper: the lifelines of the tasks look at its time."""

    def __init__(self, words: dict[str, int]) -> None:
        self._words = words
        self._last = 0.0

    def __call__(self) -> None:
        now = time.monotonic()
        if now - self._last >= _WORD_EVERY:
            self._last = now
            for fd in self._words.values():
                try:
                    os.utime(fd)
                except OSError:
                    pass  # a disk that became read-only: the lifelines hear nothing more


def _run(paths: Paths, run: str) -> dict[str, Any]:
    return {
        "run": run,
        "plan": lenient.text(paths.run_json(run)),
        "keeper": _keeper(paths, run),
        "stopped": os.path.exists(paths.stopped(run)),
        "tasks": [known for folder in paths.tasks(run) for known in _task(folder)],
    }


def _task(folder: TaskFolder) -> Iterator[dict[str, Any]]:
    """Nothing of a task that was removed meanwhile."""
    try:
        try:
            found = control.settle(folder)
        except ending.UnkillableError:  # the others are told all the same
            found = state.read(folder)
    except (control.UnknownTaskError, FileNotFoundError):
        return
    yield {
        "attempt": folder.attempt,
        "task": folder.task,
        "state": found,
        "alive": not state.is_final(found) and control.is_locked(folder),
        "log_size": lenient.size(folder.log),
    }


def _keeper(paths: Paths, run: str) -> dict[str, Any] | None:
    try:
        alive = locks.is_taken(paths.keeper(run))
        with open(paths.keeper(run), "rb") as file:
            who = json.loads(file.read() or b"{}").get("who")
    except (FileNotFoundError, ValueError, AttributeError):
        return None
    return {"who": who, "alive": alive}
