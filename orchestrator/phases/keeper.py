"""The keeper: the one process that owns a run, from the first connection to the verdict.

Viewers ask it for something by a FIFO in the run's folder, which a thread of its own reads.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
from collections.abc import Callable, Sequence
from functools import partial

import msgspec
from msgspec.structs import replace

from orchestrator import wire
from orchestrator.checks import gpus
from orchestrator.diagnosis.lastwords import LOOKED_AT
from orchestrator.diagnosis.statement import Statement
from orchestrator.diagnosis.verdict import Verdict, judge, of_hang
from orchestrator.errors import ExitStatus, OrchestrateError, of_this_machine
from orchestrator.events import (
    AttemptFailed,
    FailureKind,
    Noted,
    Outcome,
    Phase,
    RunEnded,
    RunLeft,
    Stamped,
    StopBy,
    TaskExited,
    encode,
)
from orchestrator.fleet import Cancelled
from orchestrator.model import Order, RunPlan
from orchestrator.phases import allocation, launch, stage, stop
from orchestrator.phases.adopt import Adopted, adopt, announcement
from orchestrator.phases.attempt import Attempt, Finished
from orchestrator.phases.context import PhaseFailed, Run, log
from orchestrator.phases.follow import collect
from orchestrator.phases.loop import ViewerRequest, Watched
from orchestrator.phases.restart.again import (
    CannotSeatError,
    KeptElsewhereError,
    connect_or_replace,
    prepare,
    rest,
    start_again,
)
from orchestrator.planning.takeover import FIRST
from orchestrator.ranges import fold, grouped
from orchestrator.run import peers, restarts
from orchestrator.run.records import last_error
from orchestrator.run.restarts import FailedAttempt
from orchestrator.store import RunFolder
from orchestrator.store.reader import last_bytes, last_lines
from orchestrator.text import signal_name

_LOOK = 2.0  # seconds between two looks for an order from another machine
_GLANCE = 0.1  # seconds between two looks for a host that is typed to
_AT_ONCE = 3000  # characters of it; the task's FIFO takes all or nothing up to 4096


class Control:
    """Takes requests for as long as the keeper lives; while `cancels`, one ends whatever is waited for.

    A thread reads them; the keeper's own thread does what they ask for.
    """

    def __init__(self, run: Run, fifo: int) -> None:
        self.cancels = True
        self._run = run
        self._fifo = fifo
        self._typed = ""  # for the task with a terminal, while its host is lost
        self._again = False  # it is tried again in a moment

    def listen(self) -> None:
        self._run.clock.start("control", self._listen)

    def _listen(self) -> None:
        buffer = b""
        while True:
            lines: list[bytes] = []
            if self._run.clock.readable(self._fifo, _LOOK):
                *lines, buffer = (buffer + os.read(self._fifo, 4096)).split(b"\n")
            elif data := self._run.folder.take_order():
                lines = [data]
            for line in lines:
                self._run.loop.post(partial(self._hear, line))

    def _hear(self, line: bytes) -> None:
        try:
            asked = json.loads(line)
            order = Order(asked.get("want"))
        except (ValueError, AttributeError):
            return
        match order:
            case Order.TYPE:
                self._type_in(str(asked.get("typed", "")), asked.get("terminal"))
            case Order.VITALS:
                self._run.watched = self._run.clock.now()
                self._run.loop.put(Watched())
            case Order.STOP | Order.KILL:
                # Cancelled first: whoever sees that it was asked for may wait for hosts again.
                if self.cancels and not self._run.stop.asked:
                    self._run.fleet.cancel()
                self._run.stop.ask(kill=order is Order.KILL)
                self._run.loop.put(ViewerRequest())

    def _type_in(self, typed: str, size: Sequence[int] | None) -> None:
        """Hand on what was typed, now or when the host is back."""
        plan = self._run.plan
        if plan.terminal is None:
            return
        task, self._typed = plan.terminal.task, self._typed + typed
        session = self._run.fleet.sessions.get(plan.task(task).host)
        if session is not None:
            words, self._typed = self._typed[:_AT_ONCE], self._typed[_AT_ONCE:]
            session.submit(
                wire.Type(run=plan.run, attempt=str(FIRST), task=str(task), typed=words, terminal=size)
            )
        if self._typed and not self._again:
            self._again = True
            self._run.loop.after(_GLANCE, self._type_on)

    def _type_on(self) -> None:
        self._again = False
        if self._typed:
            self._type_in("", None)


def keep(run: Run, control: int, *, new: bool) -> ExitStatus:
    """Take a run from its plan to its end, or go on with one whose keeper is gone.

    The exit status is also in its RunEnded.
    """
    keeper = _Keeper(run, control)
    return keeper.guarded(keeper.whole if new else keeper.adopted)


_ENDS = 4  # that are tried: of the work, of its failure, of a stop meanwhile, of what fails then


class _Keeper:
    def __init__(self, run: Run, control: int) -> None:
        self._run = run
        run.fleet.keep_alive = min(run.fleet.keep_alive, run.plan.lifeline / 4 or run.fleet.keep_alive)
        # Wall clocks jump; what was before us can be told by them alone.
        self._began = run.clock.now() - max(0.0, run.clock.wall() - run.plan.created)
        self._unproven: tuple[str, ...] = ()
        self._number = FIRST  # of the attempt
        self._failures: list[FailedAttempt] = []
        self._verdict: Verdict | None = None  # of the last failed attempt
        self._over: RunEnded | None = None  # it had ended before: only its remains are removed
        # Until the tasks are followed, a request to stop must end whatever is being waited for.
        self._control = Control(run, control)

    def guarded(self, work: Callable[[], RunEnded | RunLeft]) -> ExitStatus:
        """Whatever happens, the run ends with one RunEnded, and a bug leaves its traceback."""
        allocation.heed_signals(self._run)
        ended = self._conclude(work)
        if isinstance(ended, RunEnded) and self._over is None:
            notify(self._run, ended)  # before the end is told: whoever waits for that finds it done
        self._run.emit(ended)
        self._run.fleet.close()
        return ExitStatus(ended.status) if isinstance(ended, RunEnded) else ExitStatus.CLUSTER

    def _conclude(self, work: Callable[[], RunEnded | RunLeft]) -> RunEnded | RunLeft:
        """Run `work` to its end. Its exceptions come to an end of their own, and so do those of that end."""
        for _ in range(_ENDS):
            try:
                return work()
            except Cancelled:
                work = self._stopped
            except PhaseFailed as failure:
                work = partial(self._failed, failure)
            except OrchestrateError as error:
                work = partial(self._failed, of_phase(error))
            except Exception as error:
                here = of_this_machine(error)
                log.exception("this machine could not do its part" if here else "a bug")
                if here is None:
                    break
                work = partial(self._failed, of_phase(here))
        return self._broken()

    def whole(self) -> RunEnded | RunLeft:
        run = self._run
        run.emit(announcement(run.folder, run.plan))
        self._control.listen()
        stage.begin(run)
        connect_or_replace(run)
        prepare(run)
        return self._attempts(lambda: launch.launch(run, str(FIRST)))

    def adopted(self) -> RunEnded | RunLeft:
        run = self._run
        self._control.cancels = False
        run.started = True
        self._control.listen()
        found = adopt(run)
        if isinstance(found, RunLeft):
            return self._taken() or found
        self._number = found.attempt
        self._failures = [FailedAttempt("", None, 0.0)] * (found.attempt - FIRST)

        def begin() -> None:
            if found.missing:
                raise PhaseFailed(
                    Phase.LAUNCH, f"its keeper was gone before {found.missing} was started", "launch it again"
                )

        self._over = found.over
        return self._attempts(begin, found)

    def _attempts(self, begin: Callable[[], None], adopted: Adopted | None = None) -> RunEnded | RunLeft:
        """Attempt after attempt, until one succeeds, a user stops it, or no other may follow."""
        run = self._run
        while True:
            try:
                begin()
            except CannotSeatError as error:
                assert self._verdict is not None
                # A host that came back while another one was waited for may still run its tasks.
                self._end_all(kill=True, grace=0.0, by=StopBy.FAILURE)
                return self._lost_for_good(replace(self._verdict, hint=error.hint), error.cause)
            except KeptElsewhereError as error:
                return RunLeft(run.id, error.cause, error.hint)
            except (PhaseFailed, OrchestrateError) as error:
                if (ended := self._taken()) is not None:
                    return ended
                failed = of_phase(error)
                if not run.plan.restarts.most or run.stop.asked:
                    raise failed from error
                self._end_all(kill=False, grace=run.plan.failure_grace, by=StopBy.FAILURE)
                verdict = never_started(failed)
                failure = restarts.unprepared(verdict.cause, outside=failed.outside or bool(run.lost))
            else:
                self._control.cancels = False
                finished = Attempt(run, str(self._number), adopted).follow()
                adopted, self._unproven = None, finished.unproven
                if not finished.good and (ended := self._taken()) is not None:
                    return ended
                if finished.by_user or self._over is not None:
                    return self._stopped_by()
                if finished.good:
                    ended = self._ended(Outcome.SUCCEEDED, ExitStatus.OK, doubt(finished))
                    hidden = warnings(finished, run.folder, str(self._number))
                    return msgspec.structs.replace(ended, warnings=hidden)
                verdict, failure = attempt_failed(finished, run.folder)
                verdict = with_gpus(run, verdict, finished)
                if finished.hung is not None and not finished.hung.restart:
                    asked = run.plan.restarts.most > 0
                    return self._lost_for_good(verdict, "on_hang ends the run" if asked else "")
            self._failures.append(failure)
            if (why := self._enough()) is not None:
                return self._lost_for_good(verdict, why)
            self._rest(verdict)
            begin = partial(start_again, run, self._number)

    def _enough(self) -> str | None:
        """Why no other attempt follows; None when one does."""
        run = self._run
        if run.stop.asked:
            return "a stop was asked for"
        if run.plan.hearsay:
            return run.plan.hearsay
        why = restarts.enough(self._failures, run.plan.restarts.most)
        if why is not None:
            return why
        if unset := [name for name in run.plan.secrets if name not in run.secrets]:
            return f"{', '.join(unset)} {'is' if len(unset) == 1 else 'are'} not set where it was taken over"
        return None

    def _rest(self, verdict: Verdict) -> None:
        """Say that the attempt failed, and wait before the next one; raise Cancelled."""
        run, self._verdict = self._run, verdict
        pause = restarts.pause(self._failures, run.timings.pauses)
        run.emit(
            AttemptFailed(
                attempt=str(self._number),
                cause=verdict.cause,
                cause_task=verdict.task,
                last_lines=verdict.last_lines,
                hint=verdict.hint,
                kind=verdict.kind,
                cause_host=verdict.host,
                why=verdict.why,
                pause=pause,
                restart=len(self._failures),
                most=run.plan.restarts.most,
            )
        )
        self._control.cancels = True
        rest(run, pause)
        self._number += 1

    def _lost_for_good(self, verdict: Verdict, given_up: str) -> RunEnded:
        return self._ended(Outcome.FAILED, ExitStatus.RUN_FAILED, verdict, given_up)

    def _failed(self, failure: PhaseFailed) -> RunEnded:
        """A phase could not be finished: end what was started."""
        if (ended := self._taken()) is not None:
            return ended
        if self._run.stop.asked:
            return self._stopped()
        self._end_all(kill=False, grace=self._run.plan.failure_grace, by=StopBy.FAILURE)
        before = ExitStatus.HERE if failure.here else ExitStatus.CLUSTER
        status = ExitStatus.RUN_FAILED if self._run.started else before
        return self._ended(Outcome.CLUSTER, status, never_started(failure))

    def _stopped(self) -> RunEnded:
        """A user asked for the end before or while the tasks were started."""
        self._end_all(kill=self._run.stop.kill, grace=self._run.plan.grace, by=StopBy.USER)
        return self._taken() or self._stopped_by()

    def _stopped_by(self) -> RunEnded:
        verdict = Verdict(cause=allocation.why_stopped(self._run))
        return self._ended(Outcome.STOPPED, ExitStatus.INTERRUPTED, verdict)

    def _taken(self) -> RunEnded | None:
        """Return the end of a run whose Slurm job is over, however it looked here; None for others."""
        over = allocation.fate(self._run, now=True).over
        if not over or self._over is not None:
            return None
        hint = f"`sacct -j {allocation.job(self._run)}`; launch it in another job"
        verdict = Verdict(FailureKind.ALLOCATION, cause=over, hint=hint)
        return self._ended(Outcome.FAILED, ExitStatus.RUN_FAILED, verdict)

    def _broken(self) -> RunEnded:
        with contextlib.suppress(Exception):
            self._end_all(kill=True, grace=0.0, by=StopBy.FAILURE)
        hint = f"report it, with {self._run.folder.debug_log}"
        verdict = Verdict(FailureKind.BUG, cause="a bug in orchestrate ended the run", hint=hint)
        return self._ended(Outcome.FAILED, ExitStatus.BUG, verdict)

    def _end_all(self, *, kill: bool, grace: float, by: StopBy) -> None:
        """Stop whatever this run has on the nodes, in any attempt."""
        run = self._run
        run.fleet.resume()
        if self._run.started and not allocation.fate(run).over:
            stop.end_all(run, kill=kill, grace=grace, by=by)
            try:
                collect(run, str(self._number))
            except OrchestrateError as error:  # that it is over has to be proven all the same
                log.error("%s", error.in_one_line)
                run.emit(Noted(f"what the tasks said last stays on their hosts: {error.in_one_line}"))
            self._unproven = tuple(stop.sweep(run))

    def _ended(self, outcome: Outcome, status: ExitStatus, verdict: Verdict, given_up: str = "") -> RunEnded:
        run, unproven, hint = self._run, self._unproven, verdict.hint
        alive = tuple(name for name in unproven if name in run.alive)
        if alive:
            hint = "end their processes there as root, or restart the machine"
            hint += f"; then `orchestrate stop {run.id}`"
        elif unproven:
            hint = f"`orchestrate stop {run.id}`, when it answers"
        if self._over is not None:
            hint = hint if unproven else ""
            return msgspec.structs.replace(self._over, unproven=unproven, alive=alive, hint=hint)
        return RunEnded(
            run=run.id,
            outcome=outcome,
            status=int(status),
            seconds=run.clock.now() - self._began,
            cause=verdict.cause,
            cause_task=verdict.task,
            last_lines=verdict.last_lines,
            folder=str(run.folder.path),
            hint=hint,
            unproven=unproven,
            alive=alive,
            attempts=self._number,
            given_up=given_up,
            kind=verdict.kind,
            why=verdict.why,
            cause_host=verdict.host,
        )


_GPUS, _GPU_LINES = 20.0, 6  # seconds to ask hosts about them, and what is told
_FAR = 4 << 20  # bytes of a log's end in which a traceback is searched: one of a graph is long

_OF_A_LOSS = "lower the learning rate, clip gradients, check the data: a value became NaN or infinite"


def attempt_failed(finished: Finished, folder: RunFolder) -> tuple[Verdict, FailedAttempt]:
    """The first cause of an attempt, with the last lines from the run's folder."""

    def hear(task: str, of: str) -> Statement:
        lines = last_lines(folder.log(of, task), LOOKED_AT, _FAR)
        report = last_error(last_bytes(folder.report(of, task)))
        return Statement(lines, report)

    steps, hung = finished.steps, finished.hung
    verdict = judge(finished.exits, hear)
    if hung is not None:
        verdict = of_hang(hung.verdict, finished.exits, hear) if hung.verdict else verdict
        step = steps.get(verdict.task, max(steps.values(), default=None))
        return verdict, FailedAttempt(hung.place, step, hung.seconds)
    blamed = next((one for one in finished.exits if one.task == verdict.task), None)
    return verdict, restarts.failure(blamed, verdict.last_lines, steps)


