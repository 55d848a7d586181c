"""What a failed attempt, or one that could not start, is called: by people, and by the rules of restarts."""

from __future__ import annotations

from orchestrator import restarts
from orchestrator.errors import OrchestrateError
from orchestrator.events import Kind, Phase
from orchestrator.lastwords import LOOKED_AT, last
from orchestrator.phases.attempt import Finished
from orchestrator.phases.context import PhaseFailed
from orchestrator.restarts import Failure
from orchestrator.store import RunFolder
from orchestrator.store.tail import last_lines
from orchestrator.verdict import Verdict, judge


def attempt_failed(finished: Finished, folder: RunFolder, attempt: str) -> tuple[Verdict, Failure]:
    """The first cause of an attempt whose tasks were started, with the last lines from the run's folder."""

    def tail(task: str, of: str) -> tuple[str, ...]:
        return last_lines(folder.log(of, task.replace("/", "-")), LOOKED_AT)

    steps, hung = finished.steps, finished.hung
    if hung is not None:
        lines = last(tail(hung.task, attempt)) if hung.task else ()
        step = steps.get(hung.task, max(steps.values(), default=None))
        verdict = Verdict(Kind.HANG, hung.task, hung.host, hung.cause, lines, hung.hint)
        return verdict, Failure(hung.place, step, hung.seconds)
    verdict = judge(finished.exits, tail)
    blamed = next((one for one in finished.exits if one.task == verdict.task), None)
    return verdict, restarts.failure(blamed, verdict.last_lines, steps)


def never_started(failed: PhaseFailed, *, host_lost: bool) -> tuple[Verdict, Failure]:
    """The cause of an attempt that ended before its tasks began."""
    said = f"{failed.phase.value}: {failed.cause}"
    verdict = Verdict(Kind.START, "", "", said, (), failed.hint)
    return verdict, restarts.unprepared(said, outside=failed.outside or host_lost)


def of_phase(error: PhaseFailed | OrchestrateError) -> PhaseFailed:
    """What went wrong on this machine (no room, say) ends a phase as well."""
    if isinstance(error, PhaseFailed):
        return error
    return PhaseFailed(Phase.STAGE, f"{error.what}: {error.why}", error.hint)
