"""The agent's side of tasks and runs: starting, stopping, and what is on disk, made true first."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import time
from typing import Any, Callable, Iterator, Mapping, Sequence

from ..base import lenient, locks, procs
from ..base.descriptors import close_others, replace_file
from ..base.fault import NodeError, no_process, reason
from ..base.paths import Paths, TaskFolder, make_private
from ..disk.removing import remove
from ..serve.agent import Agent, Request
from ..serve.loop import READ
from . import environ, leases, state, supervisor
from .environ import Handles, Launch

_SECONDS = 60.0  # that a child may take to end what is left of tasks
_ACKNOWLEDGE = 1.0  # seconds for a supervisor to act on a stop
_BUSY = 10.0  # the same on a machine that is very busy, where a task may still save its checkpoint
_ROOM = 12 << 20  # bytes of an answer: plans of large clusters are long, and a message holds 16 MB


def start(agent: Agent, request: Request) -> None:
    """Start a task once; its guard inherits the lease on its port and the place in line: they last as long.

    The guard is forked here and not in a child: a stop that comes next finds it, and it is nobody's to end.
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
    try:
        heard = begin(paths, folder, spec, claim, held)
    finally:
        for fd in claim:
            os.close(fd)
    answer = bytearray()

    def hear() -> None:
        data = os.read(heard, 65536)
        answer.extend(data)
        if not data:
            agent.loop.unwatch(heard)
            os.close(heard)
            try:
                agent.reply(request, result(folder, bytes(answer)))
            except NodeError as error:
                agent.fail(request, error)

    agent.loop.watch(heard, READ, hear)


def _already(folder: TaskFolder) -> dict[str, Any]:
    found = state.settle(folder)
    return {"started": False, "already": True, "pid": found["pid"], "state": found}


def store_plan(paths: Paths, run: str, plan: str | None) -> None:
    """Keep the run's public plan as it was given: whoever takes over has nothing else.

    A later attempt may have another one; many starts bring the same.
    """
    path = paths.run_json(run)
    make_private(paths.run(run))
    if plan is not None and procs.text(path) != plan:
        replace_file(path, plan.encode())


def stop(agent: Agent, request: Request) -> dict[str, Any]:
    """Ask every living task of a run to end; those without guard and supervisor are for `sweep` and `states`.

    A supervisor that does not acknowledge it is killed, and its guard ends the task. `final`: from now on
    nothing of the run is started, whatever a keeper elsewhere is about to do.
    """
    paths, run = agent.paths, request["run"]
    if request.get("final") and os.path.isdir(paths.run(run)):
        try:
            os.close(os.open(paths.stopped(run), os.O_WRONLY | os.O_CREAT, 0o600))
        except OSError:
            pass  # no room: what runs is stopped all the same
    grace, kill = float(request.get("grace") or 0.0), bool(request.get("kill", False))
    asked = [folder for folder in paths.tasks(run) if state.stop(folder, grace, kill)]
    for process in _holders(asked, procs.GUARD, procs.SUPERVISOR):
        procs.send(process, signal.SIGCONT)  # somebody may have stopped it
    if asked:
        agent.loop.after(_ACKNOWLEDGE, lambda: _insist(agent, asked, kill))
    return {"asked": sorted({folder.task for folder in asked})}


def _insist(agent: Agent, folders: Sequence[TaskFolder], kill: bool) -> None:
    """Kill the supervisors that have not acknowledged a request; without `kill` only after more time.

    On a busy machine a slow supervisor still ends its task with grace: it may save a checkpoint.
    """
    silent = [folder for folder in folders if not _acknowledged(folder, kill)]
    for process in _holders(silent, procs.SUPERVISOR) if kill else ():
        procs.send(process, signal.SIGKILL)
    if silent and not kill:
        agent.loop.after(_BUSY, lambda: _insist(agent, silent, kill=True))


def _acknowledged(folder: TaskFolder, kill: bool) -> bool:
    """Return True if a task's state shows that its supervisor acts on a request, or that it has ended."""
    try:
        found = state.read(folder)
    except FileNotFoundError:
        return True
    wants = (state.WANT_KILL,) if kill else (state.WANT_STOP, state.WANT_KILL)
    return state.is_final(found) or found["want"] in wants or not state.is_locked(folder)


