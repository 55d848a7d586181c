"""What a viewer says of a keeper that does not do what it was asked for."""

from __future__ import annotations

import fcntl
import io
import subprocess
from pathlib import Path

import pytest

from orchestrator.cli.desk import watch
from orchestrator.cli.desk.frozen import what_ends_it
from orchestrator.cli.desk.interrupts import Interrupts
from orchestrator.errors import ExitStatus
from orchestrator.events import Noted, Outcome, RunEnded, Stamped, StopBy, StopRequested
from orchestrator.model import Order
from orchestrator.names import RunId
from orchestrator.render.plain import Plain
from orchestrator.store import RunFolder, RunReader
from orchestrator.store.eventlog import EventLog
from tests.unit import plans

RUN = RunId("20261121-010203-abcd")


class Screen(Plain):
    """Ends the run once what is waited for was shown, or after so many looks."""

    def __init__(self, folder: RunFolder, looks: int) -> None:
        super().__init__(io.StringIO(), io.StringIO())
        self.log, self.looks, self.notes = EventLog(folder), looks, list[str]()

    def handle(self, stamped: Stamped) -> None:
        if isinstance(stamped.event, Noted):
            self.notes.append(stamped.event.text)
            self.end()

    def tick(self) -> None:
        self.looks -= 1
        if self.looks == 0:
            self.end()

    def end(self) -> None:
        self.log(Stamped(1000.0, RunEnded(str(RUN), Outcome.STOPPED, 130, 1.0, "", "", (), "")))


@pytest.mark.parametrize(("begun", "looks"), [(False, 0), (True, 5)])
def test_a_frozen_keeper_is_named_to_who_stops_the_run(
    *, begun: bool, looks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "_DEAF", 0.01)
    folder = RunFolder(tmp_path, RUN)
    folder.create(plans.make(plans.host("gpu-1")))
    screen = Screen(folder, looks)
    if begun:
        screen.log(Stamped(1.0, StopRequested(StopBy.USER, "", 30.0)))
    with folder.lock.open("w") as lock, Interrupts() as interrupts:
        fcntl.flock(lock, fcntl.LOCK_EX)
        reader = RunReader(folder, wanted=lambda _task: False)
        assert watch.own(folder, reader, screen, interrupts, Order.STOP) == ExitStatus.INTERRUPTED
    if begun:
        assert screen.notes == []
    else:
        (said,) = screen.notes
        assert f": `fuser -k {folder.lock}` ends it on the machine that keeps the run; then" in said


def test_what_ends_a_keeper_on_this_machine_is_a_command_with_its_pid(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, RUN)
    folder.create(plans.make(plans.host("gpu-1")))
    with folder.lock.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with subprocess.Popen(["sleep", "1000"], pass_fds=[lock.fileno()]) as keeper:
            assert what_ends_it(folder) == f"`kill -9 {keeper.pid}` ends it"
            keeper.kill()
