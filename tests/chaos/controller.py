"""The controller's side of a round: the command as a user types it, and the run's folder."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.events import encode
from orchestrator.names import RunId
from orchestrator.store import RunFolder
from orchestrator.store.reader import events_of
from orchestrator.timings import VARIABLE
from tests.processes import holder

ROOT = Path(__file__).parents[2]

# A hanging host is given up after 20 s, and awaited for 30 s at the end: most rounds have less time.
IMPATIENT = {"silence": 3.0, "beat": 0.5, "stop_unreachable": 4.0, "stop_impatient": 3.0, "host_return": 6.0}


@dataclass
class Controller:
    """Runs `orchestrate` in a project's folder with its own state folder."""

    folder: Path
    timings: Mapping[str, float] = field(default_factory=dict)
    _count: int = 0
    _started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def project(self) -> Path:
        return self.folder / "project"

    @property
    def state(self) -> Path:
        return self.folder / "state"

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        """Start `orchestrate words...`; its output is available from `said(process)`."""
        self._count += 1
        kept = {
            k: v for k, v in os.environ.items() if k not in ("PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE")
        }
        with (self.folder / f"said-{self._count}").open("wb") as said:
            process = subprocess.Popen(
                [sys.executable, "-m", "orchestrator", *words],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                cwd=self.project,
                env={
                    **kept,
                    "XDG_STATE_HOME": str(self.state),
                    "XDG_CONFIG_HOME": str(self.state),
                    "PYTHONPATH": str(ROOT),
                    VARIABLE: json.dumps(dict(self.timings)),
                },
            )
        self._started.append(process)
        return process

    def text(self, process: subprocess.Popen[bytes]) -> str:
        number = self._started.index(process) + 1
        return (self.folder / f"said-{number}").read_text(errors="replace")

    @property
    def runs(self) -> Path:
        return self.state / "orchestrate" / "runs"

    def newest(self) -> str:
        """Return the id of the newest run; "" if there is none."""
        if not self.runs.is_dir():
            return ""
        return max((path.name for path in self.runs.iterdir() if (path / "plan.json").exists()), default="")

    def run_folder(self, run: str) -> Path:
        return self.runs / run

    def events(self, run: str) -> list[dict[str, Any]]:
        """Return the events as a viewer reads them."""
        return [json.loads(encode(one)) for one in events_of(RunFolder(self.runs, RunId(run)))]

    def ended(self, run: str) -> bool:
        return any(event["event"] == "RunEnded" for event in self.events(run))

    def keeper(self, run: str) -> int:
        """Return the pid of the process that holds the run's lock; 0 if there is none."""
        launchers = (process.pid for process in self._started)
        return holder(self.run_folder(run) / "keeper.lock", *launchers)

    def close(self) -> None:
        """Kill processes that a failed round may have left."""
        for process in self._started:
            if process.poll() is None:
                process.kill()
                process.wait()
        for folder in self.runs.iterdir() if self.runs.is_dir() else ():
            while keeper := self.keeper(folder.name):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(keeper, 9)
