"""Which task failed first, and why: the one thing a person wants to know of a failed run. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from orchestrator import lastwords
from orchestrator.ends import end, end_after, failed
from orchestrator.events import Kind, Loss, TaskExited
from orchestrator.rules import OF_A_PEER
from orchestrator.text import duration, signal_name, size

Tail: TypeAlias = Callable[[str, str], Sequence[str]]  # the last LOOKED_AT lines of (task, attempt)

_ABORT, _KILL = 6, 9

_SIGNAL_HINTS = {
    1: "journalctl on {host}: SIGHUP comes from a session or terminal that was closed",
    4: "another build of TensorFlow: this one uses an instruction that {host}'s CPU lacks",
    6: "read its last lines: native code gave up (abort) and said why",
    7: "df -h /dev/shm on {host}: a mapped file or shared memory is full or gone",
    9: "dmesg -T | grep -i oom, on {host}: SIGKILL is `kill -9` or the kernel's out-of-memory killer",
    11: "PYTHONFAULTHANDLER=1 under [job.env] shows where native code crashed",
    15: "journalctl on {host}: a shutdown, a batch system or a person sent it TERM",
    24: "ulimit -t on {host}: it reached its limit of CPU time",
    25: "ulimit -f on {host}: it reached its limit of file size",
}

_CODE_HINTS = {
    126: "chmod +x on {host}, and a look at the command's first line: it is not executable",
    127: "`setup` in [job], or PATH on {host}: a command was not found there",
}

_KIND_HINTS = {
    Kind.OUT_OF_MEMORY: "a smaller batch, fewer tasks on {host}, or more memory for them",
    Kind.REBOOTED: "last -x, and journalctl -b -1, on {host}: power, an update or a person restarted it",
    Kind.HOST_LOST: "whether {host} still answers: its power, its network; then orchestrate preflight",
}

_LOSSES = {
    Loss.NONE: Kind.LOST,
    Loss.RESTARTED: Kind.REBOOTED,
    Loss.UNREACHABLE: Kind.HOST_LOST,
    Loss.UNSTARTED: Kind.START,
}


@dataclass(frozen=True)
class Verdict:
    kind: Kind
    task: str  # "" when no task is to blame
    host: str
    cause: str  # one line: who and why
    last_lines: tuple[str, ...]  # its last traceback where that ended it, else the end of its log
    hint: str


NOBODY = Verdict(Kind.NONE, "", "", "no task failed by itself", (), "")


def judge(exits: Sequence[TaskExited], tail: Tail) -> Verdict:
    """The first cause among the exits of a run (of its last attempt).

    It is the earliest failure that is no consequence of another. Tasks that we stopped are no causes,
    unless nothing else is and their last words are an exception (they hung while they went down), or
    their host is silent.
    """
    exits = [one for one in exits if one.attempt == exits[-1].attempt] if exits else []
    told = {one.task: tuple(tail(one.task, one.attempt)) for one in exits}
    by_time = sorted(exits, key=lambda one: one.ended)
    bad = [one for one in by_time if failed(one)]
    first = _first([one for one in bad if not _is_consequence(one, told[one.task])])
    if first is None:
        first = next((one for one in by_time if one.stopped and _raised(told[one.task])), None)
    if first is None and bad:
        first = next((one for one in by_time if one.loss is Loss.UNREACHABLE), None)
    if first is None:  # the kill may have been another's: the kernel counts them by machine
        first = _first([one for one in bad if one.oom_kills])
    if first is not None:
        return _verdict(first, told[first.task])
    return _by_hearsay(bad[0], {one.task: one for one in exits}, told) if bad else NOBODY


def _first(roots: list[TaskExited]) -> TaskExited | None:
    """The earliest whose end is known; the time of a lost task's end is only when we gave it up."""
    return min(roots, key=lambda one: (bool(one.lost), one.ended), default=None)


def _is_consequence(exited: TaskExited, lines: tuple[str, ...]) -> bool:
    """TensorFlow ends with an exception, or aborts, when a peer is gone; nothing else is the peer's doing."""
    by_itself = exited.lost or exited.signal not in (None, _ABORT)
    return not by_itself and lastwords.blames_peer(lines)


def _raised(lines: tuple[str, ...]) -> bool:
    """Whether its log ends in an exception of its own making."""
    said = lastwords.exception(lines)
    return (
        bool(said)
        and not lastwords.blames_peer(lines)
        and not said.startswith(("KeyboardInterrupt", "SystemExit"))
    )


