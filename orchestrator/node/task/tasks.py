"""The agent's side of tasks and runs: starting and stopping them, and reporting their state."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import socket
import time
from contextlib import suppress
from typing import Any, Iterator, Mapping, Sequence

from ..base import lenient, locks, procs
from ..base.descriptors import close_all, replace_file
from ..base.fault import NodeError, no_process, reason
from ..base.paths import Paths, TaskFolder, make_private
from ..disk.removing import remove
from ..serve.agent import Agent, Request
from ..serve.frames import Json
from ..serve.loop import READ
from . import environ, leases, state, supervisor
from .environ import Handles

_SECONDS = 60.0  # for a child to end the rest of a task
_ACKNOWLEDGE = 1.0  # seconds for a supervisor to act on a stop
_BUSY = 10.0  # the same on a very busy machine, where a task may still save its checkpoint
_LOOK = 0.05  # seconds between two checks whether tasks have ended
_ROOM = 12 << 20  # bytes of a reply: plans of large clusters are long, and a message holds 16 MB


def start(agent: Agent, request: Request) -> None:
    """Start a task once; its guard inherits the lease on its port and the place in the queue.

    The guard is forked here and not in a child, so that a later stop finds it, and the end of a job does not
    kill it.
    """
    paths, run, spec = agent.paths, request["run"], request["spec"]
    folder = paths.task(run, request["attempt"], request["task"])
    store_plan(paths, run, request.get("plan"))
    lease = agent.leases.get(spec.get("port"))
    held = [*([] if lease is None else [lease]), *leases.descriptors(agent)]
    claim = take_claim(folder)
    if not claim:
        agent.in_child(request, lambda: _already(folder), seconds=_SECONDS)
        return

    def go(slot: socket.socket | None, cold: str) -> None:
        try:
            reading = begin(paths, folder, spec, claim, held, slot=slot)
        except NodeError as error:
            agent.fail(request, error)
            return
        finally:
            close_all(*claim)
        answer = bytearray()

        def on_reply() -> None:
            data = os.read(reading, 65536)
            answer.extend(data)
            if not data:
                agent.loop.unwatch(reading)
                os.close(reading)
                try:
                    reply = result(folder, bytes(answer))
                    agent.reply(request, {**reply, "cold": reply["cold"] or cold})
                except NodeError as error:
                    agent.fail(request, error)

        agent.loop.watch(reading, READ, on_reply)

    if spec.get("imports"):
        from . import standby

        standby.reserve(agent, spec, go)
    else:
        go(None, "")


def _already(folder: TaskFolder) -> Json:
    record = state.settle(folder)
    return {"started": False, "already": True, "pid": record["pid"], "state": record}


def store_plan(paths: Paths, run: str, plan: str | None) -> None:
    """Store the run's plan for a takeover, unless it is stored already: many starts send the same."""
    path = paths.run_json(run)
    make_private(paths.run(run))
    if plan is not None and procs.text(path) != plan:
        replace_file(path, plan.encode())


def stop(agent: Agent, request: Request) -> Json:
    """Ask every live task of a run to end; `sweep` and `states` end those without guard and supervisor.

    A supervisor that does not acknowledge the request is killed, and its guard ends the task. `final`: from
    now on no task of the run is started, even if a keeper elsewhere requests it.
    """
    paths, run, final = agent.paths, request["run"], request.get("final")
    attempt = "" if final else request.get("attempt", "")
    if final and os.path.isdir(paths.run(run)):
        with suppress(OSError):  # no room: running tasks are stopped anyway
            os.close(os.open(paths.stopped(run), os.O_WRONLY | os.O_CREAT, 0o600))
    grace, kill = float(request.get("grace") or 0.0), bool(request.get("kill"))
    chosen = [folder for folder in paths.tasks(run) if attempt in ("", folder.attempt)]
    stopping = [folder for folder in chosen if state.stop(folder, grace, kill)]
    for process in _holders(stopping, procs.GUARD, procs.SUPERVISOR):
        procs.send(process, signal.SIGCONT)  # somebody may have stopped it
    if stopping:
        agent.loop.after(_ACKNOWLEDGE, lambda: _insist(agent, stopping, kill))
    return {"asked": sorted({folder.task for folder in stopping})}


def _insist(agent: Agent, folders: Sequence[TaskFolder], kill: bool) -> None:
    """Kill the supervisors that have not acknowledged a request; without `kill` only after more time.

    On a busy machine a slow supervisor still ends its task gracefully: it may save a checkpoint.
    """
    silent = [folder for folder in folders if not _acknowledged(folder, kill)]
    for process in _holders(silent, procs.SUPERVISOR) if kill else ():
        procs.send(process, signal.SIGKILL)
    if silent and not kill:
        agent.loop.after(_BUSY, lambda: _insist(agent, silent, kill=True))