def with_gpus(run: Run, verdict: Verdict, finished: Finished) -> Verdict:
    """Add to a verdict what has become of the hosts' GPUs since preflight, where hosts answer."""
    exits = finished.exits
    since = min((one.ended - one.seconds for one in exits), default=0.0)
    failed = min((one.ended for one in exits if verdict.task in ("", one.task)), default=run.clock.wall())
    clocks = {name: session.clock_offset for name, session in run.fleet.sessions.items()}
    found: list[tuple[float, str, bool, str]] = []
    silent = {*finished.unproven, *(name for name, look in run.gpus.items() if not look.gpus)}
    names = [name for name in run.names if name not in silent]
    for name, look in run.fleet.ask(wire.Gpus(), hosts=names, timeout=_GPUS).good.items():
        ahead, before = clocks.get(name, 0.0), run.gpus.get(name, look)
        news = gpus.changes(name, before, look, since + ahead, failed + ahead)
        found += [(at - ahead, text, broken, name) for at, text, broken in news]
    lines = [text for _, text, *_ in sorted(found)[:_GPU_LINES]]
    hint = verdict.hint
    if broken := fold(name for *_, broken, name in found if broken):
        hint = f"`--exclude {shlex.quote(broken)}` until its GPU was reset, or the machine restarted"
    return replace(verdict, why="\n".join(filter(None, (*lines, verdict.why))), hint=hint)


