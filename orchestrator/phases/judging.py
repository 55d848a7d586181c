"""Verdicts on an attempt that failed or could not start, for people and for the rules of restarts."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.diagnosis.lastwords import LOOKED_AT, last
from orchestrator.diagnosis.rules import OF_A_PEER
from orchestrator.diagnosis.statement import Statement
from orchestrator.diagnosis.verdict import NOBODY, Verdict, judge
from orchestrator.errors import OrchestrateError
from orchestrator.events import FailureKind, Phase, TaskExited
from orchestrator.groups import grouped
from orchestrator.model import TaskSpec
from orchestrator.phases.attempt import Finished
from orchestrator.phases.context import PhaseFailed
from orchestrator.ranges import fold
from orchestrator.run import restarts
from orchestrator.run.records import last_error
from orchestrator.run.restarts import FailedAttempt
from orchestrator.store import RunFolder
from orchestrator.store.reader import last_bytes, last_lines

_FAR = 4 << 20  # bytes of a log's end in which a traceback is searched: one of a graph is long

_OF_A_CUT = "look at the switch and the firewalls between them; `orchestrate preflight` tests every pair"

_OF_A_LOSS = "lower the learning rate, clip gradients, check the data: a value became NaN or infinite"


def attempt_failed(
    finished: Finished, folder: RunFolder, attempt: str, tasks: Sequence[TaskSpec]
) -> tuple[Verdict, FailedAttempt]:
    """The first cause of an attempt whose `tasks` were started, with the last lines from the run's folder."""
    ports = {str(spec.id): spec.port for spec in tasks}

    def hear(task: str, of: str) -> Statement:
        slug = task.replace("/", "-")
        lines = last_lines(folder.log(of, slug), LOOKED_AT, _FAR)
        report = last_error(last_bytes(folder.report(of, slug)))
        others = frozenset(port for one, port in ports.items() if one != task)
        return Statement(lines, report, ports.get(task, 0), others)

    steps, hung = finished.steps, finished.hung
    if hung is not None:
        lines = last(hear(hung.task, attempt).lines) if hung.task else ()
        step = steps.get(hung.task, max(steps.values(), default=None))
        verdict = Verdict(FailureKind.HANG, hung.task, hung.host, hung.cause, lines, hung.hint)
        return verdict, FailedAttempt(hung.place, step, hung.seconds)
    verdict = judge(finished.exits, hear)
    if finished.cut and verdict.kind in OF_A_PEER:
        cause = f"{finished.cut} ({verdict.cause})"
        verdict = Verdict(FailureKind.PEER, "", "", cause, verdict.last_lines, _OF_A_CUT)
    blamed = next((one for one in finished.exits if one.task == verdict.task), None)
    return verdict, restarts.failure(blamed, verdict.last_lines, steps)


def doubt(finished: Finished) -> Verdict:
    """Return why a good end is not a plain success: a task's last loss is not finite; else NOBODY."""
    for exited in finished.exits:
        if exited.task in finished.diverged and exited.code == 0 and not exited.stopped:
            cause = f"{exited.task} on {exited.host}: its last loss is {finished.diverged[exited.task]}"
            return Verdict(FailureKind.NAN, exited.task, exited.host, cause, (), _OF_A_LOSS)
    return NOBODY


def warnings(finished: Finished, folder: RunFolder, attempt: str) -> tuple[str, ...]:
    """Tell what tasks that exited with 0 hide: a shell's status is that of its last command."""
    words: list[tuple[str, TaskExited]] = []
    for exited in finished.exits:
        if exited.code != 0 or exited.stopped:
            continue
        report = last_error(last_bytes(folder.report(attempt, exited.task.replace("/", "-"))))
        if report is not None:
            words.append((f"exited with 0, and a Python that it ran ended with {report.told}", exited))
        if exited.oom_kills:
            words.append(("exited with 0, and the kernel killed a process of it for want of memory", exited))
        if exited.note:
            words.append((exited.note, exited))
    return tuple(
        f"{fold(one.task for one in exits)} on {fold(one.host for one in exits)} {text}"
        for text, exits in grouped(words).items()
    )


def never_started(failed: PhaseFailed, *, host_lost: bool) -> tuple[Verdict, FailedAttempt]:
    """The cause of an attempt that ended before its tasks began."""
    said = f"{failed.phase.value}: {failed.cause}"
    verdict = Verdict(FailureKind.START, "", "", said, (), failed.hint)
    return verdict, restarts.unprepared(said, outside=failed.outside or host_lost)


def of_phase(error: PhaseFailed | OrchestrateError) -> PhaseFailed:
    """Take what went wrong on this machine (no room, say) for the failure of a phase."""
    if isinstance(error, PhaseFailed):
        return error
    return PhaseFailed(Phase.STAGE, error.in_one_line, error.hint)