def _acknowledged(folder: TaskFolder, kill: bool) -> bool:
    """Return True if a task's state shows that its supervisor acts on a request, or that it has ended."""
    try:
        record = state.read(folder)
    except FileNotFoundError:
        return True
    wants = (state.WANT_KILL,) if kill else (state.WANT_STOP, state.WANT_KILL)
    return state.is_final(record) or record["want"] in wants or not state.is_locked(folder)


def _holders(folders: Sequence[TaskFolder], *names: str) -> Iterator[procs.Process]:
    """Return the guards or supervisors of tasks, by the lock that they hold open."""
    held = {os.path.realpath(folder.lock) for folder in folders}
    for process in procs.scan() if held else ():
        if procs.name(process.pid) in names and held & {path for _, path in procs.open_files(process.pid)}:
            yield process


def sweep(agent: Agent, request: Request) -> Json:
    """Kill processes with the cookie of an ended task that are not its descendants, until none is left."""
    run = request["run"]
    folders = agent.paths.tasks(run)
    ended = [folder for folder in folders if state.has_ended(folder, state.settle)]
    alive = sorted(folder.task for folder in folders if folder not in ended)
    if not alive:  # or the run's folder was removed, perhaps while tasks ran
        return {"killed": procs.sweep(run), "alive": []}
    killed: list[Json] = []
    for folder in ended:
        killed += procs.sweep(f"{run}/{folder.attempt}/{folder.task}")
    return {"killed": killed, "alive": alive}


def states(agent: Agent, request: Request) -> Json:
    """Return every task of one run or of all, settled, when none is alive or `wait` seconds are over."""
    deadline = time.monotonic() + float(request.get("wait") or 0.0)
    while True:
        result = _states(agent, request)
        alive = any(task["alive"] for run in result["runs"] for task in run["tasks"])
        if not alive or time.monotonic() > deadline:
            return result
        time.sleep(_LOOK)


def _states(agent: Agent, request: Request) -> Json:
    """Return the state of one run, or of as many as a reply can hold."""
    paths, reports, more, room = agent.paths, [], 0, _ROOM
    runs = reversed(paths.runs()) if request.get("run") is None else [request["run"]]
    for run in runs:  # their names begin with the date
        if not os.path.isdir(paths.run(run)):
            continue
        report = _run(paths, run)
        size = len(json.dumps(report))
        kept = report["keeper"] is not None and report["keeper"]["alive"]
        if size <= room or kept or any(task["alive"] for task in report["tasks"]):
            reports.append(report)
            room -= size
        else:
            more += 1
    if request.get("run") is not None:
        return {"runs": reports, "more": more}
    from . import standby

    return {"runs": reports, "more": more, "standbys": standby.look(paths)}


def keep(agent: Agent, request: Request) -> Json:
    """Become the agent of the run's keeper until this process ends; there can be only one.

    While a previous agent of the same keeper still exists, this is not granted, but our messages count as the
    keeper's. `again`: end the previous agent, which has not noticed that its connection is lost.
    """
    paths, run, who = agent.paths, request["run"], request["who"]
    keepers = agent.keepers
    store_plan(paths, run, request.get("plan"))
    fd = keepers.pop(run, None)
    if fd is None:
        fd = os.open(paths.keeper(run), os.O_RDWR | os.O_CREAT, 0o600)
    granted = locks.take(fd, locks.GLANCE)
    if granted:
        text = json.dumps({"who": who, "agent": procs.look(os.getpid())}).encode()
        os.pwrite(fd, text, 0)
        os.ftruncate(fd, len(text))
    holder = _keeper(paths, run)
    if granted or (holder is not None and holder["who"] == who):
        keepers[run] = fd
        if request.get("again") and not granted:  # otherwise it holds the ports until it is idle
            with suppress(OSError, ValueError, LookupError, TypeError):
                previous = json.loads(procs.text(paths.keeper(run)))["agent"]
                procs.send(procs.Process(*previous), signal.SIGTERM)
    else:
        os.close(fd)
    return {"granted": granted, "holder": holder}


def leave(agent: Agent) -> None:
    """Remove the folders of runs without a plan: their launch failed before any host could use them."""
    for run in agent.keepers:
        folder = agent.paths.run(run)
        if lenient.listed(folder) == ["keeper"]:
            with suppress(OSError):  # another agent of the same keeper uses it
                os.unlink(agent.paths.keeper(run))
                os.rmdir(folder)


def _run(paths: Paths, run: str) -> Json:
    return {
        "run": run,
        "plan": procs.text(paths.run_json(run)) or None,
        "keeper": _keeper(paths, run),
        "stopped": os.path.exists(paths.stopped(run)),
        "tasks": [task for folder in paths.tasks(run) for task in _task(folder)],
    }


