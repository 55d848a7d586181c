"""The tasks of a synchronous cluster end together, for each needs the others until its very last act.

The leader's process holds TensorFlow's coordination service: one that has ended while another task still
exports or evaluates makes that one print errors of a lost cluster, or fail.
"""

from __future__ import annotations

from collections.abc import Sequence

from worker_entry.stopping import Board

END = "worker_entry/end"


def together(own: str, tasks: Sequence[str], board: Board) -> None:
    """Return when all `tasks`, ourselves too, have come here; what one of them lacks does not fail us."""
    try:
        board.put(f"{END}/{own}", "here")
        for task in tasks:
            board.get(f"{END}/{task}")
    except Exception as error:
        print(f"another task did not end well: {type(error).__name__}", flush=True)
