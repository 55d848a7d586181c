"""The runs that this machine knows: what is on disk, made true first."""

from __future__ import annotations

import json
import os
import time

from . import control, locks, procs, state
from .fault import NodeError
from .tasks import is_over, store_plan
from .work import run_folder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Optional, Tuple

    from .agent import Agent, Request
    from .paths import Paths, TaskFolder

_READ_LIMIT = 8 << 20
_WORD_EVERY = 0.25  # seconds between two touches of the keeper's file


def states(agent: Agent, request: Request) -> Dict[str, Any]:
    """Every task of one run or of all; a task whose processes were killed is settled as lost."""
    paths = agent.paths
    runs = paths.runs() if request.get("run") is None else [request["run"]]
    return {"runs": [_run(paths, run) for run in runs if os.path.isdir(paths.run(run))]}


def read(agent: Agent, request: Request) -> Tuple[Dict[str, Any], bytes]:
    """A piece of a task's log."""
    folder = agent.paths.task(request["run"], request["attempt"], request["task"])
    offset, limit = int(request["offset"]), min(int(request["limit"]), _READ_LIMIT)
    try:
        with open(folder.log, "rb") as log:
            size = os.fstat(log.fileno()).st_size
            log.seek(offset)
            return {"offset": offset, "size": size}, log.read(limit)
    except FileNotFoundError:
        raise NodeError(
            "task", f"there is no log of {folder.task}", "it was never started here, or was removed"
        ) from None


def keep(agent: Agent, request: Request) -> Dict[str, Any]:
    """Become the agent of the run's keeper, for as long as we live; only one can be.

    While an agent that the same keeper has lost is still there, its place is not free yet; but our
    words are the keeper's all the same.
    """
    paths, run = agent.paths, request["run"]
    kept: Dict[str, int] = agent.rooms.setdefault("keepers", {})  # with the lock
    words: Dict[str, int] = agent.rooms.setdefault("words", {})
    store_plan(paths, run, request.get("plan"))
    if run in words and os.fstat(words[run]).st_nlink == 0:  # dropped meanwhile
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
    text = json.dumps({"who": request["who"], "since": time.time()}).encode()
    os.pwrite(fd, text, 0)
    os.ftruncate(fd, len(text))
    return {"granted": True, "holder": _keeper(paths, run)}


def drop(agent: Agent, request: Request) -> Dict[str, Any]:
    """Forget an ended run: its state folder, and its own folder in `workdir` when that is given."""
    paths, run = agent.paths, request["run"]
    alive = [folder.task for folder in paths.tasks(run) if not is_over(paths, folder)]
    if alive:
        names = ", ".join(sorted(set(alive)))
        raise NodeError("busy", f"the run {run} is not over", f"still running here: {names}", "stop it first")
    procs.sweep(run)
    try:
        if request.get("workdir"):
            _remove(run_folder(request["workdir"], run))
        _remove(paths.run(run))
    except OSError as error:
        raise NodeError(
            "state", f"cannot remove all of {run}", f"{error.filename}: {error.strerror}"
        ) from None
    return {}


class _Word:
    """Every word of the controller is a word of the keeper: the lifelines of the tasks look at its time."""

    def __init__(self, words: Dict[str, int]) -> None:
        self._words = words
        self._last = 0.0

    def __call__(self) -> None:
        now = time.monotonic()
        if now - self._last >= _WORD_EVERY:
            self._last = now
            for fd in self._words.values():
                os.utime(fd)


def _run(paths: Paths, run: str) -> Dict[str, Any]:
    return {
        "run": run,
        "plan": _text(paths.run_json(run)),
        "keeper": _keeper(paths, run),
        "stopped": os.path.exists(paths.stopped(run)),
        "tasks": [_task(paths, folder) for folder in paths.tasks(run)],
    }


def _task(paths: Paths, folder: TaskFolder) -> Dict[str, Any]:
    trouble: Optional[Dict[str, str]] = None
    try:
        found = control.settle(paths, folder.run, folder.attempt, folder.slug)
    except NodeError as error:  # a process that cannot be killed: the others are told all the same
        found, trouble = state.read(folder), error.as_dict()
    return {
        "attempt": folder.attempt,
        "task": folder.task,
        "state": found,
        "alive": not state.is_final(found) and control.is_locked(folder),
        "log_size": _size(folder.log),
        "report_size": _size(folder.report),
        "trouble": trouble,
    }


def _keeper(paths: Paths, run: str) -> Optional[Dict[str, Any]]:
    try:
        alive = locks.is_taken(paths.keeper(run))
        with open(paths.keeper(run), "rb") as file:
            said = json.loads(file.read() or b"{}")
            ago = time.time() - os.fstat(file.fileno()).st_mtime
    except (FileNotFoundError, ValueError):
        return None
    return {"who": said.get("who"), "since": said.get("since"), "alive": alive, "seconds_ago": max(0.0, ago)}


def _text(path: str) -> Optional[str]:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError:
        return None


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _remove(folder: str) -> None:
    import shutil

    try:
        shutil.rmtree(folder)
    except FileNotFoundError:
        pass
