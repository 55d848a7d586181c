"""A task as it is seen through an agent: every byte, every time, the state last."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from orchestrator.node.base import procs
from orchestrator.node.task import control, state
from tests.node.agent_client import AgentClient, AgentError
from tests.node.harness import guard_of, kill_together, supervisor_of, until
from tests.node.lab import Lab, gone, opened, wait_gone
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


def test_a_task_is_started_followed_to_its_end_and_everything_is_told(lab: Lab) -> None:
    agent = lab.agent()
    began = lab.start(
        agent,
        "sh",
        "-c",
        'echo out; echo err >&2; echo \'{"kind": "ready"}\' >> "$ORCHESTRATE_REPORT"; exit 3',
    )
    assert (began["started"], began["already"]) == (True, False)
    lab.follow(agent, "worker/0")
    assert lab.final(agent)["exit_code"] == 3
    assert agent.log("worker/0") == b"out\nerr\n"
    reports = [data for header, data in agent.stream if header["kind"] == "report"]
    assert [json.loads(line) for line in b"".join(reports).splitlines()] == [{"kind": "ready"}]
    assert agent.stream[-1][0]["kind"] == "state"


def test_each_frame_follows_the_one_before_and_the_final_state_all(lab: Lab) -> None:
    agent = lab.agent()
    lab.start(agent, *python("for n in range(50_000): print('line', n)"))
    lab.follow(agent, "worker/0")
    lab.final(agent)
    assert agent.log("worker/0") == b"".join(b"line %d\n" % n for n in range(50_000))
    at = 0
    for header, data in agent.stream:
        if header["kind"] == "log":
            assert header["offset"] == at
            assert len(data) <= 64 << 10
            at += len(data)
    kinds = [header["kind"] for header, _ in agent.stream]
    assert kinds.index("log") < len(kinds) - 1
    assert [state["state"] for state in agent.states("worker/0")][-1] == "exited"


def test_times_are_the_index_each_record_once_and_before_its_end(lab: Lab) -> None:
    agent = lab.agent()
    index = Path(lab.task().idx)  # it prints until enough of it was stamped, however slow that goes
    more = f"os.path.getsize({str(index)!r}) < 6 * 16"
    lab.start(agent, *python(f"import os, time\nwhile {more}: print(1); time.sleep(0.06)"))
    lab.follow(agent, "worker/0")
    lab.final(agent)
    assert times(agent) == list(struct.iter_unpack("<QQ", index.read_bytes()))
    assert len(times(agent)) > 5


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


def test_a_task_that_is_not_here_is_missing_and_the_others_are_followed(lab: Lab) -> None:
    agent = lab.agent()
    lab.start(agent, "echo", "here")
    wanted = [{"task": "worker/0"}, {"task": "worker/7"}]
    assert agent.request("follow", run=lab.run, attempt="1", tasks=wanted) == {"missing": ["worker/7"]}
    lab.final(agent)
    assert agent.log("worker/0") == b"here\n"


NO_INOTIFY = ("unshare", "-Ur", "sh", "-c", 'echo 0 > /proc/sys/user/max_inotify_instances && eval "$0"')
SMALL_DISK = ("unshare", "-m", "sh", "-c", 'mount -t tmpfs -o size=64k,mode=700 x "$STATE" && eval "$0"')


def works(*argv: str) -> bool:
    return subprocess.run([*argv, "true"], capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not works(*NO_INOTIFY), reason="no user namespaces here")
def test_without_inotify_a_look_every_second_tells_all(lab: Lab) -> None:
    agent = lab.agent(shell=NO_INOTIFY)
    lab.start(agent, "sh", "-c", "echo one; sleep 0.5; echo two; exit 7")
    lab.follow(agent, "worker/0")
    assert lab.final(agent)["exit_code"] == 7
    assert agent.log("worker/0") == b"one\ntwo\n"
    assert not any("inotify" in link for link in opened(agent.pid))


def test_stop_ends_what_swallows_term_after_its_grace(lab: Lab) -> None:
    agent = lab.agent()
    lab.start(agent, "sh", "-c", "trap '' TERM; echo deaf; while :; do sleep 1; done")
    lab.follow(agent, "worker/0")
    agent.until(lambda: agent.log("worker/0") == b"deaf\n")
    assert lab.stop(agent, grace=0.2) == {"asked": ["worker/0"], "gone": []}
    final = lab.final(agent)
    assert (final["exit_signal"], final["want"]) == (signal.SIGKILL, "stop")
    assert lab.stop(agent) == {"asked": [], "gone": ["worker/0"]}


def kill_our_processes(lab: Lab) -> None:
    """Guard and supervisor of the task, together."""
    leader = state.read(lab.task())["pid"]
    kill_together(guard_of(leader), supervisor_of(leader))
    assert control.wait_until_over(lab.task(), 10.0)


def test_a_task_whose_guard_and_supervisor_are_killed_is_lost_and_nothing_is_left(lab: Lab) -> None:
    agent = lab.agent()
    pid = lab.start(agent, "sh", "-c", "trap '' TERM HUP; echo on; setsid sleep 1000 & wait")["pid"]
    lab.follow(agent, "worker/0")
    agent.until(lambda: agent.log("worker/0") == b"on\n")
    kill_our_processes(lab)
    assert lab.final(agent)["state"] == "lost"
    assert gone(pid)
    assert procs.bearers(lab.run) == []


class Stalled:
    """A reader that does not read: its pipe is small and full."""

    def __init__(self, lab: Lab, size: int) -> None:
        self.agent = lab.agent()
        self.resize(4096)
        lab.start(
            self.agent,
            *python(f"import os\nfor n in range({size >> 20}): os.write(1, bytes([n]) * (1 << 20))"),
        )
        until(lambda: Path(lab.task().log).stat().st_size == size, what="the log", seconds=60)

    def resize(self, size: int) -> None:
        assert self.agent.process.stdout is not None
        fcntl.fcntl(self.agent.process.stdout, 1031, size)  # F_SETPIPE_SZ


def test_a_reader_that_stalls_costs_no_memory_and_stop_is_served_at_once(lab: Lab) -> None:
    """100 MB are waiting and stdout is full: the stop's answer has to queue, its act has not."""
    stalled = Stalled(lab, 100 << 20)
    agent = stalled.agent
    victim = lab.start(agent, "sleep", "1000", task="worker/1")["pid"]
    lab.follow(agent, "worker/0")
    before = memory(agent.pid)
    began = time.monotonic()
    asked = agent.send("stop", run=lab.run, attempt=None, tasks=None, grace=60.0, kill=False)
    wait_gone(victim)
    assert time.monotonic() - began < 30.0
    time.sleep(0.2)  # what an agent without back-pressure would use to read on
    assert memory(agent.pid) - before < 8 << 20
    stalled.resize(1 << 20)
    assert agent.reply(asked)[0]["asked"] == ["worker/1"]
    lab.final(agent)
    assert agent.log("worker/0") == b"".join(bytes([n]) * (1 << 20) for n in range(100))


