"""The keeper's ear: viewers' requests from the control FIFO, taken by a thread of its own."""

from __future__ import annotations

import json
import os
import select
import threading

from orchestrator.errors import ExitStatus
from orchestrator.phases.context import Asked, Run, log

_LOOK = 2.0  # seconds between two looks at whether the run's folder is still there


class Control:
    """Takes requests for as long as the keeper lives; while `cancels`, one ends whatever is waited for."""

    def __init__(self, run: Run, fifo: int) -> None:
        self.cancels = True
        self._run = run
        self._fifo = fifo
        threading.Thread(target=self._listen, name="control", daemon=True).start()

    def _listen(self) -> None:
        buffer = b""
        while True:
            if select.select([self._fifo], [], [], _LOOK)[0]:
                *lines, buffer = (buffer + os.read(self._fifo, 4096)).split(b"\n")
                for line in lines:
                    self._hear(line)
            elif not self._run.folder.lock.exists():
                # Nobody can see or stop what we keep. The nodes go on, and from a new folder it can be kept.
                log.error("the run's folder was removed: its keeper leaves")
                os._exit(ExitStatus.BUG)

    def _hear(self, line: bytes) -> None:
        try:
            want = json.loads(line).get("want")
        except (ValueError, AttributeError):
            return
        if want not in ("stop", "kill"):
            return
        # Cancelled first: whoever sees that it was asked for may wait for hosts again.
        if self.cancels and not self._run.stop.asked:
            self._run.fleet.cancel()
        self._run.stop.ask(kill=want == "kill")
        self._run.inbox.put(Asked(kill=want == "kill"))