def doubt(finished: Finished) -> Verdict:
    """Return why a good end is not a plain success: a task's last loss is not finite; else nothing."""
    for exited in finished.exits:
        if exited.task in finished.diverged and exited.code == 0 and not exited.stopped:
            cause = f"{exited.task} on {exited.host}: its last loss is {finished.diverged[exited.task]}"
            return Verdict(FailureKind.NAN, exited.task, exited.host, cause, (), _OF_A_LOSS)
    return Verdict()


def warnings(finished: Finished, folder: RunFolder, attempt: str) -> tuple[str, ...]:
    """Tell what tasks that exited with 0 hide: a shell's status is that of its last command."""
    words: list[tuple[str, TaskExited]] = []
    for exited in finished.exits:
        if exited.code != 0 or exited.stopped:
            continue
        report = last_error(last_bytes(folder.report(attempt, exited.task)))
        if report is not None:
            words.append((f"exited with 0, and a Python that it ran ended with {report.told}", exited))
        if exited.oom_kills:
            words.append(("exited with 0, and the kernel killed a process of it for want of memory", exited))
        if exited.note:
            words.append((exited.note, exited))
    of_peers = (peers.warning(finished.apart),) if finished.apart else ()
    return of_peers + tuple(
        f"{fold(one.task for one in exits)} on {fold(one.host for one in exits)} {text}"
        for text, exits in grouped(words).items()
    )