def _by_hearsay(first: TaskExited, exits: dict[str, TaskExited], told: dict[str, tuple[str, ...]]) -> Verdict:
    """All that failed name a peer: the peer they name, if it is one of ours and did not fail itself."""
    peer = exits.get(lastwords.accused(told[first.task]))
    if peer is None or failed(peer):
        return _verdict(first, told[first.task])
    known = lastwords.rule(told[first.task])
    kind = known.kind if known and known.kind in OF_A_PEER else Kind.PEER
    if known and kind is Kind.INCARNATION:
        what, hint = "was started again alone", known.advice
    elif peer.code == 0 and not peer.stopped:
        what = "finished while the others still needed it"
        hint = "steps_per_epoch, epochs and the amount of data must be equal on all tasks"
    elif kind is Kind.TIMEOUT:
        what = "was not ready in time"
        hint = f"the end of its log: it hung before it reached {first.host}, or takes longer than the others"
    else:
        what = "stopped answering"
        hint = f"it was frozen, or {first.host} lost the way to it: orchestrate preflight tests every pair"
    cause = f"{peer.task} on {peer.host} {what}, says {first.task} on {first.host}"
    return Verdict(kind, peer.task, peer.host, cause, lastwords.excerpt(told[peer.task]), hint)


def _verdict(exited: TaskExited, lines: tuple[str, ...]) -> Verdict:
    kind = _kind(exited, lines)
    known = lastwords.rule(lines)
    number = exited.signal or (exited.code or 0) - 128
    general = _KIND_HINTS.get(kind) or _SIGNAL_HINTS.get(number) or _CODE_HINTS.get(exited.code or 0, "")
    special = known.advice if known and kind is known.kind else ""
    hint = special or general.format(host=exited.host)
    return Verdict(kind, exited.task, exited.host, _cause(exited, kind, lines), _shown(exited, lines), hint)


def _kind(exited: TaskExited, lines: tuple[str, ...]) -> Kind:
    if exited.oom_kills and exited.loss is Loss.NONE:
        return Kind.OUT_OF_MEMORY
    if exited.lost:
        return _LOSSES[exited.loss]
    if exited.signal not in (None, _ABORT) and not exited.stopped:
        return Kind.SIGNAL
    if (known := lastwords.rule(lines)) is not None:
        return known.kind
    if lastwords.exception(lines):
        return Kind.EXCEPTION
    return Kind.SIGNAL if exited.signal or (exited.code or 0) > 128 else Kind.EXIT


def _cause(exited: TaskExited, kind: Kind, lines: tuple[str, ...]) -> str:
    """`worker/2 on gpu-03 was killed by SIGKILL after 41 s`, and the exception where there is one."""
    if kind in (Kind.REBOOTED, Kind.HOST_LOST):
        return f"{exited.host}: {exited.lost}, and {exited.task} is lost with it"
    who = f"{exited.task} on {exited.host}"
    said = f"{who} {end_after(exited)}"
    raised = lastwords.exception(lines) if exited.signal is None else ""
    if exited.oom_kills and kind is Kind.OUT_OF_MEMORY:
        return _out_of_memory(exited, exited.lost or raised)
    if exited.lost:
        return f"{said}: {exited.lost}"
    if exited.code is not None and exited.code > 128 and not raised:
        return f"{said} (a shell's word for {signal_name(exited.code - 128)})"
    because = raised or exited.note
    return f"{said}: {because}" if because else said


def _out_of_memory(exited: TaskExited, why: str) -> str:
    """What the kernel killed: the task itself, or one of its processes, of which it then failed."""
    limit = f" (limit {size(exited.oom_limit)})" if exited.oom_limit else ""
    who = f"{exited.task} on {exited.host}"
    itself = exited.signal == _KILL or exited.code == 128 + _KILL
    after = f" after {duration(exited.seconds)}" if exited.seconds else ""
    if itself:
        return f"{who} ran out of memory{after}: the kernel killed it{limit}"
    how = f"{end(exited)}: {why}" if why else end(exited)
    return f"{who} ran out of memory{after}: the kernel killed a process of it{limit}, and it {how}"


def _shown(exited: TaskExited, lines: tuple[str, ...]) -> tuple[str, ...]:
    """No traceback of long ago where a signal ended it."""
    return lastwords.last(lines) if exited.signal not in (None, _ABORT) else lastwords.excerpt(lines)
