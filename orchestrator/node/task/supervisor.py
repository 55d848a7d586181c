"""Guard and supervisor of one task.

The supervisor keeps its output, obeys the control FIFO, and ends with nothing of it alive. It has one thread
and one loop; signals only wake it. Its final state.json is the last thing that it does.

The guard waits for the supervisor; when that is gone before its time, it ends what is left and says so.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import termios
import time
from typing import Any, Iterator, NoReturn

from ..base import lenient, procs, trust
from ..base.fault import NodeError, no_process, reason
from ..base.paths import TaskFolder
from ..serve.loop import READ, Loop, wake_on
from . import environ, meeting, state
from .environ import Handles, Launch
from .output import Output

_REST = 0.01  # after a read that brought little: lines come in groups, not one by one
_LITTLE = 32 << 10
_LINE = 1 << 10  # a terminal has no more than 4 KB at once
_FIRST_PAUSE, _LAST_PAUSE = 0.001, 0.5  # between two passes of killing
NO_PROCESS = "no process could be made for it"
_SAVE_EVERY = 0.5  # seconds, of how far a gap grew


def guard(launch: Launch, handles: Handles) -> None:
    """The guard's life after its fork (all signals blocked, for good); ends the process."""
    try:
        procs.set_name(procs.GUARD)
        procs.adopt_orphans()
        try:
            child = os.fork()
        except OSError as error:
            refusal = refuse(launch.folder, no_process("start", NO_PROCESS, error))
            _tell_start(handles.answer, {"error": refusal.as_dict()})
            return
        if child == 0:
            _supervise(launch, handles)
        for fd in (handles.control, handles.log_write, handles.answer):
            os.close(fd)
        status = os.waitpid(child, 0)[1]
        if status != 0:
            _bury(launch, handles, status)
    except BaseException:
        _record_crash(launch)
    finally:
        os._exit(0)


def _bury(launch: Launch, handles: Handles, status: int) -> None:
    """Kill until there is no child left, which proves that there is no descendant left; then conclude."""
    pause = _FIRST_PAUSE
    while procs.reap()[1]:
        procs.signal_all(signal.SIGKILL)
        signal.sigtimedwait([signal.SIGCHLD], pause)
        pause = min(pause * 2, _LAST_PAUSE)
    found = state.read(launch.folder)
    Output(launch, handles.log_read, found["gaps"]).drain()
    why = "its supervisor failed: a bug in orchestrate, described in crash.txt beside the log"
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        why = f"its supervisor was killed by signal {number}, and the task was ended with it"
    if not state.is_final(found):
        state.conclude(launch.folder, state.ended(found, state.LOST, why))


def refuse(folder: TaskFolder, error: NodeError, want: str = state.WANT_RUN) -> NodeError:
    """Conclude a task that was claimed and not started; return the error."""
    message = ": ".join(part for part in (error.what, error.why) if part)
    found = {**state.read(folder), "want": want}
    state.conclude(folder, state.ended(found, state.UNSTARTED, message))
    return error


def _supervise(launch: Launch, handles: Handles) -> NoReturn:
    """The supervisor's life after its fork (all signals blocked)."""
    status = 70
    try:
        procs.set_name(procs.SUPERVISOR)
        procs.adopt_orphans()
        Supervisor(launch, handles).run()
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


def _tell_start(fd: int, answer: dict[str, Any]) -> None:
    """Tell the waiting `start` how it went, and hang up; nobody may be listening any more."""
    try:
        os.write(fd, json.dumps(answer).encode())
    except OSError:
        pass
    os.close(fd)


