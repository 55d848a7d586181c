"""The keeper: the process that owns a run, from its first connection to its end.

Viewers send requests through a FIFO in the run's folder, which a separate thread reads.
"""

import contextlib
import json
import os
import shlex
import signal
import subprocess
from collections.abc import Callable, Sequence
from functools import cache, partial

from msgspec.structs import asdict, replace

from orchestrator import processes, wire
from orchestrator.checks import gpus
from orchestrator.diagnosis.lastwords import LOOKED_AT
from orchestrator.diagnosis.statement import Statement
from orchestrator.diagnosis.verdict import Verdict, judge, of_hang
from orchestrator.errors import ExitStatus, OrchestrateError, worded
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
from orchestrator.phases import launch, prepare, recovery, stage, stop
from orchestrator.phases.adopt import Adopted, adopt, announcement
from orchestrator.phases.attempt import Attempt, Finished
from orchestrator.phases.context import PhaseFailed, Run, log, unforeseen
from orchestrator.phases.follow import collect
from orchestrator.phases.loop import ViewerRequest, Watched
from orchestrator.plainfile import tail_of
from orchestrator.planning.takeover import FIRST
from orchestrator.ranges import fold, grouped
from orchestrator.run import hang, restarts
from orchestrator.run.records import last_error
from orchestrator.run.restarts import FailedAttempt
from orchestrator.store import RunFolder
from orchestrator.store.reader import last_bytes, last_lines
from orchestrator.text import signal_name

_LOOK = 2.0  # seconds between two checks for a request from another machine
_RETYPE_DELAY = 0.1  # seconds between two attempts to reach a host for keyboard input
_MAX_TYPED = 3000  # hex digits per message; FIFO writes are atomic up to 4096 bytes


class Control:
    """Accepts requests while the keeper lives; while `cancels` is set, a stop aborts any wait for hosts.

    A thread reads them; the keeper's own thread acts on them.
    """

    def __init__(self, run: Run, fifo: int) -> None:
        self.cancels = True
        self._run = run
        self._fifo = fifo
        self._typed = ""  # hex input for the terminal's task, not sent yet
        self._size: Sequence[int] | None = None  # of the terminal, not sent yet
        self._retry_due = False  # retried in a moment

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
            elif not os.fstat(self._fifo).st_nlink:  # the run's folder was removed, and nobody can reach us
                os._exit(ExitStatus.HERE)  # as if we were killed: `stop` takes the run over from its hosts
            for line in lines:
                self._run.loop.post(partial(self._handle, line))

    def _handle(self, line: bytes) -> None:
        try:
            request = json.loads(line)
            order = Order(request.get("want"))
        except (ValueError, AttributeError):
            return
        match order:
            case Order.TYPE:
                self._type_in(str(request.get("typed", "")), request.get("terminal"))
            case Order.VITALS:
                self._run.watched = self._run.clock.now()
                self._run.loop.put(Watched())
            case Order.STOP | Order.KILL:
                # Cancel first: whoever sees the request may wait for hosts again.
                if self.cancels and not self._run.stop.requested:
                    self._run.fleet.cancel()
                self._run.stop.ask(kill=order is Order.KILL)
                self._run.loop.put(ViewerRequest())

    def _type_in(self, typed: str, size: Sequence[int] | None) -> None:
        """Forward keyboard input, now or when the host is back."""
        plan = self._run.plan
        if plan.terminal is None:
            return
        task, self._typed, self._size = plan.terminal.task, self._typed + typed, size or self._size
        session = self._run.fleet.sessions.get(plan.task(task).host)
        if session is not None:
            chunk, self._typed = self._typed[:_MAX_TYPED], self._typed[_MAX_TYPED:]
            session.submit(
                wire.Type(run=plan.run, attempt=str(FIRST), task=str(task), typed=chunk, terminal=self._size)
            )
            self._size = None
        if (self._typed or self._size) and not self._retry_due:
            self._retry_due = True
            self._run.loop.after(_RETYPE_DELAY, self._retry_typing)

    def _retry_typing(self) -> None:
        self._retry_due = False
        if self._typed or self._size:
            self._type_in("", None)


def keep(run: Run, control: int, *, new: bool) -> ExitStatus:
    """Take a run from its plan to its end, or continue one whose keeper is gone.

    The exit status is also in its RunEnded.
    """
    keeper = _Keeper(run, control)
    return keeper.guarded(keeper.run_new if new else keeper.run_adopted)


_MAX_ENDINGS = 4  # the work, the end after its failure, a stop during that, and a failure during the stop


