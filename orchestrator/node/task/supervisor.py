"""Guard and supervisor of one task.

The supervisor stores the task's output, obeys the control FIFO, and ends when none of the task's processes is
alive. It has one thread and one loop; signals only wake it. Its last action is to write the final state.json.

The guard waits for the supervisor; if that ends too early, it ends the remaining processes and records it.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import resource
import signal
import termios
import time
from contextlib import suppress
from typing import Any, Callable, Iterator, NoReturn

from ..base import lenient, procs, trust
from ..base.descriptors import close_all
from ..base.fault import NodeError, no_process, reason
from ..base.paths import TaskFolder
from ..serve.loop import READ, Loop, wake_on
from . import environ, meeting, state
from .environ import Handles, Launch
from .output import Output
from .waiting import Waiting

_REST = 0.01  # seconds after a short read, so that lines are read in groups
_LITTLE = 32 << 10  # bytes of a short read
_LINE = 1 << 10  # the same from a terminal, which never has more than 4 KB
_FIRST_PAUSE, _LAST_PAUSE = 0.001, 0.5  # seconds between two rounds of SIGKILL
# A PyTorch program that saves at TERM fails before it can save if its DataLoader's workers end first.
_INNER = "pt_data_worker"
NO_PROCESS = "no process could be created for it"
_TOUCH_EVERY = 86_400.0  # seconds; systemd removes files older than 30 days from /var/tmp, even used ones
_SAVE_EVERY = 0.5  # seconds between two records of how far a gap grew
_BUG = 255  # the exit status of a supervisor that failed by itself; others are the system's error numbers


def guard(launch: Launch, handles: Handles) -> None:
    """Run the guard after its fork (all signals stay blocked); end the process."""
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
            supervise(lambda: Supervisor(launch, handles).run(), lambda: launch.folder.crash)
        close_all(handles.control, handles.log_write, handles.answer)
        status = os.waitpid(child, 0)[1]
        if status != 0:
            bury(launch, handles, status)
    except BaseException:
        record_crash(launch.folder.crash)
    finally:
        os._exit(0)


def outlive() -> None:
    """Kill until no child, and so no descendant, is left; SIGCHLD must be blocked."""
    pause = _FIRST_PAUSE
    while procs.reap()[1]:
        procs.signal_all(signal.SIGKILL)
        signal.sigtimedwait([signal.SIGCHLD], pause)
        pause = min(pause * 2, _LAST_PAUSE)


def bury(launch: Launch, handles: Handles, status: int) -> None:
    """End the rest of a task whose supervisor failed, and write its final state."""
    outlive()
    record = state.read(launch.folder)
    Output(launch, handles.log_read, record["gaps"]).drain()
    code = os.WEXITSTATUS(status)
    bug = "a bug in orchestrate, described in crash.txt beside the log"
    why = f"its supervisor failed: {bug if code == _BUG else os.strerror(code)}"
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        why = f"its supervisor was killed by signal {number}, and the task was ended with it"
    if not state.is_final(record):
        state.conclude(launch.folder, state.ended(record, state.LOST, why))


def refuse(folder: TaskFolder, error: NodeError, want: str = state.WANT_RUN) -> NodeError:
    """Write the final state of a task that was claimed but not started; return the error."""
    message = ": ".join(part for part in (error.what, error.why) if part)
    record = {**state.read(folder), "want": want}
    state.conclude(folder, state.ended(record, state.UNSTARTED, message))
    return error


def supervise(work: Callable[[], object], crash: Callable[[], str]) -> NoReturn:
    """Run the supervisor after its fork (all signals blocked); `crash` returns the file for a traceback."""
    status = _BUG
    try:
        procs.set_name(procs.SUPERVISOR)
        procs.adopt_orphans()
        work()
        status = 0
    except BaseException as error:
        status = getattr(error, "errno", None) or _BUG  # an OSError is usually a failure of this machine
        record_crash(crash())
    finally:
        os._exit(status)


def record_crash(path: str) -> None:
    """Store the traceback of a bug of ours; the guard ends the task."""
    import traceback

    with suppress(OSError), open(path, "a", encoding="utf-8") as file:
        traceback.print_exc(file=file)


def _tell_start(fd: int, answer: dict[str, Any]) -> None:
    """Send the result to the waiting `start`, and close; it may be gone."""
    with suppress(OSError):
        os.write(fd, json.dumps(answer).encode())
    os.close(fd)


class Supervisor:
    def __init__(
        self, launch: Launch, handles: Handles, waiting: Waiting | None = None, *, lends: bool = False
    ) -> None:
        self._launch = launch
        self._handles = handles
        self._waiting = waiting
        # The pid of the standby, if the task is a fork of it: the standby stays alive.
        self._spared = waiting.pid if waiting is not None and lends else 0
        self._cold = ""  # why a standby could not be used
        self._begun = False  # `start` has its reply
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
        self._cpu_limit = resource.RLIM_INFINITY
        self._asked = state.WANT_RUN  # a keeper's order for the leader, as opposed to our own decision
        self._reason = ""  # why it was ended without a request
        self._pause = _FIRST_PAUSE
        self._left_behind = 0
        self._notified: set[int] = set()  # pids that got TERM: some programs end at once at a second one
        self._next_look = 0.0
        self._next_touch = self._began + _TOUCH_EVERY

    def run(self) -> bool:
        """Supervise the task to its end; return True if the standby that it was forked from still waits."""
        error = self._spawn()
        if error is not None:
            while procs.reap()[1]:
                time.sleep(_FIRST_PAUSE)
            self._output.drain()
            refuse(self._launch.folder, error)
            if not self._begun:
                _tell_start(self._handles.answer, {"error": error.as_dict()})
            return False
        self._begin()
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
        if self._spared:  # this process goes on
            self._output.close()
            close_all(wakeup, signal.set_wakeup_fd(-1))
        return bool(self._spared)

    def _begin(self) -> None:
        """Reply to `start`, once: a program that is still being imported counts as started."""
        self._update(state=state.RUNNING, peers=self._meeting.state)
        self._save()
        if not self._begun:
            self._begun = True
            warm = self._waiting is not None and not self._cold
            _tell_start(self._handles.answer, {"state": self._facts, "warm": warm, "cold": self._cold})

    def _spawn(self) -> NodeError | None:
        """Start the task's first process, the leader; return the error if it does not become the program."""
        if self._waiting is not None:
            self._lead_by(self._waiting.pid)
            lends, control = bool(self._spared), self._handles.control
            self._meeting.remember(meeting.tables(os.getpid()))
            outcome = self._waiting.become(self._launch, control, self._begin, lends=lends)
            if isinstance(outcome, int):
                self._lead_by(outcome)
                if not lends:
                    self._output.put(self._waiting.noise)
                    os.close(self._handles.log_write)
                    self._waiting.close()
                return None
            self._cold, self._spared = outcome, 0
            outlive()
            self._waiting.drop()
            self._waiting.close()
        reading, writing = os.pipe()  # an empty end means that exec worked
        try:
            parent = os.getpid()
            pid = os.fork()
            if pid == 0:
                lead(self._launch, self._handles.log_write, parent, writing)
        except OSError as error:
            return no_process("start", NO_PROCESS, error)
        finally:
            os.close(writing)
            os.close(self._handles.log_write)  # only the task keeps its side of the pipe
        self._lead_by(pid)
        with open(reading, "rb") as stream:
            refusal = stream.read()
        return NodeError(**json.loads(refusal)) if refusal else None

    def _lead_by(self, pid: int) -> None:
        process = procs.look(pid)
        self._facts.update(pid=pid, start_ticks=process.start_ticks if process else None)

    def _turn(self) -> bool:
        """Wait, handle events, and act on them; return False when no process of the task is alive."""
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
        """Return the seconds until the next scheduled action."""
        if self._ending.stage == KILLING:
            return self._pause
        due = (self._ending.deadline, self._ending.patience, self._meeting.due)
        return max(0.0, min([self._lifeline.tick, *(when - time.monotonic() for when in due if when)]))

    def _reap(self) -> bool:
        if self._leader_alive:  # `setup` may have set another limit than ours
            with suppress(OSError):
                self._cpu_limit = resource.prlimit(self._facts["pid"], resource.RLIMIT_CPU)[1]
        ended, any_alive = procs.reap()
        for pid, status in ended:
            if self._leader_alive and pid == self._facts["pid"]:
                self._leader_alive = False
                self._meeting.hurry()
                if self._ending.stage == RUNNING:
                    self._asked = state.WANT_RUN  # it ended before the stop
                signalled = os.WIFSIGNALED(status)
                self._facts["exit_code"] = None if signalled else os.WEXITSTATUS(status)
                self._facts["exit_signal"] = os.WTERMSIG(status) if signalled else None
        if self._spared and any_alive and not self._leader_alive:
            return bool(procs.alive(self._spared))
        return any_alive

    def _look_around(self, now: float) -> None:
        """Check for conditions that cause no event: no keeper for too long, a removed folder."""
        cut = self._lifeline.cut(self._output.taken)
        if cut is not None:
            self._reason, grace = cut
            self._ending.ask(state.WANT_STOP, grace, now)
        elif state.is_gone(self._launch.folder):
            self._reason = state.REMOVED
            self._ending.ask(state.WANT_KILL, 0.0, now)
        if now >= self._next_touch:
            self._next_touch = now + _TOUCH_EVERY
            paths = self._launch.paths
            lenient.touch(paths.run_json(self._launch.folder.run))
            for folder in (self._launch.folder.path, paths.leases):
                for name in lenient.listed(folder):
                    lenient.touch(f"{folder}/{name}")

    def _act(self, action: str) -> None:
        if action == TERM_GROUP:
            self._terminate(lambda p: p.pgrp == self._facts["pid"] and procs.name(p.pid) != _INNER)
            self._signal_group(signal.SIGCONT)  # a stopped task could not receive it
            self._stopping()
        elif action == TERM_ALL:
            self._left_behind = self._terminate(lambda process: process.pid not in self._notified)
            procs.signal_all(signal.SIGCONT, self._spared)
            self._stopping()
        elif action == KILL:
            if self._pause == _FIRST_PAUSE:
                self._stopping()
            self._kill()

    def _terminate(self, is_meant: Callable[[procs.Process], bool]) -> int:
        """Send TERM to some of the task's processes; return their number."""
        meant = list(filter(is_meant, procs.alive(self._spared)))
        self._notified.update(process.pid for process in meant)
        for process in meant:
            procs.send(process, signal.SIGTERM)
        return len(meant)

    def _kill(self) -> None:
        if self._leader_alive:
            self._signal_group(signal.SIGKILL)
        remaining = procs.signal_all(signal.SIGKILL, self._spared)
        self._pause = min(self._pause * 2, _LAST_PAUSE)
        if self._pause == _LAST_PAUSE and remaining:
            names = ", ".join(f"pid {p.pid} ({procs.argv0(p.pid) or '?'})" for p in remaining[:5])
            message = f"KILL does not end {names}: another user's, or stuck in the kernel"
            if message != self._facts["message"]:
                self._update(message=message)

    def _signal_group(self, signum: int) -> None:
        """Signal the leader's group; nobody but us reaps the leader, so it cannot be another's."""
        with suppress(ProcessLookupError, PermissionError):  # the pass over all descendants reports it
            os.killpg(self._facts["pid"], signum)

    def _stopping(self) -> None:
        self._update(state=state.STOPPING, want=self._asked)

    def _listen(self) -> None:
        self._loop.watch(self._handles.log_read, READ, self._on_output)

    def _on_output(self) -> None:
        size = self._output.take()
        if size is not None and size < (_LINE if self._launch.terminal else _LITTLE):
            self._loop.unwatch(self._handles.log_read)
            if size > 0:  # otherwise the task has closed it
                self._loop.after(_REST, self._listen)

    def _on_control(self) -> None:
        for want, grace, request in state.requests(os.read(self._handles.control, 65536)):
            if want == "type" and self._launch.terminal:
                environ.type_in(self._handles.log_read, request)
            self._ending.ask(want, grace, time.monotonic())
            if self._leader_alive:
                self._asked = self._ending.want

    def _on_signal(self, wakeup: int) -> None:
        if signal.SIGTERM in os.read(wakeup, 4096):  # bytes are signal numbers: the machine shuts down
            self._reason = "its supervisor received TERM"
            self._ending.ask(state.WANT_STOP, self._launch.grace, time.monotonic())

    def _final(self) -> state.State:
        facts, unasked = self._facts, self._ending.want == state.WANT_RUN
        facts["oom_kills"] = self._memory.kills()
        facts["seconds"] = time.monotonic() - self._began  # the clock may have been set meanwhile
        if self._left_behind and unasked:
            number = self._left_behind
            leftover = "process behind, which was" if number == 1 else "processes behind, which were"
            self._reason = f"left {number} {leftover} ended"
        if facts["exit_signal"] == signal.SIGKILL and unasked:
            used, limit = resource.getrusage(resource.RUSAGE_CHILDREN), self._cpu_limit
            if 0 <= limit <= used.ru_utime + used.ru_stime + 1.0:  # otherwise SIGKILL has no reason
                self._reason = f"it used up its {limit} s of processor time (`ulimit -t`)"
        return state.ended(facts, state.EXITED, self._reason)

    def _update(self, **facts: Any) -> None:
        self._facts.update(facts)
        self._unsaved = True

    def _save(self) -> None:
        now = time.monotonic()
        if self._unsaved or (self._output.changed and now >= self._save_again):
            self._save_again = now + _SAVE_EVERY
            with suppress(OSError):  # the next turn tries again
                state.write(self._launch.folder, self._facts)
                self._unsaved = self._output.changed = False