class Supervisor:
    """The loop and what it knows."""

    def __init__(self, launch: Launch, handles: Handles) -> None:
        self._launch = launch
        self._handles = handles
        self._facts = state.read(launch.folder)
        self._unsaved = False
        self._save_again = 0.0
        self._output = Output(launch, handles.log_read, self._facts["gaps"])
        self._began = time.monotonic()
        self._lifeline = Lifeline(launch)
        self._memory = Memory()
        self._meeting = meeting.Meeting(launch.env, launch.folder.run, launch.folder.report)
        self._ending = Ending()
        self._loop = Loop()
        self._leader_alive = True
        self._asked = state.WANT_RUN  # what a keeper wanted of the leader; not what we came to want ourselves
        self._reason = ""  # why it was ended, when nobody asked
        self._pause = _FIRST_PAUSE
        self._left_behind = 0
        self._next_look = 0.0

    def run(self) -> None:
        error = self._spawn()
        if error is not None:
            while procs.reap()[1]:
                time.sleep(_FIRST_PAUSE)
            self._output.drain()
            refuse(self._launch.folder, error)
            _tell_start(self._handles.answer, {"error": error.as_dict()})
            return
        self._update(state=state.RUNNING, peers=self._meeting.state)
        self._save()
        _tell_start(self._handles.answer, {"state": self._facts})
        self._meeting.resolve()
        wakeup = wake_on(signal.SIGCHLD, signal.SIGTERM)
        self._loop.watch(wakeup, READ, lambda: self._on_signal(wakeup))
        self._loop.watch(self._handles.control, READ, self._on_control)
        self._listen()
        while self._turn():
            pass
        self._output.drain()
        self._facts["want"] = self._asked
        state.conclude(self._launch.folder, self._final())

    def _spawn(self) -> NodeError | None:
        """Start the task's first process, the leader; return why it did not become the program."""
        heard, said = os.pipe()  # it ends empty when exec worked
        try:
            parent = os.getpid()
            pid = os.fork()
            if pid == 0:
                _lead(self._launch, self._handles.log_write, parent, said)
        except OSError as error:
            return no_process("start", NO_PROCESS, error)
        finally:
            os.close(said)
            os.close(self._handles.log_write)  # the task's side of the pipe is the task's alone
        process = procs.look(pid)
        self._facts.update(pid=pid, start_ticks=process.start_ticks if process else None)
        with open(heard, "rb") as stream:
            refusal = stream.read()
        return NodeError(**json.loads(refusal)) if refusal else None

    def _turn(self) -> bool:
        """Wait, take what came, act on it; False when nothing of the task is alive."""
        self._loop.step(self._patience())
        any_alive = self._reap()
        now = time.monotonic()
        self._memory.look(now)
        if self._meeting.look(now):
            self._update(peers=self._meeting.state)
        if now >= self._next_look and self._ending.want == state.WANT_RUN:
            self._next_look = now + self._lifeline.tick
            self._look_around(now)
        action = self._ending.step(now, self._leader_alive, any_alive)
        self._act(action)
        self._save()
        return action != OVER

    def _patience(self) -> float:
        """How long there is nothing to do unless something happens."""
        if self._ending.stage == KILLING:
            return self._pause
        due = (self._ending.deadline, self._ending.patience, self._meeting.due)
        return max(0.0, min([self._lifeline.tick, *(when - time.monotonic() for when in due if when)]))

    def _reap(self) -> bool:
        ended, any_alive = procs.reap()
        for pid, status in ended:
            if self._leader_alive and pid == self._facts["pid"]:
                self._leader_alive = False
                if self._ending.stage == RUNNING:
                    self._asked = state.WANT_RUN  # it ended before it was told to
                signalled = os.WIFSIGNALED(status)
                self._facts["exit_code"] = None if signalled else os.WEXITSTATUS(status)
                self._facts["exit_signal"] = os.WTERMSIG(status) if signalled else None
        return any_alive

    def _look_around(self, now: float) -> None:
        """Look for what sends no message: a keeper gone for too long, a folder that somebody removed."""
        cut = self._lifeline.cut(self._output.taken)
        if cut is not None:
            self._reason, grace = cut
            self._ending.ask(state.WANT_STOP, grace, now)
        elif state.is_gone(self._launch.folder):
            self._reason = state.REMOVED
            self._ending.ask(state.WANT_KILL, 0.0, now)

    def _act(self, action: str) -> None:
        if action == TERM_GROUP:
            self._signal_group(signal.SIGTERM)
            self._signal_group(signal.SIGCONT)  # a stopped task could not hear it
            self._stopping()
        elif action == TERM_ALL:
            self._left_behind = len(procs.signal_all(signal.SIGTERM))
            procs.signal_all(signal.SIGCONT)
            self._stopping()
        elif action == KILL:
            if self._pause == _FIRST_PAUSE:
                self._stopping()
            self._kill()

    def _kill(self) -> None:
        if self._leader_alive:
            self._signal_group(signal.SIGKILL)
        left = procs.signal_all(signal.SIGKILL)
        self._pause = min(self._pause * 2, _LAST_PAUSE)
        if self._pause == _LAST_PAUSE and left:
            names = ", ".join(f"pid {p.pid} ({procs.argv0(p.pid) or '?'})" for p in left[:5])
            message = f"KILL does not end {names}: another user's, or stuck in the kernel"
            if message != self._facts["message"]:
                self._update(message=message)

    def _signal_group(self, signum: int) -> None:
        """Signal the leader's group; nobody but us reaps the leader, so it cannot be another's."""
        try:
            os.killpg(self._facts["pid"], signum)
        except (ProcessLookupError, PermissionError):
            pass  # the pass over all descendants tells

    def _stopping(self) -> None:
        self._update(state=state.STOPPING, want=self._asked)

    def _listen(self) -> None:
        self._loop.watch(self._handles.log_read, READ, self._on_output)

    def _on_output(self) -> None:
        size = self._output.take()
        if size is not None and size < (_LINE if self._launch.terminal else _LITTLE):
            self._loop.unwatch(self._handles.log_read)
            if size > 0:  # else the task has closed it
                self._loop.after(_REST, self._listen)

    def _on_control(self) -> None:
        for want, grace, request in state.requests(os.read(self._handles.control, 65536)):
            if want == "type" and self._launch.terminal:
                environ.type_in(self._handles.log_read, request)
            self._ending.ask(want, grace, time.monotonic())
            if self._leader_alive:
                self._asked = self._ending.want

    def _on_signal(self, wakeup: int) -> None:
        if signal.SIGTERM in os.read(wakeup, 4096):  # bytes are numbers of signals: the machine shuts down
            self._reason = "its supervisor was told to end (TERM)"
            self._ending.ask(state.WANT_STOP, self._launch.grace, time.monotonic())

    def _final(self) -> state.State:
        facts, unasked = self._facts, self._ending.want == state.WANT_RUN
        facts["oom_kills"] = self._memory.kills()
        facts["seconds"] = time.monotonic() - self._began  # the clock may have been set meanwhile
        if self._left_behind and unasked:
            number = self._left_behind
            left = "1 process behind, which was" if number == 1 else f"{number} processes behind, which were"
            self._reason = f"left {left} ended"
        return state.ended(facts, state.EXITED, self._reason)

    def _update(self, **facts: Any) -> None:
        self._facts.update(facts)
        self._unsaved = True

    def _save(self) -> None:
        now = time.monotonic()
        if self._unsaved or (self._output.changed and now >= self._save_again):
            self._save_again = now + _SAVE_EVERY
            try:
                state.write(self._launch.folder, self._facts)
                self._unsaved = self._output.changed = False
            except OSError:
                pass  # the next turn tries again


