"""Runs one task: keeps its output, obeys the control FIFO, and ends with nothing of it alive.

One thread, one loop; signals only wake it. Its final state.json is the last thing that it does.
"""

from __future__ import annotations

import json
import os
import select
import signal
import time
from typing import Any, Callable, Dict, NoReturn, Optional

from . import ending, leader, prctl, procs, reaper, state
from .launch import Handles, Launch
from .lifeline import Lifeline
from .logfile import LogFile

CHUNK = 256 << 10
CRASHED = 70

_TICK = 1.0  # the longest time without a look at guard and keeper
_REST = 0.004  # between two reads of a pipe that was not full: lines come in groups, not one by one


def main(launch: Launch, handles: Handles, guard: int) -> NoReturn:
    """The supervisor's life after its fork (all signals blocked)."""
    status = CRASHED
    try:
        prctl.set_name("orch-supervisor")
        prctl.adopt_orphans()
        prctl.die_with_parent(signal.SIGTERM)
        Supervisor(launch, handles, guard).run()
        status = 0
    except BaseException:
        record_crash(launch)
    finally:
        os._exit(status)


def record_crash(launch: Launch) -> None:
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
        self._state = state.read(launch.folder)
        self._log = LogFile(launch.folder.log, launch.folder.idx, launch.log_cap, self._state["gaps"])
        self._lifeline = Lifeline(launch, time.monotonic())
        self._ending = ending.Ending()
        self._poll = select.poll()
        self._readers: Dict[int, Callable[[], None]] = {}
        self._leader_alive = True
        self._guard_lost = False
        self._unsaved = False
        self._refusal: Dict[str, str] = {}  # why exec failed
        self._exec = -1
        self._answered = False
        self._log_due: Optional[float] = None  # the pipe rests until then
        self._kill_pause = 0.001
        self._left_behind = 0

    def run(self) -> None:
        wakeup = _wake_on(signal.SIGCHLD, signal.SIGTERM)
        os.set_blocking(self._handles.log_read, False)
        try:
            pid, self._exec = leader.spawn(self._launch, self._handles.log_write)
        except OSError as error:
            self._refusal = leader.cannot_fork(error)
            return self._conclude()
        finally:
            os.close(self._handles.log_write)
        process = procs.look(pid)
        self._state.update(pid=pid, start_ticks=process.start_ticks if process else None)
        self._listen(self._handles.log_read, self._on_log)
        self._listen(self._handles.control, self._on_control)
        self._listen(self._exec, self._on_exec)
        self._listen(wakeup, lambda: self._on_signal(wakeup))
        while self._turn():
            pass
        return self._conclude()

    def _turn(self) -> bool:
        """Wait, take what came, act on it; False when nothing of the task is alive."""
        for fd, _ in self._poll.poll(max(1, int(self._patience() * 1000))):
            if fd in self._readers:
                self._readers[fd]()
        any_alive = self._reap()
        now = time.monotonic()
        self._rest_over(now)
        self._look_around(now)
        action = self._ending.step(now, self._leader_alive, any_alive)
        self._act(action)
        if self._unsaved or self._log.changed:
            self._save()
        return action != ending.OVER

    def _patience(self) -> float:
        """How long nothing needs to be done unless something happens."""
        now = time.monotonic()
        waits = [min(_TICK, self._lifeline.tick)]
        waits += [due - now for due in (self._ending.deadline, self._log_due) if due is not None]
        if self._ending.killing:
            waits = [self._kill_pause]
        return min(waits)

    def _act(self, action: str) -> None:
        if action == ending.TERM_GROUP:
            self._signal_group(signal.SIGTERM)
            self._signal_group(signal.SIGCONT)  # a stopped task could not hear it
            self._stopping()
        elif action == ending.TERM_ALL:
            self._left_behind = len(procs.descendants(os.getpid(), procs.scan()))
            reaper.signal_all(signal.SIGTERM)
            reaper.signal_all(signal.SIGCONT)
            self._stopping()
        elif action == ending.KILL:
            self._kill()

    def _stopping(self) -> None:
        self._state.update(state=state.STOPPING, want=self._ending.want)
        self._unsaved = True

    def _kill(self) -> None:
        if self._kill_pause == 0.001:
            self._stopping()
        if self._leader_alive:
            self._signal_group(signal.SIGKILL)
        refused = reaper.signal_all(signal.SIGKILL)
        self._kill_pause = min(self._kill_pause * 2, 0.2)
        if refused:
            names = ", ".join(f"pid {p.pid} ({procs.argv0(p.pid)})" for p in refused[:5])
            said = f"still alive, because another user's: {names}; end it as root"
            self._unsaved = self._unsaved or said != self._state["message"]
            self._state["message"] = said

    def _signal_group(self, signum: int) -> None:
        """Nobody but us reaps the leader, so its group cannot be another's."""
        pid = self._state["pid"]
        try:
            os.killpg(pid, signum)
        except ProcessLookupError:
            os.kill(pid, signum)  # before its setsid
        except PermissionError:
            pass  # the pass over the descendants tells

    def _reap(self) -> bool:
        ended, left = reaper.reap()
        for pid, status in ended:
            if pid == self._state["pid"]:
                self._leader_alive = False
                if not self._guard_lost:
                    self._state.update(_exit_of(status))
        return left

    def _look_around(self, now: float) -> None:
        """The two who may want an end without saying so: a dead guard, and a keeper gone for too long."""
        if not self._guard_lost and os.getppid() != self._guard:
            self._guard_lost = True
            self._state["message"] = "its guard was killed, and the task was ended with it"
            self._ending.ask(state.WANT_KILL, 0.0, now)
        if self._ending.want == state.WANT_RUN and self._lifeline.is_cut(now):
            self._state["message"] = f"no keeper for {self._launch.lifeline:g} s"
            self._ending.ask(state.WANT_STOP, self._launch.grace, now)

    def _on_log(self) -> None:
        data = self._read_log()
        if data is not None and len(data) < CHUNK:
            self._poll.unregister(self._handles.log_read)
            if data:
                self._log_due = time.monotonic() + _REST
            else:
                del self._readers[self._handles.log_read]

    def _rest_over(self, now: float) -> None:
        if self._log_due is not None and now >= self._log_due:
            self._log_due = None
            self._poll.register(self._handles.log_read, select.POLLIN)

    def _read_log(self) -> Optional[bytes]:
        """A piece of output into the log; b"" at the end, None when there is nothing now."""
        try:
            data = os.read(self._handles.log_read, CHUNK)
        except BlockingIOError:
            return None
        if data:
            self._log.append(data, time.time_ns())
        return data

    def _on_control(self) -> None:
        try:
            lines = os.read(self._handles.control, 65536).split(b"\n")
        except BlockingIOError:
            return
        for line in lines:
            asked = _request(line)
            if asked:
                self._ending.ask(asked["want"], asked["grace"], time.monotonic())

    def _on_signal(self, wakeup: int) -> None:
        try:
            signals = os.read(wakeup, 4096)
        except BlockingIOError:
            return
        if signal.SIGTERM in signals and os.getppid() == self._guard:
            self._ending.ask(state.WANT_STOP, self._launch.grace, time.monotonic())  # the machine shuts down

    def _on_exec(self) -> None:
        """The leader became the program, or says why not."""
        said = os.read(self._exec, 65536)
        self._poll.unregister(self._exec)
        del self._readers[self._exec]
        os.close(self._exec)
        self._exec = -1
        if said:
            self._refusal = json.loads(said)
            return
        if self._state["state"] == state.STARTING:
            self._state["state"] = state.RUNNING
        self._save()
        self._answer({"state": self._state})

    def _conclude(self) -> None:
        """Nothing of the task is alive: the rest of its output, then the final word."""
        if self._exec >= 0:
            self._on_exec()
        while self._read_log():
            pass
        self._log.close()
        status, message = state.EXITED, self._state["message"]
        if self._refusal:
            status = state.UNSTARTED
            message = leader.in_one_line(self._refusal)
            self._state.update(exit_code=None, exit_signal=None)
        elif self._guard_lost:
            status = state.LOST
        elif self._left_behind:
            message = message or f"left {self._left_behind} processes behind, which were ended"
        self._state["want"] = self._ending.want
        final = state.ended(self._state, status, time.time_ns(), message)
        state.conclude(self._launch.folder, final)
        self._answer({"error": self._refusal} if self._refusal else {"state": final})

    def _save(self) -> None:
        try:
            state.write(self._launch.folder, self._state)
            self._unsaved = self._log.changed = False
        except OSError:
            self._unsaved = True  # again at the next turn

    def _answer(self, answer: Dict[str, Any]) -> None:
        """Tell `start` how it went, once; nobody may be listening any more."""
        if not self._answered:
            self._answered = True
            leader.answer(self._handles.answer, answer)

    def _listen(self, fd: int, reader: Callable[[], None]) -> None:
        self._readers[fd] = reader
        self._poll.register(fd, select.POLLIN)


def _wake_on(*signals: int) -> int:
    """Unblock these signals; each puts its number into the pipe that is returned."""
    read, write = os.pipe()
    for fd in (read, write):
        os.set_blocking(fd, False)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    for signum in signals:
        signal.signal(signum, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
    return read


def _exit_of(status: int) -> Dict[str, Optional[int]]:
    if os.WIFSIGNALED(status):
        return {"exit_code": None, "exit_signal": os.WTERMSIG(status)}
    return {"exit_code": os.WEXITSTATUS(status), "exit_signal": None}


def _request(line: bytes) -> Optional[Dict[str, Any]]:
    """{"want", "grace"} of one line; None for what is no request."""
    try:
        asked = json.loads(line) if line else None
        return {"want": str(asked["want"]), "grace": float(asked.get("grace", 0.0))} if asked else None
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