def _holders(folders: Sequence[TaskFolder], *names: str) -> Iterator[procs.Process]:
    """The guards or supervisors of tasks, by the lock that they hold open."""
    held = {os.path.realpath(folder.lock) for folder in folders}
    for process in procs.scan() if held else ():
        if procs.name(process.pid) in names and held & {path for _, path in procs.open_files(process.pid)}:
            yield process


def sweep(agent: Agent, request: Request) -> dict[str, Any]:
    """Kill whatever still bears the cookie of an ended task; return when none is left.

    A guard proves that no descendant is left; what else bears the cookie is looked for by that. The answer
    names the tasks that have not ended: they are left alone.
    """
    run = request["run"]
    folders = agent.paths.tasks(run)
    ended = [folder for folder in folders if state.has_ended(folder, state.settle)]
    alive = sorted(folder.task for folder in folders if folder not in ended)
    if not alive:  # nor where the run was removed, perhaps while something ran
        return {"killed": procs.sweep(run), "alive": []}
    killed: list[dict[str, Any]] = []
    for folder in ended:
        killed += procs.sweep(f"{run}/{folder.attempt}/{folder.task}")
    return {"killed": killed, "alive": alive}


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
        kept = found["keeper"] is not None and found["keeper"]["alive"]
        if size <= room or kept or any(task["alive"] for task in found["tasks"]):
            told.append(found)
            room -= size
        else:
            more += 1
    return {"runs": told, "more": more}


def keep(agent: Agent, request: Request) -> dict[str, Any]:
    """Become the agent of the run's keeper, for as long as we live; only one can be.

    While an agent that the same keeper has lost is still there, its place is not free yet; but our
    words are the keeper's all the same.
    """
    paths, run, who = agent.paths, request["run"], request["who"]
    words = agent.words
    store_plan(paths, run, request.get("plan"))
    fd = words.pop(run, None)
    if fd is None:
        fd = os.open(paths.keeper(run), os.O_RDWR | os.O_CREAT, 0o600)
    granted = locks.take(fd, locks.GLANCE)
    if granted:
        text = json.dumps({"who": who}).encode()
        os.pwrite(fd, text, 0)
        os.ftruncate(fd, len(text))
    holder = _keeper(paths, run)
    if granted or (holder is not None and holder["who"] == who):
        words[run] = fd
    else:
        os.close(fd)
    return {"granted": granted, "holder": holder}


def _run(paths: Paths, run: str) -> dict[str, Any]:
    return {
        "run": run,
        "plan": procs.text(paths.run_json(run)) or None,
        "keeper": _keeper(paths, run),
        "stopped": os.path.exists(paths.stopped(run)),
        "tasks": [known for folder in paths.tasks(run) for known in _task(folder)],
    }


