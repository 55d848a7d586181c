"""The agent itself: requests, errors, silence, and its end."""

from __future__ import annotations

import os
import signal
import struct
import time

import pytest

from tests.node.agent_client import AgentClient, AgentError, Silence
from tests.node.harness import until
from tests.node.lab import Lab, children, gone, wait_gone


def test_an_unknown_operation_and_a_missing_field_are_errors_and_no_end(lab: Lab) -> None:
    agent = lab.agent()
    with pytest.raises(AgentError, match="no operation 'dance'"):
        agent.request("dance")
    with pytest.raises(AgentError, match="`probe` without 'nonce'"):
        agent.request("probe")
    assert agent.request("ping")


def test_a_bug_is_told_with_its_traceback_and_no_end(lab: Lab) -> None:
    agent = lab.agent()
    with pytest.raises(AgentError) as caught:
        agent.request("beats", every="often")
    assert caught.value.kind == "bug"
    assert "could not convert string to float" in caught.value.what
    assert 'float(request["every"])' in caught.value.why  # the sources are there
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


def test_beats_come_until_told_otherwise(lab: Lab) -> None:
    agent = lab.agent()
    agent.request("beats", every=0.02)
    agent.until(lambda: len(agent.beats) >= 5)
    assert agent.beats == sorted(agent.beats)


def test_silence_of_the_controller_ends_the_agent(lab: Lab) -> None:
    agent = lab.agent(idle=1.0)
    with pytest.raises(Silence, match="the agent ended"):
        agent.listen()
    assert agent.close() == 0


def test_words_keep_the_agent(lab: Lab) -> None:
    agent = lab.agent(idle=2.0)
    deadline = time.monotonic() + 4.2
    while time.monotonic() < deadline:
        agent.request("ping")
        time.sleep(0.05)


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


def test_a_killed_agent_leaves_the_task_running(lab: Lab) -> None:
    agent = lab.agent()
    pid = lab.start(agent, "sh", "-c", "echo on; sleep 1000")["pid"]
    lab.follow(agent, "worker/0")
    os.kill(agent.pid, signal.SIGKILL)
    wait_gone(agent.pid)
    assert not gone(pid)
    second = lab.agent()
    lab.follow(second, "worker/0")
    second.until(lambda: second.log("worker/0") == b"on\n")
    lab.stop(second, kill=True)
    assert lab.final(second)["exit_signal"] == signal.SIGKILL


def test_the_end_of_the_agent_closes_its_channel_though_tasks_live(lab: Lab) -> None:
    """A task or guard that held the agent's stdout would keep the SSH channel open for ever."""
    agent = lab.agent()
    pid = lab.start(agent, "sleep", "1000")["pid"]
    os.kill(agent.pid, signal.SIGKILL)
    with pytest.raises(Silence, match="the agent ended"):
        agent.listen()
    assert not gone(pid)


def test_a_state_folder_that_others_may_read_is_refused_and_the_rest_works(lab: Lab) -> None:
    lab.state.mkdir(mode=0o755)
    agent = lab.agent()
    assert agent.hello["state"] is None
    assert agent.hello["state_error"]["kind"] == "state"
    assert "chmod 700" in agent.hello["state_error"]["hint"]
    with pytest.raises(AgentError) as caught:
        agent.request("states", run=None)
    assert caught.value.as_hello == agent.hello["state_error"]
    facts = agent.request("facts", python="python3", workdir=str(lab.workdir))
    assert facts["disk"]["state"] is None
    assert facts["python"]["ok"]
    listening = agent.request("listen", ports=[], nonce="n")
    assert (listening["listening"], listening["busy"]) == ([], [])


@pytest.mark.parametrize(
    "lie",
    [
        struct.pack(">II", 1 << 31, 0),
        struct.pack(">II", 2, 1 << 31),
        struct.pack(">II", 0, 0),
        struct.pack(">II", 5, 0) + b"hello",
        struct.pack(">II", 4, 0) + b"[1]\n",
        struct.pack(">II", 3, 0) + b'"\xff"',
        struct.pack(">II", 12, 0) + b'{"id": NaN }',
        struct.pack(">II", 400_000, 0) + b"[" * 400_000,
    ],
)
def test_what_is_not_a_controller_ends_the_agent_with_one_line(lab: Lab, lie: bytes) -> None:
    agent = lab.agent()
    agent.request("ping")
    agent.raw(lie)
    with pytest.raises(Silence, match="the agent ended"):
        agent.listen()
    assert agent.close() == 1
    assert agent.stderr.startswith("the agent leaves: its controller does not speak our protocol: ")
    assert agent.stderr.count("\n") == 1
