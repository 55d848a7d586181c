"""Four nodes of a real Slurm on this machine, for tests."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.processes import cmdline, environ, pids
from tests.ssh.runs.desk import Controller, until

ROOT = Path(__file__).parents[2]
LIMIT = 90.0  # seconds; an upper bound, never a fixed wait


class Slurm(Controller):
    """The result of `scripts/slurm up`, and a user with a project and a home folder there."""

    def __init__(self, conf: Path, folder: Path) -> None:
        super().__init__(folder, {"least_fence": 25.0})  # more than the 20 s between two messages of a keeper
        self.conf = conf
        self._jobs: list[str] = []
        (self.folder / "home").mkdir()
        orchestrate = self.folder / "orchestrate"
        code = "from orchestrator.cli.main import run; run()"
        orchestrate.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -c "{code}" "$@"\n')
        orchestrate.chmod(0o755)

    def environment(self, **more: str) -> dict[str, str]:
        kept = {name: value for name, value in super().environment().items() if not name.startswith("SLURM")}
        own = {
            "PATH": f"{self.folder}:{os.environ['PATH']}",
            "SLURM_CONF": str(self.conf),
            "HOME": str(self.folder / "home"),  # on every node: ~/orchestrate is in it
        }
        return {**kept, **own, **more}

    def run(self, *words: str, status: int | None = 0, **environ: str) -> str:
        """Run a command on the login node; return its stdout and stderr; it must end with `status`."""
        done = subprocess.run(
            words,
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self.project,
            env=self.environment(**environ),
            timeout=LIMIT,
        )
        assert status in (None, done.returncode), f"{words}: {done.returncode}\n{done.stdout}"
        return done.stdout

    def session(self, *words: str, **environ: str) -> subprocess.Popen[bytes]:
        """Start a command on the login node in its own session, with output to `out`."""
        with (self.folder / "out").open("ab") as out:
            return subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                cwd=self.project,
                env=self.environment(**environ),
                start_new_session=True,
            )

    def submit(self, options: str, *words: str) -> Job:
        """Submit a batch file whose one command is `orchestrate launch --hosts slurm words...`."""
        line = shlex.join(["orchestrate", "launch", "--hosts", "slurm", *words])
        return self.batch(self.script("job.sbatch", f"#!/bin/bash\nexec {line}\n"), *options.split())

    def batch(self, file: str, *options: str) -> Job:
        """Submit a batch file."""
        output = str(self.folder / "%j.out")
        number = self.run("sbatch", "--parsable", "--output", output, *options, file).strip()
        self._jobs.append(number)
        return Job(self, number)

    def allocate(self, *options: str) -> Job:
        """Hold nodes independently of any process: `salloc --no-shell`."""
        output = self.run("salloc", "--no-shell", *options)
        (number,) = re.findall(r"Granted job allocation (\d+)", output)
        self._jobs.append(number)
        return Job(self, number)

    def close(self) -> None:
        """End every job, so that the nodes are idle again."""
        if self._jobs:
            self.run("scancel", "--quiet", *self._jobs, status=None)
        self.run("scontrol", "update", "nodename=n[1-4]", "state=resume", status=None)
        until("the nodes are idle", lambda: self.run("sinfo", "-hNt", "idle").count("\n") == 4, LIMIT)
        super().close()

    def runs(self) -> list[Path]:
        return sorted(self._runs())

    def ended(self) -> dict[str, Any]:
        """Wait for the newest run to end, and return its RunEnded."""
        return dict(until("the run has ended", lambda: self.named("RunEnded"), LIMIT)[0])

    def alive(self, variable: str = "") -> dict[int, str]:
        """Return the processes with a task's cookie, and optionally a variable, on any node."""
        marks = [f"\0ORCHESTRATE_TASK={run.name}/" for run in self.runs()]
        return {
            pid: command
            for pid, command, environ in processes()
            if any(mark in environ for mark in marks) and f"\0{variable}" in environ
        }


@dataclass(frozen=True)
class Job:
    slurm: Slurm
    number: str

    @property
    def output(self) -> str:
        path = self.slurm.folder / f"{self.number}.out"
        return path.read_text(errors="replace") if path.exists() else ""

    def prints(self, text: str) -> None:
        until(f"{text!r} in\n{self.output}", lambda: text in self.output, LIMIT)

    def wait(self, limit: float = LIMIT) -> str:
        """Wait for the job, and return the output of its batch file."""
        until("the job is over", lambda: not self.slurm.run("squeue", "-hj", self.number, status=None), limit)
        return self.output


def processes() -> Iterator[tuple[int, str, str]]:
    for pid in pids():
        yield pid, cmdline(pid).decode(errors="replace"), f"\0{environ(pid).decode(errors='replace')}"
