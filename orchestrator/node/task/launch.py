"""What a supervisor needs to know and to hold to run one task; made before the first fork."""

from __future__ import annotations

from ..base.paths import Paths, TaskFolder
from ..base.tuples import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Optional


class Launch(NamedTuple):
    """The task as data. It holds secrets: it is inherited through fork and never written down."""

    paths: Paths
    folder: TaskFolder
    argv: List[bytes]
    env: Dict[bytes, bytes]
    cwd: str
    grace: float
    endless: bool  # ends only when a keeper says so: without one, when its lifeline is over
    lifeline: Optional[float]  # None: lives without a keeper for ever
    log_cap: Optional[int]
    fence: Optional[float]  # ends when neither it nor a keeper was heard for so long; None: never


class Handles(NamedTuple):
    """Open descriptors, none of them inherited by the task."""

    lock: int  # locked: the task is not over. One open file shared by guard and supervisor
    control: int  # the FIFO, open for both ways so that it never ends
    log_read: int
    log_write: int
    answer: int  # where `start` waits for how it went
    leases: List[int]  # locks on ports, kept for as long as the task lives

    def all(self) -> List[int]:
        return [self.lock, self.control, self.log_read, self.log_write, self.answer, *self.leases]
