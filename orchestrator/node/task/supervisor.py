"""Guard and supervisor of one task.

The supervisor keeps its output, obeys the control FIFO, and ends with nothing of it alive. It has one thread
and one loop; signals only wake it. Its final state.json is the last thing that it does.

The guard waits for the supervisor; when that is gone before its time, it ends what is left and says so.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import time
from typing import Any, NoReturn

from ..base import ending as processes
from ..base import prctl, procs, trust
from ..base.fault import reason
from ..base.paths import TaskFolder
from ..serve.loop import READ, Loop, wake_on
from . import control, ending, state
from .ending import Lifeline
from .environ import Handles, Launch
from .oom import Memory
from .output import Output

CRASHED = 70

_TICK = 1.0  # the longest time without a look at guard and keeper
_FIRST_PAUSE, _LAST_PAUSE = 0.001, 0.5  # between two passes of killing


def supervise(launch: Launch, handles: Handles, guard: int) -> NoReturn:
    """The supervisor's life after its fork (all signals blocked)."""
    status = CRASHED
    try:
        prctl.set_name("orch-supervisor")
        prctl.adopt_orphans()
        prctl.die_with_parent(signal.SIGTERM)
        Supervisor(launch, handles, guard).run()
        status = 0
    except BaseException:
        _record_crash(launch)
    finally:
        os._exit(status)


def _record_crash(launch: Launch) -> None:
    """Keep the traceback of a bug of ours; the guard ends the task."""
    import traceback

    try:
        with open(launch.folder.crash, "a", encoding="utf-8") as file:
            traceback.print_exc(file=file)
    except OSError:
        pass


