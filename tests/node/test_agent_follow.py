"""A task as it is seen through an agent: every byte, every time, the state last."""

from __future__ import annotations

import fcntl
import os
import sys
import time
from pathlib import Path

import pytest

from orchestrator.node.task import state
from tests.node.agent_client import AgentClient
from tests.node.harness import guard_of, supervisor_of, until
from tests.node.lab import Lab, wait_gone
from tests.removal import remove


def python(text: str) -> tuple[str, ...]:
    return (sys.executable, "-I", "-S", "-u", "-c", text)


def times(agent: AgentClient, task: str = "worker/0") -> list[tuple[int, int]]:
    return [
        tuple(time)
        for header, _ in agent.stream
        if header["kind"] == "log" and header["task"] == task
        for time in header["times"]
    ]


@pytest.mark.parametrize("lost_at", [0, 1, 100, 70_000])
def test_a_follower_goes_on_where_another_stopped(lab: Lab, lost_at: int) -> None:
    """No byte twice, none missing; the first record is the one that covers the first byte."""
    first = lab.agent()
    lab.start(first, *python("import time\nfor n in range(4): print('x' * 30_000); time.sleep(0.07)"))
    lab.follow(first, "worker/0")
    lab.final(first)
    whole = first.log("worker/0")
    index = times(first)
    second = lab.agent()
    lab.follow(second, "worker/0", log=lost_at)
    lab.final(second)
    assert second.log("worker/0") == whole[lost_at:]
    covering = max(n for n, (offset, _) in enumerate(index) if offset <= lost_at)
    assert times(second) == index[covering:]


def test_a_reader_that_stalls_costs_no_memory_and_stop_is_served_at_once(lab: Lab) -> None:
    """100 MB are waiting and stdout is full: the stop's answer has to queue, its act has not."""
    agent = lab.agent()
    resize(agent, 4096)
    lab.start(agent, *python("import os\nfor n in range(100): os.write(1, bytes([n]) * (1 << 20))"))
    until(lambda: Path(lab.task().log).stat().st_size == 100 << 20, what="the log")
    victim = lab.start(agent, "sleep", "1000", task="worker/1")["pid"]
    lab.follow(agent, "worker/0")
    before = memory(agent.pid)
    began = time.monotonic()
    asked = agent.send("stop", run=lab.run, grace=60.0, kill=False)
    wait_gone(victim)
    assert time.monotonic() - began < 30.0
    time.sleep(0.2)  # what an agent without back-pressure would use to read on
    assert memory(agent.pid) - before < 8 << 20
    resize(agent, 1 << 20)
    assert agent.reply(asked)[0]["asked"] == ["worker/1"]
    lab.final(agent)
    assert agent.log("worker/0") == b"".join(bytes([n]) * (1 << 20) for n in range(100))


def resize(agent: AgentClient, size: int) -> None:
    assert agent.process.stdout is not None
    fcntl.fcntl(agent.process.stdout, 1031, size)  # F_SETPIPE_SZ


def memory(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_a_task_whose_folder_is_removed_is_ended_and_told_as_lost(lab: Lab) -> None:
    agent = lab.agent()
    pid = lab.start(agent, "sh", "-c", "echo here; exec sleep 1000")["pid"]
    lab.follow(agent, "worker/0")
    agent.until(lambda: agent.log("worker/0") == b"here\n")
    ours = [supervisor_of(pid), guard_of(pid)]
    remove(lab.state / "runs" / lab.run)
    final = lab.final(agent)
    assert (final["state"], final["message"]) == ("lost", state.REMOVED)
    wait_gone(pid, *ours)
    assert agent.request("sweep", run=lab.run) == {"killed": [], "alive": []}
