"""The keeper's ear: viewers' requests from the control FIFO, taken by a thread of its own."""

from __future__ import annotations

import json
import os
import select
import threading
import time

from orchestrator.errors import ExitStatus, OrchestrateError
from orchestrator.model import Order
from orchestrator.phases.context import Run, ViewerRequest, log

_LOOK = 2.0  # seconds between two looks at whether the run's folder is still there


class Control:
    """Takes requests for as long as the keeper lives; while `cancels`, one ends whatever is waited for."""

    def __init__(self, run: Run, fifo: int) -> None:
        self.cancels = True
        self._run = run
        self._fifo = fifo

    def listen(self) -> None:
        threading.Thread(target=self._listen, name="control", daemon=True).start()

    def _listen(self) -> None:
        buffer = b""
        while True:
            if not self._run.folder.is_control(self._fifo):
                self._open_again()
            if select.select([self._fifo], [], [], _LOOK)[0]:
                *lines, buffer = (buffer + os.read(self._fifo, 4096)).split(b"\n")
                for line in lines:
                    self._hear(line)
            elif self._is_removed():
                # Nobody can see or stop what we keep. The nodes continue, and a new folder can keep the run.
                log.error("the run's folder was removed: its keeper leaves")
                os._exit(ExitStatus.BUG)

    def _is_removed(self) -> bool:
        """A disk that does not answer for a while takes no folder away."""
        try:
            self._run.folder.lock.lstat()
        except FileNotFoundError:
            return True
        except OSError as error:
            log.warning("the run's folder cannot be looked at: %s", error)
        return False

    def _open_again(self) -> None:
        """Viewers write to another FIFO, or to none: make it again."""
        try:
            fifo = self._run.folder.open_control()
        except OrchestrateError as error:
            log.warning("%s: %s", error.what, error.why)
            return
        os.dup2(fifo, self._fifo, inheritable=False)
        os.close(fifo)

    def _hear(self, line: bytes) -> None:
        try:
            order = Order(json.loads(line).get("want"))
        except (ValueError, AttributeError):
            return
        match order:
            case Order.VITALS:
                self._run.watched = time.monotonic()
            case Order.STACKS:
                self._run.wants_stacks.set()
            case Order.STOP | Order.KILL:
                self._stop(kill=order is Order.KILL)

    def _stop(self, *, kill: bool) -> None:
        # Cancelled first: whoever sees that it was asked for may wait for hosts again.
        if self.cancels and not self._run.stop.asked:
            self._run.fleet.cancel()
        self._run.stop.ask(kill=kill)
        self._run.inbox.put(ViewerRequest(kill=kill))