class Supervisor:
    """The loop and what it knows."""

    def __init__(self, launch: Launch, handles: Handles, guard: int) -> None:
        self._launch = launch
        self._handles = handles
        self._guard = guard
        self._record = Record(launch.folder)
        self._output = Output(launch, handles.log_read, self._record.facts["gaps"])
        self._began = time.monotonic()
        self._lifeline = Lifeline(launch, self._began)
        self._memory = Memory()
        self._ending = ending.Ending()
        self._loop = Loop()
        self._leader_alive = True
        self._guard_lost = False
        self._exec: int | None = None  # the pipe that tells whether exec worked
        self._refusal: dict[str, str] = {}  # why it did not
        self._answered = False
        self._asked = state.WANT_RUN  # what a keeper wanted of the leader; not what we came to want ourselves
        self._reason = ""  # why it was ended, when nobody asked
        self._pause = _FIRST_PAUSE
        self._left_behind = 0
        self._next_glance = 0.0

    def run(self) -> None:
        wakeup = wake_on(signal.SIGCHLD, signal.SIGTERM)
        self._loop.watch(wakeup, READ, lambda: self._on_signal(wakeup))
        self._loop.watch(self._handles.log_read, READ, self._on_output)
        self._loop.watch(self._handles.control, READ, self._on_control)
        self._look_for_guard()
        if not self._guard_lost and self._spawn():
            while self._turn():
                pass
        self._conclude()

    def _spawn(self) -> bool:
        try:
            pid, self._exec = _spawn_leader(self._launch, self._handles.log_write)
        except OSError as error:
            self._refusal = _no_process(error)
            return False
        finally:
            os.close(self._handles.log_write)  # the task's side of the pipe is the task's alone
        self._loop.watch(self._exec, READ, self._on_exec)
        process = procs.look(pid)
        self._record.facts.update(pid=pid, start_ticks=process.start_ticks if process else None)
        return True

    def _turn(self) -> bool:
        """Wait, take what came, act on it; False when nothing of the task is alive."""
        self._loop.step(self._patience())
        any_alive = self._reap()
        now = time.monotonic()
        self._look_around(now)
        action = self._ending.step(now, self._leader_alive, any_alive)
        self._act(action)
        self._save()
        return action != ending.OVER

    def _patience(self) -> float:
        """How long there is nothing to do unless something happens."""
        if self._ending.killing:
            return self._pause
        now = time.monotonic()
        dues = (self._ending.deadline, self._output.rests_until)
        return min(_TICK, self._lifeline.tick, *(due - now for due in dues if due is not None))

    def _reap(self) -> bool:
        ended, any_alive = processes.reap()
        for pid, status in ended:
            if self._leader_alive and pid == self._record.facts["pid"]:
                self._leader_alive = False
                if not self._ending.begun:
                    self._asked = state.WANT_RUN  # it ended before it was told to
                if not self._guard_lost:
                    self._record.facts.update(_exit_of(status))
        return any_alive

    def _look_around(self, now: float) -> None:
        """Look for what sends no message: a dead guard, a keeper gone for too long, the output's turn."""
        if self._output.rests_until is not None and now >= self._output.rests_until:
            self._output.rests_until = None
            self._loop.watch(self._handles.log_read, READ, self._on_output)
        self._look_for_guard()
        self._memory.look(now)
        if self._ending.want != state.WANT_RUN:
            return
        cut = self._lifeline.cut(now, self._output.taken)
        if cut is not None:
            self._reason = cut.why
            self._ending.ask(state.WANT_STOP, cut.grace, now)
        elif now >= self._next_glance:
            self._next_glance = now + _TICK
            if self._folder_is_gone():
                self._reason = state.REMOVED
                self._ending.ask(state.WANT_KILL, 0.0, now)

    def _folder_is_gone(self) -> bool:
        """Return True if somebody removed it: what we write into it is nobody's any more."""
        try:
            there = os.stat(self._launch.folder.lock)
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return there.st_ino != os.fstat(self._handles.lock).st_ino

    def _look_for_guard(self) -> None:
        if not self._guard_lost and os.getppid() != self._guard:
            self._guard_lost = True
            self._reason = "its guard was killed, and the task was ended with it"
            self._ending.ask(state.WANT_KILL, 0.0, time.monotonic())

    def _act(self, action: str) -> None:
        if action == ending.TERM_GROUP:
            self._signal_group(signal.SIGTERM)
            self._signal_group(signal.SIGCONT)  # a stopped task could not hear it
            self._stopping()
        elif action == ending.TERM_ALL:
            self._left_behind = len(processes.signal_all(signal.SIGTERM))
            processes.signal_all(signal.SIGCONT)
            self._stopping()
        elif action == ending.KILL:
            if self._pause == _FIRST_PAUSE:
                self._stopping()
            self._kill()

    def _kill(self) -> None:
        if self._leader_alive:
            self._signal_group(signal.SIGKILL)
        left = processes.signal_all(signal.SIGKILL)
        self._pause = min(self._pause * 2, _LAST_PAUSE)
        if self._pause == _LAST_PAUSE and left:
            names = ", ".join(f"pid {p.pid} ({procs.argv0(p.pid) or '?'})" for p in left[:5])
            said = f"KILL does not end {names}: another user's, or stuck in the kernel"
            if said != self._record.facts["message"]:
                self._record.update(message=said)

    def _signal_group(self, signum: int) -> None:
        """Nobody but us reaps the leader, so its group cannot be another's."""
        pid = self._record.facts["pid"]
        try:
            os.killpg(pid, signum)
        except ProcessLookupError:
            os.kill(pid, signum)  # before its setsid
        except PermissionError:
            pass  # the pass over all descendants tells

    def _stopping(self) -> None:
        self._record.update(state=state.STOPPING, want=self._asked)

    def _on_output(self) -> None:
        self._output.take()
        if self._output.ended or self._output.rests_until is not None:
            self._loop.unwatch(self._handles.log_read)

    def _on_control(self) -> None:
        for want, grace in control.requests(os.read(self._handles.control, 65536)):
            self._ending.ask(want, grace, time.monotonic())
            if self._leader_alive:
                self._asked = self._ending.want

    def _on_signal(self, wakeup: int) -> None:
        asked = signal.SIGTERM in os.read(wakeup, 4096)  # bytes are numbers of signals
        if asked and os.getppid() == self._guard:  # not for its death: the machine shuts down
            self._reason = "its supervisor was told to end (TERM)"
            self._ending.ask(state.WANT_STOP, self._launch.grace, time.monotonic())

    def _on_exec(self) -> None:
        """The leader became the program, or says why not."""
        assert self._exec is not None
        self._loop.unwatch(self._exec)
        self._refusal = _hear_exec(self._exec)
        self._exec = None
        if self._refusal:
            return
        if self._record.facts["state"] == state.STARTING:
            self._record.update(state=state.RUNNING)
        self._save()
        self._answer({"state": self._record.facts})

    def _conclude(self) -> None:
        """Nothing of the task is alive: the rest of its output, then the final word."""
        if self._exec is not None:
            self._on_exec()
        self._output.drain()
        self._record.facts["want"] = self._asked
        final = self._final()
        state.conclude(self._launch.folder, final)
        self._answer({"error": self._refusal} if self._refusal else {"state": final})

    def _final(self) -> state.State:
        facts, now = self._record.facts, time.time_ns()
        by_kill = signal.SIGKILL in (facts["exit_signal"], (facts["exit_code"] or 0) - 128)
        facts["oom"] = self._memory.kills(killed=by_kill and self._ending.want == state.WANT_RUN)
        facts["seconds"] = time.monotonic() - self._began  # the clock may have been set meanwhile
        if self._refusal:
            unknown = {**facts, "exit_code": None, "exit_signal": None}
            return state.ended(unknown, state.UNSTARTED, now, _in_one_line(self._refusal))
        if self._left_behind and self._ending.want == state.WANT_RUN:
            number = self._left_behind
            left = "1 process behind, which was" if number == 1 else f"{number} processes behind, which were"
            self._reason = f"left {left} ended"
        return state.ended(facts, state.LOST if self._guard_lost else state.EXITED, now, self._reason)

    def _save(self) -> None:
        log = self._output.log
        log.changed = not self._record.save(time.monotonic(), log.changed)

    def _answer(self, answer: dict[str, Any]) -> None:
        """Tell `start` how it went, once; nobody may be listening any more."""
        if not self._answered:
            self._answered = True
            _tell_start(self._handles.answer, answer)