class _Keeper:
    def __init__(self, run: Run, control: int) -> None:
        self._run = run
        run.fleet.keep_alive = min(run.fleet.keep_alive, run.plan.lifeline / 4 or run.fleet.keep_alive)
        # Wall clocks jump; events from before this keeper have no other time.
        self._began = run.clock.now() - max(0.0, run.clock.wall() - run.plan.created)
        self._unproven: tuple[str, ...] = ()
        self._number = FIRST  # of the attempt
        self._failures: list[FailedAttempt] = []
        self._verdict: Verdict | None = None  # of the last failed attempt
        self._earlier_end: RunEnded | None = None  # it had already ended: only clean up
        # Until the tasks are followed, a stop request must abort any wait for hosts.
        self._control = Control(run, control)

    def guarded(self, work: Callable[[], RunEnded | RunLeft]) -> ExitStatus:
        """Make sure that the run ends with exactly one RunEnded; a bug leaves its traceback in the log."""
        # Slurm sends these to a job's processes: an orderly stop.
        for number in (signal.SIGTERM, signal.SIGUSR1) if self._run.job else ():
            signal.signal(number, lambda *_: self._run.folder.ask_keeper(Order.STOP))
        ended = self._conclude(work)
        with contextlib.suppress(Exception):
            launch.keep_warm(self._run)
        if isinstance(ended, RunEnded):
            self._leave()
            if self._earlier_end is None:
                notify(self._run, ended)  # before the end is reported, for those who wait for it
        self._run.emit(ended)
        self._run.fleet.close()
        return ExitStatus(ended.status) if isinstance(ended, RunEnded) else ExitStatus.CLUSTER

    def _leave(self) -> None:
        """End the containers of the run; those of hosts that do not answer end by themselves."""
        sessions = self._run.fleet.sessions
        names = {host.name for host in self._run.plan.members if host.container and host.name in sessions}
        with contextlib.suppress(Cancelled, OrchestrateError, OSError):
            self._run.fleet.resume()
            answers = self._run.fleet.each(
                {name: sessions[name].link for name in names}, lambda link: link.leave()
            )
            for error in answers.bad.values():
                log.warning("%s: its container may still run: %s", error.host, error.in_one_line)

    def _conclude(self, work: Callable[[], RunEnded | RunLeft]) -> RunEnded | RunLeft:
        """Run `work`; after an exception, run the function that ends the run for this reason, and so on."""
        for _ in range(_MAX_ENDINGS):
            try:
                return work()
            except Cancelled:
                work = self._stopped
            except PhaseFailed as failure:
                work = partial(self._failed, failure)
            except OrchestrateError as error:
                work = partial(self._failed, of_phase(error))
            except Exception as error:
                here = unforeseen("the run ends", error)
                if here is None:
                    break
                work = partial(self._failed, of_phase(here))
        return self._broken()

    def run_new(self) -> RunEnded | RunLeft:
        run = self._run
        run.emit(announcement(run.folder, run.plan))
        self._control.listen()
        stage.begin(run)

        def begin() -> None:
            prepare.connect_or_replace(run)
            prepare.prepare(run)
            launch.launch(run, str(FIRST))

        return self._attempts(begin)

    def run_adopted(self) -> RunEnded | RunLeft:
        run = self._run
        self._control.cancels = False
        run.started = run.prepared = True
        self._control.listen()
        adopted = adopt(run)
        if isinstance(adopted, RunLeft):
            return self._run_failed(Verdict(), "") if run.allocation(now=True).over else adopted
        self._number = adopted.attempt
        self._failures = [FailedAttempt("", None, 0.0)] * (adopted.attempt - FIRST)

        def begin() -> None:
            if adopted.missing:
                raise PhaseFailed(
                    Phase.LAUNCH,
                    f"its keeper ended before {adopted.missing} was started",
                    "launch it again",
                )

        self._earlier_end = adopted.over
        return self._attempts(begin, adopted)

    def _attempts(self, begin: Callable[[], None], adopted: Adopted | None = None) -> RunEnded | RunLeft:
        """Run attempts until one succeeds, a user stops the run, or no further one is allowed."""
        run = self._run
        while True:
            try:
                begin()
            except prepare.CannotContinueError as error:
                assert self._verdict is not None
                # A host that came back while another one was waited for may still run its tasks.
                self._end_all(kill=True, grace=0.0, by=StopBy.FAILURE)
                return self._run_failed(replace(self._verdict, hint=error.hint), error.cause)
            except prepare.KeptElsewhereError as error:
                return RunLeft(run.id, error.cause, error.hint)
            except (PhaseFailed, OrchestrateError) as error:
                failed = of_phase(error)
                outside = failed.outside or bool(run.lost)
                again = run.plan.restarts.most and (run.prepared or outside)  # none after a mistake
                if not again or run.stop.requested or run.allocation(now=True).over:
                    raise failed from error
                self._end_all(kill=False, grace=run.plan.failure_grace, by=StopBy.FAILURE)
                verdict = start_failed(failed)
                failure = restarts.unprepared(verdict.cause, outside=outside)
            else:
                self._control.cancels = False
                finished = Attempt(run, str(self._number), adopted).follow()
                adopted, self._unproven = None, finished.unproven
                if finished.by_user or self._earlier_end is not None:
                    return self._stopped_by()
                if finished.good:
                    ended = self._ended(Outcome.SUCCEEDED, ExitStatus.OK, divergence(finished))
                    hidden = warnings(finished, run.folder, str(self._number))
                    return replace(ended, warnings=ended.warnings + hidden)
                if run.allocation(now=True).over:
                    return self._run_failed(Verdict(), "")
                verdict, failure = attempt_failed(finished, run.folder)
                verdict = with_gpus(run, verdict, finished)
                if finished.hung is not None and not finished.hung.restart:
                    allowed = run.plan.restarts.most > 0
                    return self._run_failed(verdict, "on_hang ends the run" if allowed else "")
            self._failures.append(failure)
            if (why := self._reason_to_end()) is not None:
                return self._run_failed(verdict, why)
            self._pause(verdict)
            begin = partial(prepare.start_again, run, self._number)

    def _reason_to_end(self) -> str | None:
        """Return the reason why no further attempt follows, or None if one follows."""
        run = self._run
        if run.stop.requested:
            return "a stop was requested"
        if run.plan.untrusted:
            return run.plan.untrusted
        why = restarts.reason_to_end(self._failures, run.plan.restarts.most)
        if why is not None:
            return why
        if unset := [name for name in run.plan.secrets if name not in run.secrets]:
            return f"{', '.join(unset)} {'is' if len(unset) == 1 else 'are'} not set where it was taken over"
        return None

    def _pause(self, verdict: Verdict) -> None:
        """Report the failed attempt, and wait before the next one; raise Cancelled."""
        run, self._verdict = self._run, verdict
        pause = restarts.pause(self._failures, run.timings.pauses)
        run.emit(
            AttemptFailed(
                **asdict(verdict),
                attempt=str(self._number),
                pause=pause,
                restart=len(self._failures),
                most=run.plan.restarts.most,
            )
        )
        self._control.cancels = True
        began = run.clock.now()
        recovery.wait_for_lost(run, pause)  # lost hosts may come back meanwhile
        if run.clock.flagged(run.stop, max(0.0, began + pause - run.clock.now())):
            raise Cancelled
        self._number += 1

    def _run_failed(self, verdict: Verdict, given_up: str) -> RunEnded:
        if not self._run.started:
            return self._ended(Outcome.CLUSTER, ExitStatus.CLUSTER, verdict, given_up)
        return self._ended(Outcome.FAILED, ExitStatus.RUN_FAILED, verdict, given_up)

    def _failed(self, failure: PhaseFailed) -> RunEnded:
        """A phase failed: end what was started."""
        if self._run.stop.requested:
            return self._stopped()
        self._end_all(kill=False, grace=self._run.plan.failure_grace, by=StopBy.FAILURE)
        before = ExitStatus.HERE if failure.here else ExitStatus.CLUSTER
        status = ExitStatus.RUN_FAILED if self._run.started else before
        return self._ended(Outcome.CLUSTER, status, start_failed(failure))

    def _stopped(self) -> RunEnded:
        """A user requested the end before or while the tasks were started."""
        self._end_all(kill=self._run.stop.kill, grace=self._run.plan.grace, by=StopBy.USER)
        return self._stopped_by()

    def _stopped_by(self) -> RunEnded:
        # Slurm's signal before a time limit looks like a user's.
        limit = f", or before the time limit of Slurm job {self._run.job}" if self._run.job else ""
        verdict = Verdict(cause=f"stopped by the user{limit}")
        return self._ended(Outcome.STOPPED, ExitStatus.INTERRUPTED, verdict)

    def _broken(self) -> RunEnded:
        with contextlib.suppress(Exception):
            self._end_all(kill=True, grace=0.0, by=StopBy.FAILURE)
        hint = f"report it, with {self._run.folder.debug_log}"
        verdict = Verdict(FailureKind.BUG, cause="a bug in orchestrate ended the run", hint=hint)
        return self._ended(Outcome.FAILED, ExitStatus.BUG, verdict)

    def _end_all(self, *, kill: bool, grace: float, by: StopBy) -> None:
        """Stop everything of this run on the nodes, in any attempt."""
        run = self._run
        run.fleet.resume()
        if run.started and not run.allocation(now=True).over:
            stop.end_all(run, kill=kill, grace=grace, by=by)
            try:
                collect(run, str(self._number))
            except OrchestrateError as error:  # its end still has to be verified
                log.error("%s", error.in_one_line)
                run.emit(Noted(f"the tasks' last output stays on their hosts: {error.in_one_line}"))
            self._unproven = tuple(stop.sweep(run))

    def _ended(self, outcome: Outcome, status: ExitStatus, verdict: Verdict, given_up: str = "") -> RunEnded:
        run, unproven = self._run, self._unproven
        decided = self._earlier_end is not None or status in (ExitStatus.OK, ExitStatus.BUG)
        if not decided and (over := run.allocation(now=True).over):
            # The run's Slurm job is over: that is its end, whatever was observed here.
            outcome, status, given_up = Outcome.FAILED, ExitStatus.RUN_FAILED, ""
            hint = f"`sacct -j {run.job}`; launch it in another job"
            verdict = Verdict(FailureKind.ALLOCATION, cause=over, hint=hint)
        hint = verdict.hint
        alive = tuple(name for name in unproven if name in run.alive)
        if alive:
            hint = "end their processes there as root, or restart the machine"
            hint += f"; then `orchestrate stop {run.id}`"
        elif unproven:
            hint = f"`orchestrate stop {run.id}`, when it answers"
        if self._earlier_end is not None:
            hint = hint if unproven else ""
            return replace(self._earlier_end, unproven=unproven, alive=alive, hint=hint)
        return RunEnded(
            **asdict(replace(verdict, hint=hint)),
            run=run.id,
            outcome=outcome,
            status=int(status),
            seconds=run.clock.now() - self._began,
            folder=str(run.folder.path),
            unproven=unproven,
            alive=alive,
            attempts=self._number,
            given_up=given_up,
            warnings=(run.staged.lone,) if run.staged.lone else (),
        )