def memory(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def states(agent: AgentClient, run: str | None) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = agent.request("states", run=run)["runs"]
    return found


def test_states_tells_runs_plans_and_tasks(lab: Lab) -> None:
    agent = lab.agent()
    assert states(agent, None) == []
    assert states(agent, "unknown") == []
    lab.start(agent, "sh", "-c", "echo x; sleep 1000")
    until(lambda: states(agent, None)[0]["tasks"][0]["state"]["state"] == "running")
    (run,) = states(lab.agent(), None)
    assert (run["run"], run["plan"], run["keeper"]) == (lab.run, '{"name": "é"}', None)
    (task,) = run["tasks"]
    assert (task["attempt"], task["task"], task["alive"]) == ("1", "worker/0", True)
    assert task["state"]["state"] == "running"


def test_a_run_has_one_keeper_and_the_next_when_that_is_gone(lab: Lab) -> None:
    a, b = lab.agent(), lab.agent()
    granted = a.request("keep", run=lab.run, who="ada@home", plan="{}")
    assert (granted["granted"], granted["holder"]["who"]) == (True, "ada@home")
    refused = b.request("keep", run=lab.run, who="bob@work", plan="{}")
    assert (refused["granted"], refused["holder"]["who"], refused["holder"]["alive"]) == (
        False,
        "ada@home",
        True,
    )
    os.kill(a.pid, signal.SIGKILL)
    wait_gone(a.pid)
    (run,) = states(b, lab.run)
    assert (run["keeper"]["alive"], run["keeper"]["who"], run["plan"]) == (False, "ada@home", "{}")
    assert b.request("keep", run=lab.run, who="bob@work", plan="{}")["holder"]["who"] == "bob@work"


def test_every_word_of_the_keeper_renews_the_lifeline(lab: Lab) -> None:
    agent = lab.agent()
    agent.request("keep", run=lab.run, who="me", plan="{}")
    pid = lab.start(agent, "sleep", "1000", task="ps/0", endless=True, lifeline=1.0)["pid"]
    deadline = time.monotonic() + 2.5
    while time.monotonic() < deadline:
        agent.request("ping")
        time.sleep(0.05)
    assert not gone(pid)
    wait_gone(pid)  # nobody says anything any more


def test_sweep_kills_what_an_ended_task_left_and_names_it(lab: Lab) -> None:
    """A process that a task's end did not reach: simulated by one that only bears the cookie.

    It is looked for where a task did not end by itself; elsewhere the guard has proven the end.
    """
    agent = lab.agent()
    lab.start(agent, "sleep", "1000")
    lab.start(agent, "sleep", "1000", task="worker/1")
    agent.request("stop", run=lab.run, attempt="1", tasks=["worker/0"], grace=5.0, kill=False)
    until(lambda: states(agent, lab.run)[0]["tasks"][0]["state"]["state"] == "exited")
    stray = os.posix_spawnp(
        "sleep", ["sleep", "1000"], {**os.environ, "ORCHESTRATE_TASK": f"{lab.run}/1/worker/0/abc"}
    )
    assert agent.request("sweep", run=lab.run) == {
        "killed": [{"pid": stray, "argv0": "sleep"}],
        "alive": ["worker/1"],
    }
    os.waitpid(stray, 0)
    assert agent.request("sweep", run=lab.run) == {"killed": [], "alive": ["worker/1"]}
    assert states(agent, lab.run)[0]["tasks"][1]["alive"]


@pytest.mark.skipif(not works(*SMALL_DISK[:-1], 'mount -t tmpfs x "$PWD"'), reason="no mounts here")
def test_a_full_disk_is_the_machines_word_and_no_bug(lab: Lab) -> None:
    lab.state.mkdir(0o700)
    agent = lab.agent(shell=SMALL_DISK, env={"STATE": str(lab.state)})
    with pytest.raises(AgentError) as caught:
        agent.request("keep", run=lab.run, who="me", plan="x" * 100_000)
    assert caught.value.kind == "machine"
    assert "where `state` and `workdir` of this host are" in caught.value.hint
    assert "No space left on device" in caught.value.what


@pytest.mark.parametrize("op", ["keep", "sweep", "states"])
def test_a_run_is_one_plain_name(lab: Lab, op: str) -> None:
    agent = lab.agent()
    for name in ("", ".", "..", "a/b", "../../etc", "/etc", "a\nb", "a\0b", "ä", "-rf", "a" * 300, 7, ["a"]):
        with pytest.raises(AgentError, match="not a name") as caught:
            agent.request(op, run=name, who="me", plan="{}")
        assert caught.value.what.isprintable()
        assert len(caught.value.what) < 120
    assert [path.name for path in lab.state.parent.rglob("run.json")] == []


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


@pytest.mark.parametrize("which", ["supervisor", "guard"])
def test_one_of_ours_that_is_stopped_hears_the_stop(lab: Lab, which: str) -> None:
    agent = lab.agent()
    pid = lab.start(agent, "sleep", "1000")["pid"]
    ours = {"supervisor": supervisor_of(pid), "guard": guard_of(pid)}
    os.kill(ours[which], signal.SIGSTOP)
    until(lambda: procs.status(ours[which]) == "T")
    lab.stop(agent)
    wait_gone(pid, *ours.values())


def test_a_guard_that_is_stopped_does_not_outlive_the_sweep(lab: Lab) -> None:
    agent = lab.agent()
    pid = lab.start(agent, "sleep", "1000")["pid"]
    guard = guard_of(pid)
    os.kill(guard, signal.SIGSTOP)
    os.kill(pid, signal.SIGKILL)
    lab.follow(agent, "worker/0")
    assert lab.final(agent)["exit_signal"] == signal.SIGKILL
    assert agent.request("sweep", run=lab.run)["alive"] == []
    wait_gone(guard)
