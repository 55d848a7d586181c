"""Which task failed first, and why: the one thing a person wants to know of a failed run. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from orchestrator import lastwords
from orchestrator.ends import end_after, failed
from orchestrator.events import TaskExited
from orchestrator.text import signal_name

Tail: TypeAlias = Callable[[str, str], Sequence[str]]  # the last lines of (task, attempt)

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


@dataclass(frozen=True)
class Verdict:
    task: str  # "" when no task is to blame
    host: str
    cause: str  # one line: who and why
    last_lines: tuple[str, ...]
    hint: str


def judge(exits: Sequence[TaskExited], tail: Tail) -> Verdict:
    """The first cause among the exits of a run (of its last attempt).

    It is the earliest failure that is no consequence of another. Tasks that we stopped are no causes,
    unless nothing else is and their last words are an exception: they hung while they went down.
    """
    exits = [one for one in exits if one.attempt == exits[-1].attempt] if exits else []
    told = {one.task: tuple(tail(one.task, one.attempt)) for one in exits}
    by_time = sorted(exits, key=lambda one: one.ended)
    bad = [one for one in by_time if failed(one)]
    first = _first([one for one in bad if not _is_consequence(one, told[one.task])])
    if first is None:
        first = next((one for one in by_time if one.stopped and _raised(told[one.task])), None)
    if first is not None:
        return _verdict(first, _cause(first, told[first.task]), told[first.task])
    if not bad:
        return Verdict("", "", "no task failed by itself", (), "")
    return _by_hearsay(bad[0], {one.task: one for one in exits}, told)


def _first(roots: list[TaskExited]) -> TaskExited | None:
    """The earliest whose end is known; the time of a lost task's end is only when we gave it up."""
    return min(roots, key=lambda one: (bool(one.lost), one.ended), default=None)


def _is_consequence(exited: TaskExited, lines: tuple[str, ...]) -> bool:
    """TensorFlow ends with an exception, or aborts, when a peer is gone; nothing else is the peer's doing."""
    aborts = exited.signal == 6
    return not exited.lost and (exited.signal is None or aborts) and lastwords.blames_peer(lines)


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
        return _verdict(first, _cause(first, told[first.task]), told[first.task])
    if peer.code == 0 and not peer.stopped:
        what = "finished while the others still needed it"
        hint = "steps_per_epoch, epochs and the amount of data must be equal on all tasks"
    else:
        what = "stopped answering"
        hint = f"it was frozen, or {first.host} lost the way to it: orchestrate preflight tests every pair"
    cause = f"{peer.task} on {peer.host} {what}, says {first.task} on {first.host}"
    return Verdict(peer.task, peer.host, cause, told[peer.task], hint)


def _cause(exited: TaskExited, lines: tuple[str, ...]) -> str:
    """`worker/2 on gpu-03 was killed by SIGKILL after 41 s`, and the exception where there is one."""
    said = f"{exited.task} on {exited.host} {end_after(exited)}"
    if exited.lost:
        return f"{said}: {exited.lost}"
    if exited.code is not None and exited.code > 128 and not lastwords.exception(lines):
        return f"{said} (a shell's word for {signal_name(exited.code - 128)})"
    raised = lastwords.exception(lines) if exited.signal is None else ""
    because = raised or exited.note
    return f"{said}: {because}" if because else said


def _verdict(exited: TaskExited, cause: str, lines: tuple[str, ...]) -> Verdict:
    known = _SIGNAL_HINTS.get(exited.signal or (exited.code or 0) - 128, "")
    general = (known or _CODE_HINTS.get(exited.code or 0, "")).format(host=exited.host)
    special = "" if exited.signal == 9 else lastwords.hint(lines)
    return Verdict(exited.task, exited.host, cause, lines, special or general)