_GPUS, _GPU_LINES = 20.0, 6  # seconds to query hosts; most lines shown
_TAIL_BYTES = 4 << 20  # bytes at a log's end that are searched for a traceback: TensorFlow's can be long

_DIVERGED_HINT = "lower the learning rate, clip gradients, or check the data: a value became NaN or infinite"


def attempt_failed(finished: Finished, folder: RunFolder) -> tuple[Verdict, FailedAttempt]:
    """Return the root cause of an attempt's failure, with the last lines from the run's folder."""
    statement_of = cache(partial(_statement, folder))
    steps, hung = finished.steps, finished.hung
    verdict = judge(finished.exits, statement_of)
    if hung is not None:
        verdict = of_hang(hung.verdict, finished.exits, statement_of) if hung.verdict else verdict
        step = steps.get(verdict.cause_task, max(steps.values(), default=None))
        return verdict, FailedAttempt(hung.place, step, hung.seconds)
    blamed = next((exited for exited in finished.exits if exited.task == verdict.cause_task), None)
    statement = statement_of(blamed.task, blamed.attempt) if blamed else Statement(())
    return verdict, restarts.failure(blamed, statement, steps)


def _statement(folder: RunFolder, task: str, attempt: str) -> Statement:
    lines = last_lines(folder.log(attempt, task), LOOKED_AT, _TAIL_BYTES)
    return Statement(lines, last_error(last_bytes(folder.report(attempt, task))))


