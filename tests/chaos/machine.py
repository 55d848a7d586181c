"""One node of the container cluster, inspected and modified from outside: no helper runs in it.

Needs root on the Docker host: its processes are found in the host's /proc, its network is entered with
nsenter.
"""

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.node.serve.bootstrap import COMMAND_CODE
from tests.cluster.machines import Node
from tests.processes import cookies, opened, pids

SMALL = "/small"  # a small disk
_FILLER = "filler"
_FIRST_USER = 1000  # uid

_SSH, _LISTEN = ":0016", "0A"  # port 22 and the state of a socket in /proc/net/tcp


@dataclass(frozen=True)
class Process:
    pid: int  # on the Docker host
    ppid: int
    name: str
    argv: tuple[bytes, ...]
    cookie: str  # ORCHESTRATE_TASK, "" for processes of no task
    uid: int

    def __str__(self) -> str:
        line = b" ".join(self.argv).decode(errors="replace")
        return f"{self.pid} {self.name} [{self.cookie}] {line[:80]}"

    @property
    def is_ours(self) -> bool:
        """Return whether it is an agent, guard, or supervisor, which share the agent's command line."""
        return COMMAND_CODE.encode() in self.argv

    @property
    def is_agent(self) -> bool:
        return self.is_ours and not self.name.startswith("orch-")


@dataclass(frozen=True)
class Machine:
    node: Node
    state: str  # the location of our state on it

    @property
    def name(self) -> str:
        return self.node.name

    # --- the container ---

    def docker(self, verb: str, *options: str) -> str:
        argv = ["docker", verb, *options, self.node.container]
        return subprocess.run(argv, check=True, capture_output=True, text=True, timeout=60).stdout.strip()

    @property
    def init(self) -> int:
        """Return the host's pid of its pid 1; 0 if it is not running."""
        return int(self.docker("inspect", "--format", "{{.State.Pid}}"))

    def start(self) -> None:
        """Start it again, whatever was done to it."""
        status = self.docker("inspect", "--format", "{{.State.Status}}")
        if status == "paused":
            self.docker("unpause")
        elif status != "running":
            self.docker("start")

    def answers(self) -> bool:
        """Return whether its sshd listens, after restarting one that was killed."""
        tables = (Path(f"/proc/{self.init}/net/{name}").read_text() for name in ("tcp", "tcp6"))
        rows = (row.split() for table in tables for row in table.splitlines()[1:])
        return any(row[1].endswith(_SSH) and row[3] == _LISTEN for row in rows)

    def in_network(self, *argv: str) -> None:
        """Run a program of the Docker host in the machine's network."""
        command = ["nsenter", "--target", str(self.init), "--net", *argv]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=30)
        if done.returncode:
            raise RuntimeError(f"{self.name}: {' '.join(argv)}: {done.stderr.strip()}")

    # --- its processes ---

    def processes(self) -> list[Process]:
        """Return all live processes in it."""
        init = self.init
        if not init:
            return []
        space = os.readlink(f"/proc/{init}/ns/pid")
        return [found for pid in pids() if (found := _look(pid, space)) is not None]

    def agents(self) -> list[Process]:
        return [process for process in self.processes() if process.is_agent]

    def supervisors(self, run: str) -> list[Process]:
        return [one for one in self.processes() if one.name == "orch-supervisor"[:15] and _holds(one, run)]

    def guards(self, run: str) -> list[Process]:
        return [one for one in self.processes() if one.name == "orch-guard" and _holds(one, run)]

    def tasks(self, run: str) -> list[Process]:
        """Return the processes started by supervisors, once they have executed the program."""
        ours = {one.pid for one in self.supervisors(run)}
        return [one for one in self.processes() if one.ppid in ours and one.cookie and not one.is_ours]

    def left_of(self, run: str) -> list[Process]:
        """Return live processes of a run, which have its cookie or one of its files open."""
        return [
            one
            for one in self.processes()
            if one.cookie.startswith(f"{run}/") or (one.is_ours and not one.is_agent and _holds(one, run))
        ]

    def of_the_user(self) -> list[Process]:
        """Return processes started by its logins, except sshd's own, which may wait for a lost network."""
        return [one for one in self.processes() if one.uid >= _FIRST_USER and not one.name.startswith("sshd")]

    def sshds(self) -> list[Process]:
        return [one for one in self.processes() if one.name.startswith("sshd")]

    # --- its files ---

    def inside(self, path: str) -> Path:
        """Return a path of the machine as the Docker host can open it."""
        return Path(f"/proc/{self.init}/root{path}")

    def task_folder(self, run: str, attempt: str, task: str) -> Path:
        return self.inside(f"{self.state}/runs/{run}/attempts/{attempt}/{task.replace('/', '-')}")

    def facts(self, run: str, attempt: str, task: str) -> dict[str, Any] | None:
        """Return a task's state.json; None if the node has none."""
        try:
            found: dict[str, Any] = json.loads(
                (self.task_folder(run, attempt, task) / "state.json").read_bytes()
            )
        except FileNotFoundError:
            return None
        return found

    def fill(self) -> None:
        """Fill the small disk."""
        fill(self.inside(SMALL))

    def empty(self) -> None:
        (self.inside(SMALL) / _FILLER).unlink(missing_ok=True)

    def wipe(self) -> None:
        """Empty the small disk: leftovers of runs are no longer needed."""
        folder = self.inside(SMALL)
        subprocess.run(["find", str(folder), "-mindepth", "1", "-delete"], check=True, timeout=60)


def fill(folder: Path) -> None:
    """Write a file until not even one more byte fits."""
    fd = os.open(folder / _FILLER, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        for size in (1 << 16, 1 << 12, 1):
            try:
                while True:
                    os.write(fd, bytes(size))
            except OSError:
                continue
    finally:
        os.close(fd)


def _look(pid: int, space: str) -> Process | None:
    """Return a process if it is alive and in that pid namespace."""
    try:
        if os.readlink(f"/proc/{pid}/ns/pid") != space:
            return None
        _, _, rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")
        state, ppid = rest.split()[:2]
        if state in "ZX":
            return None
        argv = tuple(Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:-1])
        uid = Path(f"/proc/{pid}").stat().st_uid
        name = Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return None
    return Process(pid, int(ppid), name, argv, next(iter(cookies(pid)), ""), uid)


def _holds(process: Process, run: str) -> bool:
    """Return whether it has a file of the run open."""
    return any(f"/runs/{run}/" in link for link in opened(process.pid))
