"""The processes of a standby: a guard, a supervisor, and the user's Python.

The Python waits in our `sitecustomize` (hook/site_standby.py) before it opens its script. Meanwhile, a fork
of it may run a validation ("lent"): the supervisor supervises the validation, and then waits again.

standby/<key>-<random>/about.json, socket    until it has a task; only our own user can connect
standby/<key>-<random>/lock, leader, ready, cwd/, report
"""

from __future__ import annotations

import array
import json
import os
import select
import signal
import socket
import struct
import time
from contextlib import contextmanager, suppress
from typing import Any, Iterator, NamedTuple, NoReturn, Sequence

from ..base import lenient, procs
from ..base.descriptors import close_all, replace_file
from ..base.paths import Paths, TaskFolder
from ..disk.removing import remove
from ..serve.loop import READ
from . import leases, supervisor
from .environ import Handles, Launch
from .waiting import Waiting

# Python stores the absolute path of its script before our hook runs; the hook can only write a shorter one.
CWD = "/".join(("cwd", "_" * 250, "_" * 250))
_ROOM = 4096  # bytes for the marks of the task
MOMENT = 3.0  # seconds for a standby to reply
_LOOK = 2.0  # seconds between two checks for a reason to end
_LEAST = 0.1  # of the memory: with less free, standbys end
_LAG = 1.0  # seconds for the supervisor to report the end of a fork
_LENT = b"+"  # before a task that gets a fork; alone, when it is over


class Slot(NamedTuple):
    """The description of a standby that has no task yet."""

    paths: Paths
    folder: str
    argv: list[bytes]
    env: dict[bytes, bytes]
    imports: str
    owner: int  # the read end of a pipe: it brings the agent's orders, and its EOF ends the standby


@contextmanager
def near(folder: str) -> Iterator[str]:
    """Yield a short path of a folder's socket: the kernel accepts 107 bytes."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{fd}/socket"
    finally:
        os.close(fd)


# --- memory ---


def memory() -> tuple[int, int]:
    """Return the memory that this process may use, and how much of it is free, in bytes.

    Besides the machine, its control groups limit it: a container's, or the slice of a user's logins.
    """
    fields = _fields("/proc/meminfo")
    total, free = fields.get("MemTotal:", 1) << 10, fields.get("MemAvailable:", 0) << 10
    group = procs.text("/proc/self/cgroup").rpartition("::")[2].strip()
    while group:
        folder = f"/sys/fs/cgroup{group}/memory."
        limit, used = (procs.text(folder + name).strip() for name in ("max", "current"))
        if limit.isdigit():
            cached = _fields(folder + "stat").get("inactive_file", 0)
            total, free = min(total, int(limit)), min(free, int(limit) - int(used or 0) + cached)
        group = group.rpartition("/")[0]
    return total, free


def _fields(path: str) -> dict[str, int]:
    rows = (line.split() for line in procs.text(path).splitlines())
    return {row[0]: int(row[1]) for row in rows if len(row) > 1}


def free() -> float:
    total, free = memory()
    return free / total


# --- the guard's side ---


def guard(slot: Slot, listener: socket.socket, log: tuple[int, int]) -> NoReturn:
    """Wait for a task or an order to end; all signals but TERM are blocked."""
    try:
        procs.set_name(procs.GUARD)
        procs.adopt_orphans()
        ours, theirs = socket.socketpair()
        child = os.fork()
        if child == 0:
            ours.close()
            listener.close()
            os.close(slot.owner)
            place = [slot.folder]
            supervisor.supervise(lambda: _live(slot, theirs, log, place), lambda: f"{place[-1]}/crash.txt")
        theirs.close()
        os.close(log[1])
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        task = _await(slot, listener, ours)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        listener.close()
        os.close(slot.owner)
        if task is None:
            ours.close()
            supervisor.outlive()
            remove(slot.folder)
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        if status != 0:
            supervisor.bury(task.launch, Handles(task.held[0], -1, log[0], -1, -1), status)
        remove(slot.folder)
    except BaseException:
        supervisor.record_crash(f"{slot.folder}/crash.txt")
    finally:
        os._exit(0)


class _Task(NamedTuple):
    """A task that was passed on to the supervisor."""

    launch: Launch
    held: list[int]  # descriptors: its lock, then its leases


def _pass_on(data: bytes, fds: list[int], ours: socket.socket) -> _Task:
    lock, control, answer, *leases = fds
    send(ours, data, fds)
    close_all(control, answer)
    return _Task(_launch(data), [lock, *leases])


def _await(slot: Slot, listener: socket.socket, ours: socket.socket) -> _Task | None:
    """Return the task, or the lent one in which the Python ended; None if the standby ends without one."""
    poll = select.poll()
    for fd in (listener.fileno(), slot.owner, ours.fileno()):
        poll.register(fd, READ)
    order, deadline, owner, machine, next_look = b"", 0.0, "", "", 0.0
    is_alone, lent = False, None  # whether the agent has ended; the task that runs in a fork
    while True:
        # At a shutdown of the machine, the supervisor ends its task.
        signal.pthread_sigmask(signal.SIG_BLOCK if lent else signal.SIG_UNBLOCK, [signal.SIGTERM])
        ready = {fd for fd, _ in poll.poll(_LOOK * 1000)}
        now = time.monotonic()
        # A request may arrive before the end of the fork is reported: its final state is written first.
        if lent and listener.fileno() in ready and select.select([ours], [], [], _LAG)[0]:
            ready.add(ours.fileno())
        if ours.fileno() in ready:
            if lent is None or ours.recv(1) != _LENT:
                return lent  # the Python has ended
            close_all(*lent.held)
            lent = None
        if listener.fileno() in ready:
            message = _serve(slot, listener, busy=lent is not None)
            if message is None:
                return None
            if message:
                data, fds = message
                task = _pass_on(data, fds, ours)
                if not data.startswith(_LENT):
                    return task
                lent = task
        if slot.owner in ready:
            piece = os.read(slot.owner, 4096)
            order += piece
            if not piece:
                poll.unregister(slot.owner)
                is_alone = not order.endswith(b"\n")
                if not is_alone:
                    kept = json.loads(order)
                    deadline, owner, machine = now + kept["seconds"], kept["owner"], kept["machine"]
        if is_alone and lent is None:
            return None
        if now >= next_look and lent is None:
            next_look = now + _LOOK
            over = (deadline and now >= deadline) or (owner and _others(owner, machine))
            if over or free() < _LEAST or not os.path.exists(slot.folder):
                return None


def _others(owner: str, machine: str) -> bool:
    """Return True if another user's run uses this machine or waits for it."""
    places = (place for place in leases.places() if place.machine == leases.short(machine))
    return any(not leases.is_of(place, owner) for place in places)