def _task(folder: TaskFolder) -> Iterator[Json]:
    """Return a task; nothing for one that was removed meanwhile."""
    try:
        try:
            record = state.settle(folder)
        except NodeError:  # something cannot be killed: the others are reported anyway
            record = state.read(folder)
    except FileNotFoundError:
        return
    yield {
        "attempt": folder.attempt,
        "task": folder.task,
        "state": record,
        "alive": not state.is_final(record) and state.is_locked(folder),
        "log_size": lenient.size(folder.log),
    }


def _keeper(paths: Paths, run: str) -> Json | None:
    try:
        alive = locks.is_taken(paths.keeper(run))
        with open(paths.keeper(run), "rb") as file:
            who = json.loads(file.read() or b"{}").get("who")
    except (FileNotFoundError, ValueError, AttributeError):
        return None
    return {"who": who, "alive": alive}


# --- a start that outlives us: claim, guard, and the result as data ---


def take_claim(folder: TaskFolder) -> list[int]:
    """Create the task's folder, and return its held lock and open FIFO; [] if the folder exists.

    It is created under another name and renamed, so that it is never seen incomplete or with a free lock.
    """
    parent = os.path.dirname(folder.path)
    made = folder._replace(path=f"{parent}/.{folder.slug}.{os.urandom(6).hex()}")
    claim: list[int] = []
    try:
        make_private(parent)
        os.mkdir(made.path, 0o700)
        claim.append(os.open(made.lock, os.O_RDWR | os.O_CREAT, 0o600))
        fcntl.flock(claim[0], fcntl.LOCK_EX)
        os.mkfifo(made.control, 0o600)
        claim.append(os.open(made.control, os.O_RDWR | os.O_NONBLOCK))
        for path in (made.log, made.idx, made.report):
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
        state.write(made, state.new(folder, procs.incarnation(), time.time_ns()), os.O_CREAT)
        os.rename(made.path, folder.path)
    except OSError as error:
        close_all(*claim)
        remove(made.path)  # if this fails, it stays hidden and is harmless
        if error.errno in (errno.EEXIST, errno.ENOTEMPTY) and os.path.exists(folder.path):
            return []
        raise NodeError(
            "state",
            f"the folder of {folder.task} cannot be created",
            f"{folder.path}: {error.strerror or error}",
            "make room there, or set `state` to a folder on another local disk",
        ) from None
    return claim


def begin(
    paths: Paths,
    folder: TaskFolder,
    spec: Mapping[str, Any],
    claim: Sequence[int],
    lease_fds: Sequence[int],
    *,
    slot: socket.socket | None = None,
) -> int:
    """Fork the guard of a claimed task, or turn the standby `slot` into it; return the pipe for the reply.

    `lease_fds` are locks that are held as long as the task lives.
    """
    procs.load()
    # While the claim is held: a stop first forbids starts, then looks for claimed tasks.
    if os.path.exists(paths.stopped(folder.run)):
        what, why = f"no longer starts tasks of run {folder.run}", "a user has stopped the run"
        raise supervisor.refuse(folder, NodeError("stopped", what, why), state.WANT_STOP)
    site = environ.install_site(paths, spec)  # here, so that the files it reads are cached for the next agent
    if slot is not None:
        from . import standby

        given = standby.give(slot, environ.launch(paths, folder, spec, site), claim, lease_fds)
        if given is not None:
            return given
    size = spec.get("terminal")
    try:
        log_read, log_write = os.openpty() if size else os.pipe()
    except OSError as error:
        what = "no terminal could be created for it"
        raise supervisor.refuse(folder, NodeError("start", what, reason(error))) from None
    if size:
        environ.resize(log_read, size)
    reading, writing = os.pipe()
    handles = Handles(claim[0], claim[1], log_read, log_write, writing)
    try:
        procs.detach(
            lambda: supervisor.guard(environ.launch(paths, folder, spec, site), handles),
            [*handles, *lease_fds],
        )
    except OSError as error:
        os.close(reading)
        raise supervisor.refuse(folder, no_process("start", supervisor.NO_PROCESS, error)) from None
    finally:
        close_all(log_read, log_write, writing)
    return reading


def result(folder: TaskFolder, answer: bytes) -> Json:
    """Read everything that arrived on that pipe; raise NodeError if the program could not start."""
    reply = json.loads(answer or b"{}")
    if "state" not in reply:
        what, why = f"{folder.task} was lost during its start", "its guard or its supervisor ended"
        raise NodeError(**reply["error"]) if reply else NodeError("start", what, why)
    return {
        "started": True,
        "already": False,
        "pid": reply["state"]["pid"],
        "state": reply["state"],
        "warm": bool(reply.get("warm")),
        "cold": str(reply.get("cold") or ""),
    }