def _exit_of(status: int) -> dict[str, int | None]:
    if os.WIFSIGNALED(status):
        return {"exit_code": None, "exit_signal": os.WTERMSIG(status)}
    return {"exit_code": os.WEXITSTATUS(status), "exit_signal": None}


# --- the task's first process ---


def _spawn_leader(launch: Launch, output: int) -> tuple[int, int]:
    """Fork the leader; return its pid and a pipe: it ends empty when exec worked, else with an error."""
    heard, said = os.pipe()
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            error = _become(launch, output, parent)
            os.write(said, json.dumps(error).encode())
        except BaseException as bug:
            os.write(said, json.dumps(_refused("the task could not be prepared", repr(bug), "")).encode())
        finally:
            os._exit(127)
    os.close(said)
    return pid, heard


def _hear_exec(pipe: int) -> dict[str, str]:
    """Why exec failed, {} when it worked; called when the pipe has something or has ended."""
    with open(pipe, "rb") as stream:
        said = stream.read()
    error: dict[str, str] = json.loads(said) if said else {}
    return error


def _no_process(error: OSError) -> dict[str, str]:
    """The refusal when no process could be made."""
    return _refused(
        "no process could be made for it",
        reason(error),
        "the machine is short of memory, or this user has too many processes (ulimit -u)",
    )


def _in_one_line(refusal: dict[str, str]) -> str:
    return ": ".join(part for part in (refusal["what"], refusal["why"]) if part)


def _tell_start(fd: int, said: dict[str, Any]) -> None:
    """Tell the waiting `start` how it went, and hang up."""
    try:
        os.write(fd, json.dumps(said).encode() + b"\n")
    except OSError:
        pass
    os.close(fd)