def _task(folder: TaskFolder) -> Iterator[dict[str, Any]]:
    """Nothing of a task that was removed meanwhile."""
    try:
        try:
            found = state.settle(folder)
        except NodeError:  # something cannot be killed: the others are told all the same
            found = state.read(folder)
    except FileNotFoundError:
        return
    yield {
        "attempt": folder.attempt,
        "task": folder.task,
        "state": found,
        "alive": not state.is_final(found) and state.is_locked(folder),
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


# --- a start that outlives us: claim, guard, and the result as data ---


def take_claim(folder: TaskFolder) -> list[int]:
    """Make the task's folder with its lock held and its FIFO open, and return both; none when it is taken.

    It is made beside its place and renamed: whoever sees it sees all of it, and never a free lock.
    """
    parent = os.path.dirname(folder.path)
    made = folder._replace(path=os.path.join(parent, f".{folder.slug}.{os.urandom(6).hex()}"))
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
        for fd in claim:
            os.close(fd)
        remove(made.path)  # what cannot be removed stays hidden and harmless
        if error.errno in (errno.EEXIST, errno.ENOTEMPTY) and os.path.exists(folder.path):
            return []
        raise NodeError(
            "state",
            f"the folder of {folder.task} cannot be made",
            f"{folder.path}: {error.strerror or error}",
            "make room there, or set `state` to a folder on another local disk",
        ) from None
    return claim


def begin(
    paths: Paths, folder: TaskFolder, spec: Mapping[str, Any], claim: Sequence[int], lease_fds: Sequence[int]
) -> int:
    """Fork the guard of a claimed task; return the pipe on which the supervisor's answer comes.

    `lease_fds` are locks that shall be held for as long as the task lives.
    """
    procs.load()
    # With the claim in hand: whoever stops the run forbids it first, and then looks for claims.
    if os.path.exists(paths.stopped(folder.run)):
        what, why = f"starts nothing of run {folder.run} any more", "a user has stopped the run"
        raise supervisor.refuse(folder, NodeError("stopped", what, why), state.WANT_STOP)
    site = environ.install_site(paths, spec)  # here, where what it reads is kept for the next agent
    size = spec.get("terminal")
    try:
        log_read, log_write = os.openpty() if size else os.pipe()
    except OSError as error:
        what = "no terminal could be made for it"
        raise supervisor.refuse(folder, NodeError("start", what, reason(error))) from None
    if size:
        environ.resize(log_read, size)
    heard, said = os.pipe()
    handles = Handles(claim[0], claim[1], log_read, log_write, said)
    try:
        _detach(lambda: supervisor.guard(_launch(paths, folder, spec, site), handles), [*handles, *lease_fds])
    except OSError as error:
        os.close(heard)
        raise supervisor.refuse(folder, no_process("start", supervisor.NO_PROCESS, error)) from None
    finally:
        for fd in (log_read, log_write, said):
            os.close(fd)
    return heard


def result(folder: TaskFolder, answer: bytes) -> dict[str, Any]:
    """Read all that came on that pipe; raise NodeError when the program could not start."""
    found = json.loads(answer or b"{}")
    if "state" not in found:
        lost = NodeError("start", f"{folder.task} was lost while it was started", "its guard was killed")
        raise NodeError(**found["error"]) if found else lost
    return {"started": True, "already": False, "pid": found["state"]["pid"], "state": found["state"]}


def _launch(paths: Paths, folder: TaskFolder, spec: Mapping[str, Any], site: str | None) -> Launch:
    marks = {
        procs.COOKIE: f"{folder.run}/{folder.attempt}/{folder.task}/{os.urandom(8).hex()}",
        "ORCHESTRATE_RUN": folder.run,
        "ORCHESTRATE_ATTEMPT": folder.attempt,
        "ORCHESTRATE_REPORT": folder.report,
    }
    if site is not None and spec.get("stacks", True):
        marks["ORCHESTRATE_STACKS"] = f"{environ.SIGNAL}:{folder.stacks}"
    argv, env = environ.of_task(spec, marks)
    if not spec.get("terminal") and "PYTHONBREAKPOINT" not in (spec.get("env") or {}):
        env[b"PYTHONBREAKPOINT"] = b"0"  # at a prompt it would read the end of /dev/null, and end
    if site is not None:
        rest = env.get(b"PYTHONPATH")  # an empty piece of it would mean the working folder
        env[b"PYTHONPATH"] = os.fsencode(site) + (b":" + rest if rest else b"")
    return Launch(
        paths=paths,
        folder=folder,
        argv=argv,
        env=env,
        cwd=os.path.join(os.path.expanduser("~"), os.path.expanduser(spec.get("cwd") or "~")),
        grace=float(spec.get("grace") or 0.0),
        endless=bool(spec.get("endless")),
        lifeline=spec.get("lifeline") or None,
        fence=spec.get("fence") or None,
        log_cap=spec.get("log_cap") or None,
        terminal=spec.get("terminal"),
    )


def _detach(main: Callable[[], object], keep: list[int]) -> None:
    """Run `main` in a process of its own session that is no child of ours, with only `keep` open.

    Raise OSError when no process can be made.
    """
    old = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        between = os.fork()
        if between == 0:
            try:
                os.setsid()
                if os.fork() == 0:
                    _let_go(keep)
                    main()
                os._exit(0)
            finally:
                os._exit(1)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, old)
    status = os.waitpid(between, 0)[1]
    if os.WIFEXITED(status) and os.WEXITSTATUS(status) != 0:  # killed, it may have forked before
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))


def _let_go(keep: list[int]) -> None:
    """Close what the caller had open: its protocol channel would stay open with us."""
    os.chdir("/")
    close_others({0, 1, 2, *keep})
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.close(null)
