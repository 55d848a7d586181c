"""The root cause: which task failed first, and why. Pure."""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from msgspec.structs import replace

from orchestrator import ranges
from orchestrator.diagnosis import lastwords
from orchestrator.diagnosis.ends import end, end_after, failed
from orchestrator.diagnosis.rules import OF_A_PEER
from orchestrator.diagnosis.statement import Statement
from orchestrator.events import FailureKind, Loss, TaskExited
from orchestrator.text import advised, duration, shell_signal, signal_name
from orchestrator.value import Value

StatementOf: TypeAlias = Callable[[str, str], Statement]  # by task and attempt

_INTERRUPT, _ABORT, _KILL, _XCPU = 2, 6, 9, 24

SIGNAL_HINTS = {
    1: "`journalctl` on {host}: SIGHUP comes from a session or terminal that was closed",
    2: "check for a person's Ctrl-C or a `kill -INT` on {host}, or for KeyboardInterrupt in the program",
    4: "install another build of TensorFlow: this one uses an instruction that {host}'s CPU lacks",
    6: "read the task's last lines: native code aborted and printed the reason",
    7: "`df -h /dev/shm` on {host}: a mapped file or shared memory is full or gone",
    9: "`dmesg -T | grep -i oom` on {host}: SIGKILL is `kill -9` or the kernel's out-of-memory killer",
    11: "set PYTHONFAULTHANDLER=1 under [job.env]: it shows where native code crashed",
    15: "`journalctl` on {host}: a shutdown, a batch system or a person sent TERM",
    24: "raise `ulimit -t` in `setup`, or have root raise it in /etc/security/limits.conf on {host}",
    25: "have root raise `ulimit -f` for your user in /etc/security/limits.conf on {host}",
}

_CODE_HINTS = {
    126: "`chmod +x` on that file, and look at its first line: it is not executable on {host}",
    127: "check `setup` in [job] and PATH on {host}: a command was not found there",
}

_KIND_HINTS = {
    FailureKind.OUT_OF_MEMORY: "use a smaller batch, fewer tasks on {host}, or more memory for them",
    FailureKind.REBOOTED: (
        "`last -x` and `journalctl -b -1` on {host}: a power failure, an update, or a person restarted it"
    ),
    FailureKind.ALLOCATION: "`scontrol show node {host}`; a job with `--no-kill` outlives its nodes",
    FailureKind.HOST_LOST: "check {host}'s power and network, then `orchestrate preflight`",
}

_CONTAINER_HINT = (
    "`dmesg -T | grep -i oom`, and `journalctl` of docker or podman on {host}, to see what ended it"
)

_AFTER_A_RESTART = (
    "; after a restart all tasks must continue from one step: set `backup` under [job] to the folder of the"
    " checkpoints (docs/restarts.md)"
)

_HELD_HINT = (
    "make it a daemon (`daemon=True`), or end it in a `finally`: it would also keep a failed task's GPU"
)

_LOSSES = {
    Loss.NONE: FailureKind.LOST,
    Loss.RESTARTED: FailureKind.REBOOTED,
    Loss.UNREACHABLE: FailureKind.HOST_LOST,
    Loss.TAKEN: FailureKind.ALLOCATION,
    Loss.UNSTARTED: FailureKind.START,
}


class Verdict(Value):
    """The cause of a failure, in the fields of AttemptFailed and RunEnded."""

    kind: FailureKind = FailureKind.NONE
    cause_task: str = ""  # "" if no task is to blame
    cause_host: str = ""
    cause: str = ""  # one line: which task and why
    last_lines: tuple[str, ...] = ()  # its last traceback if that ended it, otherwise the end of its log
    hint: str = ""
    why: str = ""  # where its exception was raised, and the exception it came from


def judge(exits: Sequence[TaskExited], statement_of: StatementOf) -> Verdict:
    """Return the root cause among the exits of a run (of its last attempt).

    It is the earliest failure that is not a consequence of another. Stopped tasks are not causes, unless
    nothing else is and their last output is an exception (they hung while shutting down), or their host is
    silent.
    """
    exits = [exited for exited in exits if exited.attempt == exits[-1].attempt]
    statements = {exited.task: statement_of(exited.task, exited.attempt) for exited in exits}
    by_time = sorted(exits, key=lambda exited: exited.ended)
    bad = [exited for exited in by_time if failed(exited)]
    first = _first([exited for exited in bad if not _is_consequence(exited, statements[exited.task])])
    if first is None:
        first = next(
            (exited for exited in by_time if exited.stopped and statements[exited.task].raised), None
        )
    if first is None and bad:
        first = next((exited for exited in by_time if exited.loss is Loss.UNREACHABLE), None)
    if first is None:  # the kill may have been another's: the kernel counts them per machine
        first = _first([exited for exited in bad if exited.oom_kills])
    if first is not None:
        return _verdict(first, statements, _alike(first, exits, statements))
    if bad:
        return _by_reports_of_peers(bad[0], {exited.task: exited for exited in exits}, statements)
    return Verdict(cause="no task failed by itself")


