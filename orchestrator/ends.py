"""How a task's end is worded, wherever it is shown. Pure."""

from __future__ import annotations

from orchestrator.events import TaskExited
from orchestrator.text import signal_name

_SIGINT, _SIGKILL, _SIGTERM = 2, 9, 15


def end(exited: TaskExited) -> str:
    """`finished`, `stopped`, `exited with 3`, `was killed by SIGKILL`, `is lost`: follows the task's name."""
    if exited.lost:
        return "is lost"
    if exited.stopped:
        return "was stopped" + _how(exited)
    if exited.signal is not None:
        return f"was killed by {signal_name(exited.signal)}"
    return "finished" if exited.code == 0 else f"exited with {exited.code}"


def _how(exited: TaskExited) -> str:
    """What a stop ended in, where it was not what one expects: it had to be killed, or it failed."""
    if exited.signal == _SIGKILL:
        return ", by SIGKILL"
    if exited.signal in (None, _SIGTERM, _SIGINT) and exited.code in (None, 0, 128 + _SIGTERM):
        return ""
    return f", by {signal_name(exited.signal)}" if exited.signal else f", with exit status {exited.code}"
