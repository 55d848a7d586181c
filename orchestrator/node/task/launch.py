"""What a supervisor needs to know and to hold to run one task; made before the first fork."""

from __future__ import annotations

from ..base.paths import Paths, TaskFolder
from ..base.tuples import NamedTuple


class Launch(NamedTuple):
    """The task as data. It holds secrets: it is inherited through fork and never written down."""

    paths: Paths
    folder: TaskFolder
    argv: list[bytes]
    env: dict[bytes, bytes]
    cwd: str
    grace: float
    endless: bool  # ends only when a keeper says so: without one, when its lifeline is over
    lifeline: float | None  # None: lives without a keeper for ever
    log_cap: int | None
    fence: float | None  # ends when neither it nor a keeper was heard for so long; None: never


class Handles(NamedTuple):
    """Open descriptors, none of them inherited by the task."""

    lock: int  # locked: the task is not over. One open file shared by guard and supervisor
    control: int  # the FIFO, open for both ways so that it never ends
    log_read: int
    log_write: int
    answer: int  # where `start` waits for how it went
    leases: list[int]  # locks on ports, kept for as long as the task lives

    def all(self) -> list[int]:
        return [self.lock, self.control, self.log_read, self.log_write, self.answer, *self.leases]