def never_started(failed: PhaseFailed) -> Verdict:
    """The cause of an attempt that ended before its tasks began."""
    return Verdict(FailureKind.START, cause=f"{failed.phase.value}: {failed.cause}", hint=failed.hint)


def of_phase(error: PhaseFailed | OrchestrateError) -> PhaseFailed:
    """Take what went wrong on this machine (no room, say) for the failure of a phase."""
    if isinstance(error, PhaseFailed):
        return error
    here = error.status is ExitStatus.HERE
    return PhaseFailed(Phase.STAGE, error.in_one_line, error.hint, here=here)


# --- telling somebody that a run has ended ---

_REPORT_PATIENCE = 30.0  # seconds


def notify(run: Run, ended: RunEnded, patience: float = _REPORT_PATIENCE) -> None:
    """Run the command of `--notify`, if there is one. What goes wrong with it is a note, and no more."""
    argv = run.folder.read_words(run.folder.notify)
    if not argv:
        return
    told = result(run.plan, Stamped(run.clock.wall(), ended))
    why = _report(argv, told, patience)
    if why:
        log.warning("--notify: %s %s", shlex.join(argv), why)
        run.emit(Noted(f"the run's end was not reported: the command of --notify {why}"))


def result(plan: RunPlan, ended: Stamped) -> bytes:
    """The last event of the run as `--json` has it, with the run's name and hosts."""
    event = json.loads(encode(ended))
    hosts = [host.name for host in plan.hosts]
    return json.dumps({**event, "name": plan.name, "hosts": hosts}).encode() + b"\n"


def _report(argv: Sequence[str], told: bytes, patience: float) -> str:
    """Return what went wrong; "" for nothing. Its output goes where ours does: the keeper's debug.log."""
    try:
        with subprocess.Popen(argv, stdin=subprocess.PIPE, start_new_session=True) as process:
            try:
                process.communicate(told, timeout=patience)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                return f"was killed, since it had not ended after {patience:g} s"
    except OSError as error:
        return f"could not be started: {error.strerror or error}"
    if process.returncode < 0:
        return f"was killed by {signal_name(-process.returncode)}"
    return f"ended with exit status {process.returncode}" if process.returncode else ""