def with_gpus(run: Run, verdict: Verdict, finished: Finished) -> Verdict:
    """Return the verdict with the GPUs' changes since preflight added, for hosts that reply."""
    exits = finished.exits
    since = min((end.ended - end.seconds for end in exits), default=0.0)
    ends = (end.ended for end in exits if verdict.cause_task in ("", end.task))
    failed = min(ends, default=run.clock.wall())
    clocks = {name: session.clock_offset for name, session in run.fleet.sessions.items()}
    faults: list[tuple[float, str, bool, str]] = []
    silent = {*finished.unproven, *(name for name, look in run.facts.items() if not look.gpus)}
    names = [name for name in run.names if name not in silent]
    for name, look in run.fleet.ask(wire.Gpus(), hosts=names, timeout=_GPUS).good.items():
        ahead, before = clocks.get(name, 0.0), run.facts.get(name, look)
        news = gpus.changes(name, before, look, since + ahead, failed + ahead)
        faults += [(at - ahead, text, broken, name) for at, text, broken in news]
    lines = [text for _, text, *_ in sorted(faults)[:_GPU_LINES]]
    hint = verdict.hint
    if broken := fold(name for *_, broken, name in faults if broken):
        hint = f"`--exclude {shlex.quote(broken)}` until its GPU is reset or the machine restarted"
    return replace(verdict, why="\n".join(filter(None, (*lines, verdict.why))), hint=hint)


