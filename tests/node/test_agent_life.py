"""The agent itself: requests, errors, silence, and its end."""

from __future__ import annotations

import os
import signal
import time

import pytest

from tests.node.agent_client import AgentClient, AgentError, Silence
from tests.node.harness import until
from tests.node.lab import Lab, children, wait_gone


def test_a_bug_is_told_with_its_traceback_and_no_end(lab: Lab) -> None:
    agent = lab.agent()
    with pytest.raises(AgentError) as caught:
        agent.request("stand_in_line", run="r", owner="o", since="once", go=True)
    assert caught.value.kind == "bug"
    assert "could not convert string to float" in caught.value.what
    assert 'float(request["since"])' in caught.value.why  # the sources are there
    assert agent.request("ping")


def test_a_slow_request_holds_up_no_other(lab: Lab) -> None:
    agent = lab.agent()
    setup = "sleep 30"
    slow = agent.send("facts", python="python3", workdir=str(lab.workdir), setup=setup)
    until(lambda: children(agent.pid), what="the helper")
    began = time.monotonic()
    assert agent.request("ping")
    assert time.monotonic() - began < 15.0
    assert slow not in agent.replies


def test_silence_of_the_controller_ends_the_agent(lab: Lab) -> None:
    agent = lab.agent(idle=1.0)
    with pytest.raises(Silence, match="the agent ended"):
        agent.listen()
    assert agent.close() == 0


def helpers(agent: AgentClient, lab: Lab) -> list[int]:
    """A job whose child has started programs of its own."""
    agent.send("facts", python="python3", workdir=str(lab.workdir), setup="sleep 1000 & sleep 1000")

    def family() -> list[int]:
        found = children(agent.pid)
        for pid in found:
            found += children(pid)
        return found if len(found) >= 4 else []  # the helper, bash, two sleeps

    found: list[int] = until(family, what="helper, bash and its sleeps")
    return found


def test_a_killed_agent_leaves_no_helper(lab: Lab) -> None:
    agent = lab.agent()
    family = helpers(agent, lab)
    os.kill(agent.pid, signal.SIGKILL)
    wait_gone(*family)


def test_a_stop_that_overtakes_a_start_waits_for_it(lab: Lab) -> None:
    agent, tasks = lab.agent(), [f"worker/{n}" for n in range(4)]
    spec = {"argv": ["sleep", "600"], "env": {}, "cwd": str(lab.folder), "grace": 1.0}
    # All at once, as a controller does that is stopped in the moment of its launch.
    starts = [agent.send("start", run=lab.run, attempt="1", task=task, spec=spec) for task in tasks]
    stop = agent.send("stop", run=lab.run, grace=1.0, kill=True)
    assert all(agent.reply(start)[0]["started"] for start in starts)
    assert agent.reply(stop)[0]["asked"] == tasks
    for task in tasks:
        assert lab.over(task)["state"] == "exited"
    assert agent.request("sweep", run=lab.run)["killed"] == []