# --- the task's first process ---


def _lead(launch: Launch, output: int, parent: int, said: int) -> NoReturn:
    """Become the program, or say why not."""
    try:
        os.setsid()
        procs.die_with_parent(signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(127)
        if launch.terminal:
            fcntl.ioctl(output, termios.TIOCSCTTY, 0)
            os.dup2(output, 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        _enter(launch.cwd)
        for signum in signal.valid_signals():  # nothing is blocked and nothing ignored: exec would keep both
            if signum not in (signal.SIGKILL, signal.SIGSTOP):
                signal.signal(signum, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        trust.restore_umask()
        try:
            os.execvpe(launch.argv[0], launch.argv, launch.env)  # noqa: S606 - no shell is the point
        except (OSError, ValueError) as error:
            raise _explained(error, launch) from None
    except BaseException as bug:
        told = bug if isinstance(bug, NodeError) else NodeError("start", "could not be prepared", repr(bug))
        os.write(said, json.dumps(told.as_dict()).encode())
    finally:
        os._exit(127)


def _enter(folder: str) -> None:
    try:
        os.chdir(folder)
    except OSError as error:
        hint = "check `workdir` of this host"
        what = f"its working folder {folder} cannot be entered"
        raise NodeError("start", what, reason(error), hint) from None


def _explained(error: Exception, launch: Launch) -> NodeError:
    """Say why a program could not be executed."""
    program = os.fsdecode(launch.argv[0])[:500]
    why = reason(error) if isinstance(error, OSError) else str(error)
    hint = "look whether it is in the synced tree, or ignored; or correct `python` in hosts.toml"
    if "/" not in program:
        hint = "give its path, or install it: what has no slash is looked for on PATH"
    elif os.path.exists(program):
        hint = f"`chmod +x {program}`; a script begins with a line like #!/bin/sh, of a program that is there"
    return NodeError("start", f"{program} could not be started", why, hint)


# --- when to signal whom so that a task ends; pure: the clock and the facts are given ---
#
# run --stop--> term --grace--> kill          TERM goes to the leader's group
# run --leader ended--> settle --> linger     trackers of multiprocessing end with its pipe
# term --leader ended--> linger --> kill      TERM goes to every process that it left behind

SETTLE = 1.0  # seconds in which processes may end by themselves after their leader
LINGER = 2.0  # seconds that they have after TERM

NOTHING = "nothing"
TERM_GROUP = "term group"
TERM_ALL = "term all"
KILL = "kill"
OVER = "over"

RUNNING, TERMINATING, KILLING = "running", "terminating", "killing"
SETTLING, LINGERING = "settling", "lingering"


class Ending:
    """Ask for an end, then do what `step` says until it says OVER."""

    def __init__(self) -> None:
        self.want = state.WANT_RUN
        self.deadline: float | None = None  # then comes KILL
        self.patience: float | None = None  # then comes TERM for what the leader left behind
        self.stage = RUNNING

    def ask(self, want: str, grace: float, now: float) -> None:
        """A later request can only make the end come sooner."""
        if want == state.WANT_KILL:
            self.want = want
        elif want == state.WANT_STOP and self.want != state.WANT_KILL:
            self.want = want
            self._due(now + max(0.0, grace))

    def step(self, now: float, leader_alive: bool, any_alive: bool) -> str:
        """Return what to do now; KILL comes again until nothing is alive."""
        if not any_alive:
            return OVER
        late = self.deadline is not None and now >= self.deadline
        if self.stage == KILLING or self.want == state.WANT_KILL or (self.stage != RUNNING and late):
            self.stage = KILLING
            return KILL
        if not leader_alive and self.stage != LINGERING:
            if self.want == state.WANT_RUN:
                self.stage, self.patience = SETTLING, self.patience or now + SETTLE
                if now < self.patience:
                    return NOTHING
            self.stage, self.patience = LINGERING, None
            self._due(now + LINGER)
            return TERM_ALL
        if leader_alive and self.want == state.WANT_STOP and self.stage == RUNNING:
            self.stage = TERMINATING
            return TERM_GROUP
        return NOTHING

    def _due(self, when: float) -> None:
        self.deadline = when if self.deadline is None else min(self.deadline, when)


# --- kills of the kernel for want of memory: its counter, before a task and after it ---
# cgroup v2   <group>/memory.events: oom_kill N, of the group that the task is in
# cgroup v1   <group>/memory.oom_control, the same; in a container its own group is the top
# machine     /proc/vmstat: oom_kill N, whoever was killed, where no group counts

_COUNT_EVERY = 15.0  # seconds between two looks; a kill is told for one to two of these


class Memory:
    """The counter for this process, from now on. `root` is `/` but in tests."""

    def __init__(self, root: str = "/") -> None:
        self._file = next(filter(os.path.exists, _counters(root)), os.path.join(root, "proc/vmstat"))
        self._before = self._last = self._count()  # two looks ago, one look ago
        self._due = 0.0

    def look(self, now: float) -> None:
        """Now and then, so that only those kills are told that came shortly before the end."""
        if now >= self._due:
            self._due = now + _COUNT_EVERY
            self._before, self._last = self._last, self._count()

    def kills(self) -> int:
        """How many were killed shortly before now."""
        return max(0, self._count() - self._before)

    def _count(self) -> int:
        for line in procs.text(self._file).splitlines():
            name, _, count = line.partition(" ")
            if name == "oom_kill" and count.isdigit():
                return int(count)
        return 0


def _counters(root: str) -> Iterator[str]:
    for line in procs.text(os.path.join(root, "proc/self/cgroup")).splitlines():
        _, kinds, group = line.split(":", 2)
        if not kinds:
            yield os.path.join(root, "sys/fs/cgroup", group.lstrip("/"), "memory.events")
        elif "memory" in kinds.split(","):
            for place in (group.lstrip("/"), ""):
                yield os.path.join(root, "sys/fs/cgroup/memory", place, "memory.oom_control")


class Lifeline:
    """Looks at the mtime of the keeper's file, and at what the task prints and reports.

    By a clock that does not jump, and that also counts the time in which the machine was suspended.
    """

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self._keeper = launch.paths.keeper(launch.folder.run)  # its mtime is a keeper's last word
        self._word = lenient.changed(self._keeper, 0.0)
        self._own: tuple[int, int] = (0, 0)  # bytes that the task has printed, and reported
        self._heard = self._spoke = time.clock_gettime(time.CLOCK_BOOTTIME)
        limits = [limit for limit in (launch.lifeline, launch.fence) if limit]
        self.tick = min(1.0, min(limits, default=4.0) / 4)  # seconds between two looks

    def cut(self, printed: int) -> tuple[str, float] | None:
        """Why a task may not go on, and its grace; None while it may. `printed` is its bytes so far."""
        lifeline, fence = self._launch.lifeline, self._launch.fence
        clock = time.clock_gettime(time.CLOCK_BOOTTIME)
        word, own = lenient.changed(self._keeper, 0.0), (printed, lenient.size(self._launch.folder.report))
        if word != self._word:
            self._word, self._heard = word, clock
        if own != self._own:
            self._own, self._spoke = own, clock
        if fence and clock - max(self._heard, self._spoke) >= fence:
            why = f"no keeper, and nothing printed, for {fence:g} s: its host may have been replaced"
            return why, 0.0  # its peers are gone: there is nothing that it could still save
        if lifeline and clock - self._heard >= lifeline:
            siblings = self._launch.paths.tasks(self._launch.folder.run, self._launch.folder.attempt)
            if self._launch.endless or any(map(_has_failed, siblings)):
                return f"no keeper for {lifeline:g} s", self._launch.grace
        return None


def _has_failed(folder: TaskFolder) -> bool:
    try:
        found = state.read(folder)
    except OSError:
        return False
    return state.is_final(found) and found["exit_code"] != 0