# --- the task's first process ---


def lead(launch: Launch, output: int, parent: int, errors: int) -> NoReturn:
    """Become the program, or report the error."""
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
        for signum in signal.valid_signals():  # nothing is blocked or ignored: exec would keep both
            if signum not in (signal.SIGKILL, signal.SIGSTOP):
                signal.signal(signum, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        trust.restore_umask()
        try:
            os.execvpe(launch.argv[0], launch.argv, launch.env)  # noqa: S606 - no shell is the point
        except (OSError, ValueError) as error:
            raise _explained(error, launch) from None
    except BaseException as bug:
        reason = bug if isinstance(bug, NodeError) else NodeError("start", "could not be prepared", repr(bug))
        os.write(errors, json.dumps(reason.as_dict()).encode())
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
    program = os.fsdecode(launch.argv[0])[:500]
    why = reason(error) if isinstance(error, OSError) else str(error)
    hint = "check that it is in the synced tree and not ignored; or correct `python` in hosts.toml"
    if "/" not in program:
        places = launch.env.get(b"PATH", os.defpath.encode()).split(b":")
        if not any(os.path.lexists(os.path.join(place, launch.argv[0])) for place in places):
            why = os.strerror(errno.ENOENT)  # a folder on PATH that nobody may enter has another reason
        hint = "give its path, or install it: a name without a slash is searched on PATH"
    elif os.path.exists(program):
        import shlex

        quoted = shlex.quote(program)
        hint = f"`chmod +x {quoted}`; a script begins with a line such as #!/bin/sh, a program that exists"
        if os.statvfs(program).f_flag & os.ST_NOEXEC:
            hint = f"launch `bash {quoted}`, or set `workdir` to another disk: this one is mounted noexec"
    return NodeError("start", f"{program} could not be started", why, hint)


# --- which processes to signal, and when, to end a task; pure ---
#
# run --stop--> term --grace--> kill          TERM goes to the leader's group, without _INNER
# run --leader ended--> settle --> linger     trackers of multiprocessing end with its pipe
# settle, or stop --> linger --> kill         TERM goes to every process that the leader left behind
# term --leader ended--> rest --grace--> kill TERM goes to those that have not got it: a shell ends at once,
#                                             while the program that it has started still saves

SETTLE = 1.0  # seconds for processes to end by themselves after their leader
LINGER = 2.0  # seconds for them after TERM

NOTHING = "nothing"
TERM_GROUP = "term group"
TERM_ALL = "term all"
KILL = "kill"
OVER = "over"

RUNNING, TERMINATING, KILLING = "running", "terminating", "killing"
SETTLING, LINGERING = "settling", "lingering"


class Ending:
    """Decides how a task ends: `ask` for an end, then do what `step` returns until it returns OVER."""

    def __init__(self) -> None:
        self.want = state.WANT_RUN
        self.deadline: float | None = None  # then comes KILL
        self.patience: float | None = None  # then comes TERM for the remaining processes of the leader
        self.stage = RUNNING

    def ask(self, want: str, grace: float, now: float) -> None:
        """Request an end; a later request can only make it come sooner."""
        if want == state.WANT_KILL:
            self.want = want
        elif want == state.WANT_STOP and self.want != state.WANT_KILL:
            self.want = want
            self._due(now + max(0.0, grace))

    def step(self, now: float, leader_alive: bool, any_alive: bool) -> str:
        """Return what to do now; KILL is repeated until nothing is alive."""
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
            if self.stage != TERMINATING:
                self._due(now + LINGER)
            self.stage, self.patience = LINGERING, None
            return TERM_ALL
        if leader_alive and self.want == state.WANT_STOP and self.stage == RUNNING:
            self.stage = TERMINATING
            return TERM_GROUP
        return NOTHING

    def _due(self, when: float) -> None:
        self.deadline = when if self.deadline is None else min(self.deadline, when)


# --- kills by the kernel because of memory: its counter, before a task and after it ---
# cgroup v2   <group>/memory.events: oom_kill N, of the group that the task is in
# cgroup v1   <group>/memory.oom_control, the same; in a container its own group is the top
# machine     /proc/vmstat: oom_kill N, whichever process was killed, if no group counts

_COUNT_EVERY = 15.0  # seconds between two checks; a kill is reported for one to two of these


class Memory:
    """Counts the kernel's kills for lack of memory, from now on. `root` is `/` except in tests."""

    def __init__(self, root: str = "/") -> None:
        self._file = next(filter(os.path.exists, _counters(root)), os.path.join(root, "proc/vmstat"))
        self._before = self._last = self._count()  # two checks ago, one check ago
        self._due = 0.0

    def look(self, now: float) -> None:
        """Check at intervals, so that only kills shortly before the end are reported."""
        if now >= self._due:
            self._due = now + _COUNT_EVERY
            self._before, self._last = self._last, self._count()

    def kills(self) -> int:
        """Return the number of recent kills."""
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
    """Detects that a task has no keeper any more, and, for its fence, no output or report.

    It uses a monotonic clock that also counts the time in which the machine was suspended.
    """

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self._keeper = launch.paths.keeper(launch.folder.run)  # its mtime is the keeper's last message
        self._keeper_mtime = lenient.changed(self._keeper, 0.0)
        self._own: tuple[int, int] = (0, 0)  # bytes that the task has printed, and reported
        self._last_contact = self._last_output = time.clock_gettime(time.CLOCK_BOOTTIME)
        limits = [limit for limit in (launch.lifeline, launch.fence) if limit]
        self.tick = min(1.0, min(limits, default=4.0) / 4)  # seconds between two checks

    def cut(self, printed: int) -> tuple[str, float] | None:
        """Return the reason to end the task, and its grace period; None while it may run."""
        lifeline, fence = self._launch.lifeline, self._launch.fence
        clock = time.clock_gettime(time.CLOCK_BOOTTIME)
        mtime, own = lenient.changed(self._keeper, 0.0), (printed, lenient.size(self._launch.folder.report))
        if mtime != self._keeper_mtime:
            self._keeper_mtime, self._last_contact = mtime, clock
        if own != self._own:
            self._own, self._last_output = own, clock
        if fence and clock - max(self._last_contact, self._last_output) >= fence:
            why = f"no keeper, and nothing printed, for {fence:g} s: its host may have been replaced"
            return why, 0.0  # its peers are gone, so it cannot save anything
        if lifeline and clock - self._last_contact >= lifeline:
            siblings = self._launch.paths.tasks(self._launch.folder.run, self._launch.folder.attempt)
            if self._launch.endless or any(map(_has_failed, siblings)):
                return f"no keeper for {lifeline:g} s", self._launch.grace
        return None


def _has_failed(folder: TaskFolder) -> bool:
    try:
        record = state.read(folder)
    except OSError:
        return False
    return state.is_final(record) and record["exit_code"] != 0