def of_hang(verdict: Verdict, exits: Sequence[TaskExited], statement_of: StatementOf) -> Verdict:
    """Add an exception before a hang to its verdict: of a task, or of its thread or child process."""
    odd = [task_exit for task_exit in exits if verdict.cause_task in ("", task_exit.task)]
    for exited in sorted(odd, key=lambda task_exit: task_exit.task):
        statement = statement_of(exited.task, exited.attempt)
        raised = statement.raised and "SignalException" not in statement.exception  # torchrun's, at our stop
        earlier = statement.failed_part or (f"it had raised {statement.exception}" if raised else "")
        if earlier or verdict.cause_task:
            cause = f"{verdict.cause}; {earlier}" if earlier else verdict.cause
            if not verdict.cause_task:  # the stacks do not show the cause
                what = verdict.cause.partition(":")[0]
                cause = f"{exited.task} on {exited.host}: {earlier}, and then {what}"
            return replace(
                verdict,
                cause_task=exited.task,
                cause_host=exited.host,
                cause=cause,
                last_lines=lastwords.excerpt(statement.lines) if earlier else lastwords.last(statement.lines),
            )
    return verdict


def _alike(
    first: TaskExited, exits: Sequence[TaskExited], statements: Mapping[str, Statement]
) -> list[TaskExited]:
    """Return all tasks that ended like this one, with the same exception; some may have been stopped."""
    signature = statements[first.task].signature
    if first.lost or first.oom_kills:
        return [first]
    if first.signal is not None or not signature:  # an end without output is most informative if all have it
        same = [exited for exited in exits if (exited.code, exited.signal) == (first.code, first.signal)]
        differ = len(same) < len(exits) or any(exited.stopped or exited.lost for exited in same)
        return [first] if differ else same
    ended = (
        exited
        for exited in exits
        if exited.code == first.code or (exited.stopped and statements[exited.task].exception)
    )
    return [exited for exited in ended if statements[exited.task].signature == signature]


def _first(roots: list[TaskExited]) -> TaskExited | None:
    """Return the earliest, lost tasks last: their recorded end is only when we gave them up."""
    return min(roots, key=lambda exited: (bool(exited.lost), exited.ended), default=None)


def _is_consequence(exited: TaskExited, statement: Statement) -> bool:
    """Return True if a peer caused it: only TensorFlow raises or aborts when a peer is gone."""
    by_itself = exited.lost or exited.signal not in (None, _ABORT)
    return not by_itself and statement.blames_peer


def _by_reports_of_peers(
    first: TaskExited, exits: dict[str, TaskExited], statements: Mapping[str, Statement]
) -> Verdict:
    """Return a verdict on the peer that a failed task names, or on that task if the peer failed, too."""
    statement = statements[first.task]
    peer = exits.get(statement.blamed)
    if peer is None or failed(peer):
        verdict = _verdict(first, statements, [first])
        done = (exited for exited in exits.values() if exited.code == 0 and not exited.stopped)
        early = [exited for exited in done if exited.ended < first.ended]
        if not early:
            return verdict
        # PyTorch and JAX do not say which peer is gone.
        before = duration(first.ended - max(exited.ended for exited in early))
        names = ranges.fold(exited.task for exited in early)
        why = f"{names} had ended with status 0, {before} earlier"
        hint = verdict.hint + _AFTER_A_RESTART * (first.attempt != "1")
        return replace(verdict, why="\n".join(filter(None, (why, verdict.why))), hint=hint)
    rule = statement.rule
    kind = rule.kind if rule and rule.kind in OF_A_PEER else FailureKind.PEER
    if rule and kind is FailureKind.INCARNATION:
        what, hint = "was restarted while the others continued", rule.advice
    elif peer.code == 0 and not peer.stopped:
        what = "finished while the others still needed it"
        hint = (
            "use the same steps_per_epoch, epochs, and amount of data in all tasks, and let all of them call"
            " `model.save`, each with its own path: a collective operation waits for all tasks"
            f"{_AFTER_A_RESTART * (first.attempt != '1')}"
        )
    elif kind is FailureKind.TIMEOUT:
        what = "was not ready in time"
        hint = f"read the end of its log; it hung, or was too slow, before it connected to {first.host}"
    else:
        what = "stopped answering"
        hint = f"`orchestrate preflight`, which tests every pair; {peer.task} may also have been frozen"
    cause = f"{peer.task} on {peer.host} {what}, according to {first.task} on {first.host}"
    last_lines = lastwords.excerpt(statements[peer.task].lines)
    why = f"{first.task} waited for it at {statement.where}" if statement.where else ""
    return Verdict(kind, peer.task, peer.host, cause, last_lines, hint, why)