def _become(launch: Launch, output: int, parent: int) -> dict[str, str]:
    """Become the task; returns only the reason why that failed."""
    os.setsid()
    prctl.die_with_parent(signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(127)
    os.dup2(output, 1)
    os.dup2(output, 2)
    try:
        os.chdir(launch.cwd)
    except OSError as error:
        return _refused(
            f"its working folder {launch.cwd} cannot be entered",
            reason(error),
            "sync the code again, or check `workdir` of this host",
        )
    _reset_signals()
    trust.restore_umask()
    try:
        _exec(launch.argv, launch.env)
    except (OSError, ValueError) as error:
        return _explain_exec(error, launch)


def _reset_signals() -> None:
    """Nothing blocked and nothing ignored: both would be inherited over exec."""
    for signum in signal.valid_signals():
        try:
            signal.signal(signum, signal.SIG_DFL)
        except (OSError, ValueError):
            pass  # KILL and STOP
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def _exec(argv: list[bytes], env: dict[bytes, bytes]) -> NoReturn:
    """Like execvpe, with the task's own PATH; raise the most telling error."""
    if b"/" in argv[0]:
        os.execve(argv[0], argv, env)  # noqa: S606 - no shell is the point
    denied = None
    for folder in env.get(b"PATH", os.defpath.encode()).split(b":"):
        try:
            os.execve(os.path.join(folder or b".", argv[0]), argv, env)  # noqa: S606
        except (FileNotFoundError, NotADirectoryError):
            continue
        except PermissionError as error:
            if os.path.lexists(os.path.join(folder, argv[0])):  # else it is a folder that we may not search
                denied = error
    raise denied or FileNotFoundError(errno.ENOENT, "no such program on PATH")


def _explain_exec(error: Exception, launch: Launch) -> dict[str, str]:
    program = os.fsdecode(launch.argv[0])[:500]
    what = f"{program} could not be started"
    code = error.errno if isinstance(error, OSError) else None
    why = os.strerror(code) if code else str(error)
    if code == errno.ENOENT and "/" not in program:
        path = os.fsdecode(launch.env.get(b"PATH", b""))[:500]
        return _refused(what, f"no program of that name is on PATH ({path})", "give its path, or install it")
    if code == errno.ENOENT:
        hint = "look whether it is in the synced tree, or ignored; or correct `python` in hosts.toml"
        there = os.path.exists(program)
        return _refused(
            what,
            "what its first line names is not there" if there else f"no such file, seen from {launch.cwd}",
            hint,
        )
    if code == errno.EACCES:
        return _refused(what, why, f"chmod +x {program}, unless its file system is mounted noexec")
    if code == errno.ENOEXEC:
        return _refused(
            what, "it is no program and names no interpreter", "begin it with a line like #!/bin/sh"
        )
    return _refused(what, why, "")


def _refused(what: str, why: str, hint: str) -> dict[str, str]:
    return {"what": what, "why": why, "hint": hint}


# --- the guard ---


def guard(launch: Launch, handles: Handles) -> None:
    """The guard's life after its fork (all signals blocked, for good); ends the process."""
    try:
        prctl.set_name("orch-guard")
        prctl.adopt_orphans()
        mine = os.getpid()
        memory = Memory()
        try:
            child = os.fork()
        except OSError as error:
            _tell_start(handles.answer, {"error": cannot_fork(launch, error)})
            return
        if child == 0:
            supervise(launch, handles, mine)
        for fd in (handles.control, handles.log_write, handles.answer):
            os.close(fd)
        status = _wait_for(child)
        if status != 0:
            _end_all()
            _bury(launch, handles, status, memory)
    except BaseException:
        _record_crash(launch)
    finally:
        os._exit(0)


def cannot_fork(launch: Launch, error: OSError) -> dict[str, str]:
    """Conclude a task for which no process can be made; return the error."""
    refusal = _no_process(error)
    found = state.read(launch.folder)
    final = state.ended(found, state.UNSTARTED, time.time_ns(), _in_one_line(refusal))
    state.conclude(launch.folder, final)
    return refusal


def _wait_for(child: int) -> int:
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == child:
            return status


def _end_all() -> None:
    """Kill until there is no child left, which proves that there is no descendant left."""
    pause = 0.001
    while processes.reap()[1]:
        processes.signal_all(signal.SIGKILL)
        signal.sigtimedwait([signal.SIGCHLD], pause)
        pause = min(pause * 2, 0.2)


def _bury(launch: Launch, handles: Handles, status: int, memory: Memory) -> None:
    found = {**state.read(launch.folder), "oom": memory.kills()}
    Output(launch, handles.log_read, found["gaps"]).drain()
    if not state.is_final(found):
        final = state.ended(found, state.LOST, time.time_ns(), _why(status))
        state.conclude(launch.folder, final)


def _why(status: int) -> str:
    if os.WIFSIGNALED(status):
        return f"its supervisor was killed by signal {os.WTERMSIG(status)}, and the task was ended with it"
    return "its supervisor failed: a bug in orchestrate, described in crash.txt beside the log"


_EVERY = 0.5  # seconds between two saves of how far a gap grew, or of what found no room


class Record:
    """`facts` may be read at any time; change them with `update`."""

    def __init__(self, folder: TaskFolder) -> None:
        self.facts = state.read(folder)
        self._folder = folder
        self._unsaved = False
        self._full = False  # no room, not even for this
        self._again = 0.0

    def update(self, **facts: Any) -> None:
        """Change facts, which are then saved at once."""
        self.facts.update(facts)
        self._unsaved = True

    def save(self, now: float, gaps_grew: bool) -> bool:
        """Save what is due; True when the gaps are on disk too."""
        waited = now >= self._again
        at_once = self._unsaved and not self._full
        if not (at_once or (waited and (self._unsaved or gaps_grew))):
            return not gaps_grew
        self._again = now + _EVERY
        try:
            state.write(self._folder, self.facts, state.FOR_GAP if gaps_grew and not self._full else "")
            self._unsaved = gaps_grew = self._full = False
            state.set_aside(self._folder)
        except OSError:
            self._full = True
        return not gaps_grew
