"""A machine with agents, in its own folders and with its own run; nothing is left at the end."""

import uuid
from pathlib import Path
from typing import Any

from orchestrator.node.base import paths, procs
from orchestrator.node.task import state
from tests.node.agent_client import AgentClient
from tests.node.harness import unlocked, until


class Lab:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state = folder / "state"
        self.workdir = folder / "work dir"
        self.run = f"test-{uuid.uuid4().hex[:12]}"
        self._agents: list[AgentClient] = []

    def agent(self, **options: Any) -> AgentClient:
        env = {"HOME": str(self.folder), **options.pop("env", {})}  # keeps profiles out of `bash -l`
        made = AgentClient(options.pop("state", self.state), env=env, **options)
        self._agents.append(made)
        return made

    def start(self, agent: AgentClient, *argv: str, task: str = "worker/0", **spec: Any) -> dict[str, Any]:
        full = {"argv": list(argv), "env": {}, "cwd": str(self.folder), "grace": 10.0, **spec}
        return agent.request("start", run=self.run, attempt="1", task=task, spec=full, plan='{"name": "é"}')

    def follow(self, agent: AgentClient, task: str, log: int = 0) -> None:
        wanted = [{"task": task, "log": log, "report": 0}]
        assert agent.request("follow", run=self.run, attempt="1", tasks=wanted) == {"missing": []}

    def stop(self, agent: AgentClient, **fields: Any) -> dict[str, Any]:
        return agent.request("stop", run=self.run, **{"grace": 10.0, "kill": False, **fields})

    def task(self, task: str = "worker/0") -> paths.TaskFolder:
        return paths.Paths(str(self.state)).task(self.run, "1", task)

    def final(self, agent: AgentClient, task: str = "worker/0") -> dict[str, Any]:
        """Receive a followed task's messages until its end."""

        def ended() -> bool:
            return any(state["state"] in ("exited", "lost", "unstarted") for state in agent.states(task))

        agent.until(ended)
        return agent.states(task)[-1]

    def over(self, task: str = "worker/0") -> dict[str, Any]:
        """Return the final state of a task once its guard has also ended; until then it counts as alive."""
        folder = self.task(task)
        until(lambda: state.is_final(state.read(folder)), what=f"{task} is over")
        unlocked(folder)
        return state.read(folder)

    def close(self) -> None:
        """End all agents and helpers, kill the run, and check that none of its processes is alive."""
        for agent in self._agents:
            agent.close()
        if self.state.is_dir() and not self.state.stat().st_mode & 0o077:
            known = paths.Paths(str(self.state))
            for folder in known.tasks(self.run):
                state.stop(folder, 0.0, kill=True)
            for folder in known.tasks(self.run):
                unlocked(folder)
        assert procs.sweep(self.run) == []


def gone(pid: int) -> bool:
    process = procs.look(pid)
    return process is None or process.zombie


def children(pid: int) -> list[int]:
    return [process.pid for process in procs.scan() if process.ppid == pid]


def wait_gone(*pids: int) -> None:
    until(lambda: all(gone(pid) for pid in pids), what=f"the end of {pids}")