def _serve(slot: Slot, listener: socket.socket, *, busy: bool) -> Any:
    """Serve one connection; return a task and its descriptors, None for an order to end, () for neither."""
    sock, _ = listener.accept()
    with sock:
        sock.settimeout(MOMENT)
        credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        if struct.unpack("3i", credentials)[1] != os.geteuid():
            return ()
        try:
            want = json.loads(_receive(sock)[0] or b"{}").get("want")
            if busy or want not in ("take", "lend", "end"):
                return ()
            for name in ("about.json", "socket") if want != "lend" else ():
                lenient.discard(f"{slot.folder}/{name}")
            if want == "end":
                return None
            sock.sendall(b"\n")
            sock.settimeout(2 * MOMENT)
            data, fds = _receive(sock)
        except (OSError, ValueError):
            return ()
        if not data.endswith(b"\n") or len(fds) < 3:
            return () if want == "lend" else None
        return (data if want == "take" else _LENT + data), fds


def send(sock: socket.socket, data: bytes, fds: Sequence[int]) -> None:
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))]
    sent = sock.sendmsg([data], rights)
    if sent < len(data):  # otherwise the other end may be closed by now
        sock.sendall(data[sent:])


def _receive(sock: socket.socket) -> tuple[bytes, list[int]]:
    """Receive one line and its descriptors."""
    data, fds = b"", array.array("i")
    while not data.endswith(b"\n"):
        piece, rights, _, _ = sock.recvmsg(1 << 16, socket.CMSG_SPACE(64 * fds.itemsize))
        for level, kind, packed in rights:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                fds.frombytes(packed[: len(packed) - len(packed) % fds.itemsize])
        if not piece:
            break
        data += piece
    return data, list(fds)


def _launch(data: bytes) -> Launch:
    fields = Launch(**json.loads(data.lstrip(_LENT)))
    return fields._replace(
        paths=Paths(str(fields.paths)),
        folder=TaskFolder(*fields.folder),
        argv=[str(word).encode("latin-1") for word in fields.argv],
        env={str(name).encode("latin-1"): str(value).encode("latin-1") for name, value in fields.env.items()},
    )


# --- the supervisor's side ---


def _live(slot: Slot, channel: socket.socket, log: tuple[int, int], place: list[str]) -> None:
    """Wait for a task, append its folder to `place`, and supervise it; after a lent fork, wait again."""
    waiting = _start(slot, log)
    lends = True
    while lends:
        while not select.select([channel], [], [], 0)[0]:
            if waiting.ready:
                os.close(os.open(f"{slot.folder}/ready", os.O_WRONLY | os.O_CREAT, 0o600))
            try:
                waiting.ready = bool(waiting.listen(channel.fileno())) or waiting.ready
            except EOFError:  # the Python has ended, and so will the guard, unless a task has just arrived
                channel.sendall(b"\n")
                break
        data, fds = _receive(channel)
        if not data.endswith(b"\n"):
            supervisor.outlive()
            return
        launch = _launch(data)
        place.append(launch.folder.path)
        handles, lends = Handles(fds[0], fds[1], *log, fds[2]), data.startswith(_LENT)
        lends = supervisor.Supervisor(launch, handles, waiting, lends=lends).run()
        if lends:
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
            close_all(*fds[:2], *fds[3:])
            with suppress(OSError):  # its guard has ended: no task will come
                channel.sendall(_LENT)


def _start(slot: Slot, log: tuple[int, int]) -> Waiting:
    ours, theirs = socket.socketpair()
    os.set_inheritable(theirs.fileno(), True)
    mark = f"{theirs.fileno()}:{slot.imports}:"
    env = {**slot.env, b"ORCHESTRATE_STANDBY": mark.encode().ljust(_ROOM, b".")}  # last: it takes precedence
    cwd = f"{slot.folder}/{CWD}"
    folder = TaskFolder(slot.folder, "", "", "")
    launch = Launch(slot.paths, folder, slot.argv, env, cwd, 0.0, False, None, None, None, None)
    reply, answer = os.pipe()
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        supervisor.lead(launch, log[1], parent, answer)
    theirs.close()
    close_all(answer, reply)
    replace_file(f"{slot.folder}/leader", str(pid).encode())
    return Waiting(slot.folder, pid, ours, log[0])