def _verdict(exited: TaskExited, statements: Mapping[str, Statement], alike: Sequence[TaskExited]) -> Verdict:
    statement = statements[exited.task]
    kind = _kind(exited, statement)
    # The signal of a stop is ours.
    number = 0 if exited.stopped else exited.signal or shell_signal(exited.code)
    number = _XCPU if number == _KILL and "`ulimit -t`" in exited.note else number
    general = _KIND_HINTS.get(kind) or SIGNAL_HINTS.get(number) or _CODE_HINTS.get(exited.code or 0, "")
    if exited.lost.startswith("its container ended"):
        general = _CONTAINER_HINT
    rule = statement.rule
    special = rule.advice if rule and kind is rule.kind else ""
    hint = special or (_HELD_HINT if _held(exited, statement) else general.format(host=exited.host))
    if kind is FailureKind.MISMATCH and exited.attempt != "1":
        hint += _AFTER_A_RESTART
    cause = _cause(exited, kind, statement, _who(exited, alike, len(statements)))
    # The program's own advice: its host could have invented any text.
    advice = advised(exited.task, statement.report.hint) if statement.report else ""
    why = "\n".join(filter(None, (statement.why, advice))) if _may_explain(exited) else ""
    # No old traceback if a signal ended it.
    explains = exited.lost or _may_explain(exited)
    shown = lastwords.excerpt(statement.lines) if explains else lastwords.last(statement.lines)
    return Verdict(kind, exited.task, exited.host, cause, shown, hint, why)


def _may_explain(exited: TaskExited) -> bool:
    """Return True if the task's last exception can be the reason why it ended, or was stopped."""
    return not exited.lost and (exited.stopped or exited.signal in (None, _INTERRUPT, _ABORT))


def _held(exited: TaskExited, statement: Statement) -> str:
    """Return what kept a task alive after its exception until it was stopped; "" if it ended."""
    return statement.report.held if exited.stopped and statement.report else ""


def _kind(exited: TaskExited, statement: Statement) -> FailureKind:
    if exited.oom_kills and exited.loss is Loss.NONE:
        return FailureKind.OUT_OF_MEMORY
    if exited.lost:
        return _LOSSES[exited.loss]
    if exited.signal not in (None, _ABORT) and not exited.stopped:
        return FailureKind.SIGNAL
    if statement.rule is not None:
        return statement.rule.kind
    if statement.exception and not (statement.report and statement.report.is_exit):
        return FailureKind.EXCEPTION
    return FailureKind.SIGNAL if exited.signal or shell_signal(exited.code) else FailureKind.EXIT


def _who(exited: TaskExited, alike: Sequence[TaskExited], total: int) -> str:
    """Return `worker/2 on gpu-03`, `all 4 tasks`, or `worker/[0-2] (3 of 4 tasks)`."""
    if len(alike) < 2:
        return f"{exited.task} on {exited.host}"
    if len(alike) == total:
        return "both tasks" if total == 2 else f"all {total} tasks"
    return f"{ranges.fold(task_exit.task for task_exit in alike)} ({len(alike)} of {total} tasks)"


def _cause(exited: TaskExited, kind: FailureKind, statement: Statement, who: str) -> str:
    """Return `worker/2 on gpu-03 was killed by SIGKILL after 41 s`, and the exception if there is one."""
    if kind is FailureKind.ALLOCATION:
        return f"{exited.lost}, and {exited.task} is lost with it"
    if kind in (FailureKind.REBOOTED, FailureKind.HOST_LOST):
        return f"{exited.host}: {exited.lost}, and {exited.task} is lost with it"
    how = f"{who} {end_after(exited)}"
    if who != f"{exited.task} on {exited.host}":
        how = how.replace(" was ", " were ", 1)
    if held := _held(exited, statement):
        return f"{who} raised {statement.exception}, and {held} kept it from ending"
    explains = exited.signal is None or exited.stopped or (statement.report and _may_explain(exited))
    raised = statement.exception if explains else ""
    if exited.oom_kills and kind is FailureKind.OUT_OF_MEMORY:
        return _out_of_memory(exited, exited.lost or raised)
    if exited.lost:
        return f"{how}: {exited.lost}"
    if (number := shell_signal(exited.code)) and not raised:
        return f"{how} (128 + {number}: killed by {signal_name(number)})"
    native = lastwords.native(statement.lines) if exited.signal == _ABORT else ""
    because = raised or exited.note or native or lastwords.complaint(statement.lines)
    return f"{how}: {because}" if because else how


def _out_of_memory(exited: TaskExited, why: str) -> str:
    """Describe a kill by the kernel: of the task, or of one of its processes, after which it failed."""
    who = f"{exited.task} on {exited.host}"
    itself = exited.signal == _KILL or exited.code == 128 + _KILL
    after = f" after {duration(exited.seconds)}" if exited.seconds else ""
    if itself:
        return f"{who} ran out of memory{after}: the kernel killed it"
    how = f"{end(exited)}: {why}" if why else end(exited)
    return f"{who} ran out of memory{after}: the kernel killed one of its processes, and it {how}"
