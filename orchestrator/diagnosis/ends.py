"""Words for a task's end, wherever it is shown. Pure."""

from __future__ import annotations

from orchestrator.events import Loss, TaskExited
from orchestrator.text import duration, signal_name

_SIGINT, _SIGKILL, _SIGTERM = 2, 9, 15


def end(exited: TaskExited) -> str:
    """`finished`, `was stopped`, `exited with 3`, `was killed by SIGKILL`: follows the task's name."""
    if exited.loss is Loss.UNSTARTED:
        return "was not started"
    if exited.lost:
        return "is lost"
    if exited.stopped:
        return "was stopped" + _unlike_a_stop(exited)
    if exited.signal is not None:
        return f"was killed by {signal_name(exited.signal)}"
    return "finished" if exited.code == 0 else f"exited with {exited.code}"


def end_after(exited: TaskExited) -> str:
    """Word the end with the time that the task took, where it is known: `exited with 3 after 41 s`."""
    known = exited.seconds and exited.loss is not Loss.UNSTARTED
    return end(exited) + (f" after {duration(exited.seconds)}" if known else "")


def failed(exited: TaskExited) -> bool:
    """Return True if the task ended badly by itself."""
    return not exited.stopped and (bool(exited.lost) or exited.code != 0)


def _unlike_a_stop(exited: TaskExited) -> str:
    """Word an end after a stop that nobody expects: the task had to be killed, or it failed."""
    if exited.signal == _SIGKILL:
        return ", by SIGKILL"
    if exited.signal in (None, _SIGTERM, _SIGINT) and exited.code in (None, 0, 128 + _SIGTERM):
        return ""
    return f", by {signal_name(exited.signal)}" if exited.signal else f", with exit status {exited.code}"