def divergence(finished: Finished) -> Verdict:
    """Return a warning for a successful run in which a task's last loss is not a finite number."""
    diverged = finished.diverged
    bad = [each for each in finished.exits if each.task in diverged and each.code == 0 and not each.stopped]
    if not bad:
        return Verdict()
    first = bad[0]
    who = f"{first.task} on {first.host}: its" if len(bad) == 1 else f"{fold(each.task for each in bad)}: the"
    cause = f"{who} last loss is {' or '.join(sorted({diverged[each.task] for each in bad}))}"
    return Verdict(FailureKind.NAN, first.task, first.host, cause, (), _DIVERGED_HINT)


def warnings(finished: Finished, folder: RunFolder, attempt: str) -> tuple[str, ...]:
    """Return problems hidden by tasks that exited with 0.

    A shell's status is that of its last command, and `multiprocessing.Process` raises nothing in its parent.
    """
    problems: list[tuple[str, TaskExited]] = []
    for exited in finished.exits:
        if exited.code != 0 or exited.stopped:
            continue
        report = last_error(last_bytes(folder.report(attempt, exited.task)))
        if report is not None:
            problems.append((f"exited with 0, but a Python that it ran ended with {report.brief}", exited))
        elif b"Process " in tail_of(folder.log(attempt, exited.task), _TAIL_BYTES)[0]:
            failed_part = _statement(folder, exited.task, attempt).failed_part
            if failed_part.startswith("its process "):  # threads often fail while the program ends
                problems.append((f"exited with 0, but {failed_part}", exited))
        if exited.oom_kills:
            problems.append(("exited with 0, but the kernel killed one of its processes: no memory", exited))
        if exited.note:
            problems.append((exited.note, exited))
    of_peers = (hang.separate_warning(finished.apart),) if finished.apart else ()
    return of_peers + tuple(
        f"{fold(exited.task for exited in exits)} on {fold(exited.host for exited in exits)} {text}"
        for text, exits in grouped(problems).items()
    )


def start_failed(failed: PhaseFailed) -> Verdict:
    """Return the cause of an attempt that ended before its tasks began."""
    return Verdict(FailureKind.START, cause=f"{failed.phase.value}: {failed.cause}", hint=failed.hint)


def of_phase(error: PhaseFailed | OrchestrateError) -> PhaseFailed:
    """Treat a failure of this machine (a full disk, for example) as the failure of a phase."""
    if isinstance(error, PhaseFailed):
        return error
    here = worded(error).status is ExitStatus.HERE
    return PhaseFailed(Phase.STAGE, error.in_one_line, error.hint, here=here)


# --- notifying the user that a run has ended ---

_REPORT_PATIENCE = 30.0  # seconds


def notify(run: Run, ended: RunEnded, patience: float = _REPORT_PATIENCE) -> None:
    """Run the `--notify` command, if there is one. Its failure is only a note."""
    request = run.folder.read_request()
    if request is None or not request.notify:
        return
    argv = shlex.split(request.notify)
    message = notification(run.plan, Stamped(run.clock.wall(), ended))
    why = _report(argv, message, patience)
    if why:
        log.warning("--notify: %s %s", shlex.join(argv), why)
        run.emit(Noted(f"the run's end was not reported: the command of --notify {why}"))


def notification(plan: RunPlan, ended: Stamped) -> bytes:
    """Return the last event of the run as in `--json`, with the run's name and hosts."""
    event = json.loads(encode(ended))
    hosts = [host.name for host in plan.hosts]
    return json.dumps({**event, "name": plan.name, "hosts": hosts}).encode() + b"\n"


def _report(argv: Sequence[str], text: bytes, patience: float) -> str:
    """Run the command; return the error, "" for none. Its output goes to ours: the keeper's debug.log."""
    try:
        with subprocess.Popen(argv, stdin=subprocess.PIPE, start_new_session=True) as process:
            try:
                process.communicate(text, timeout=patience)
            except subprocess.TimeoutExpired:
                processes.kill(process)
                return f"was killed, since it had not ended after {patience:g} s"
    except OSError as error:
        return f"could not be started: {error.strerror or error}"
    if process.returncode < 0:
        return f"was killed by {signal_name(-process.returncode)}"
    return f"ended with exit status {process.returncode}" if process.returncode else ""
