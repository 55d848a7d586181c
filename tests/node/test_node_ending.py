"""How a task ends: by itself, on request, when it ignores requests, and with leftover processes."""

import contextlib
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orchestrator.node.base import paths, procs
from orchestrator.node.hook import sitecustomize
from orchestrator.node.task import environ, state, supervisor, tasks
from orchestrator.node.task.supervisor import LINGER
from tests.folders import mounted
from tests.node.harness import (
    PROGRAMS,
    Node,
    dead,
    guard_of,
    identities,
    kill_together,
    lives,
    supervisor_of,
    until,
)
from tests.node.lab import Lab
from tests.processes import cookies


@pytest.mark.parametrize(
    ("argv", "code", "signum"),
    [
        (("true",), 0, None),
        (("sh", "-c", "exit 3"), 3, None),
        (("sh", "-c", "exit 137"), 137, None),  # not the same as signal 9
        (("sh", "-c", "kill -9 $$"), None, 9),
        (("sh", "-c", "kill -SEGV $$"), None, signal.SIGSEGV),
        (("sh", "-c", "kill -TERM $$"), None, signal.SIGTERM),
    ],
)
def test_exit_code_and_signal_are_recorded_separately(
    node: Node, argv: tuple[str, ...], code: int | None, signum: int | None
) -> None:
    node.start(*argv)
    found = node.final()
    assert (found["state"], found["exit_code"], found["exit_signal"]) == (state.EXITED, code, signum)
    assert found["want"] == state.WANT_RUN
    assert found["started_ns"] < found["ended_ns"] < time.time_ns()


def test_a_limit_of_processor_time_is_named_as_the_reason_of_a_kill(node: Node) -> None:
    leader = node.start("sh", "-c", "while :; do :; done")["pid"]
    resource.prlimit(leader, resource.RLIMIT_CPU, (1, 1))  # as `setup` may do
    found = node.final()
    assert (found["exit_signal"], found["message"]) == (
        9,
        "it used up its 1 s of processor time (`ulimit -t`)",
    )


def test_a_suspended_process_still_receives_term(node: Node) -> None:
    leader = node.python("saves.py")["pid"]
    until(lambda: node.log() == b"up\n")
    os.kill(leader, signal.SIGSTOP)
    node.stop(20.0)
    assert node.final()["exit_code"] == 42


def test_files_of_a_long_running_task_keep_a_recent_mtime(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """systemd-tmpfiles removes old files from /var/tmp, and a task whose lock is gone would be ended."""
    monkeypatch.setattr(supervisor, "_TOUCH_EVERY", 0.0)
    tasks.store_plan(node.paths, node.run, "{}")
    lease = Path(node.paths.lease(2222))
    lease.touch()
    node.start("sleep", "1000")
    files = [lease, Path(node.paths.run_json(node.run)), *Path(node.task().path).iterdir()]
    assert {path.name for path in files} > {"lock", "control", "state.json", "report.jsonl"}
    for path in files:
        os.utime(path, (1, 1))
    until(lambda: all(path.stat().st_mtime > 1 for path in files), what="all were touched")


def test_a_program_in_a_shell_gets_the_whole_grace_period_and_one_term(node: Node) -> None:
    node.start("sh", "-c", f'"{sys.executable}" "{PROGRAMS}/saves.py" {LINGER + 1} & wait')
    until(lambda: node.log() == b"up\n")
    node.stop(20.0)
    assert node.final()["exit_signal"] == signal.SIGTERM
    assert node.log() == b"up\nsaves\nsaved\n"


def test_workers_of_a_program_survive_until_it_has_saved_on_term(node: Node) -> None:
    node.python("saves.py", "0.5", "worker")
    until(lambda: node.log() == b"up\n")
    node.stop(20.0)
    begun = time.monotonic()
    assert (node.final()["exit_code"], node.log()) == (42, b"up\nsaves\nsaved\n")
    assert time.monotonic() - begun < 15.0  # they receive TERM afterwards


def test_processes_left_by_the_leader_are_ended_and_its_exit_status_counts(node: Node) -> None:
    node.python("family.py", "ends", "0")
    family = identities(node.folder, 4)
    found = node.final()
    assert (found["state"], found["exit_code"], found["exit_signal"]) == (state.EXITED, 0, None)
    assert "left 4 processes behind" in found["message"]
    assert dead(family)


@pytest.mark.parametrize("kill", [True, False])
@pytest.mark.parametrize("program", ["forks.py", "hops.py"])
def test_a_constantly_forking_task_cannot_escape_the_kill(node: Node, program: str, kill: bool) -> None:
    node.python(program)
    until(lambda: b"going" in node.log(), what="it forks")
    node.stop(0.2, kill=kill)
    node.final(seconds=20.0)
    node.alone()


def goes_on(node: Node, seconds: float) -> bool:
    """Return whether the task is still alive that long after its start."""
    over = node.state_of()["started_ns"] + seconds * 1e9
    until(lambda: time.time_ns() > over, what=f"{seconds} s are over")
    return bool(node.state_of()["state"] == state.RUNNING)


def test_without_a_keeper_a_task_continues_until_its_sibling_fails(node: Node) -> None:
    node.start("true", task="worker/9")
    node.final("worker/9")
    node.start("sleep", "600", lifeline=0.3)
    assert goes_on(node, 0.9)
    node.start("false", task="worker/8")
    assert node.final()["message"] == "no keeper for 0.3 s"


@pytest.mark.parametrize(
    ("script", "ends"),
    [("exec sleep 600", True), ("while :; do echo step; sleep 0.1; done", False)],
    ids=["silent", "prints"],
)
def test_a_possibly_replaced_task_ends_unless_it_makes_progress(node: Node, script: str, ends: bool) -> None:
    """It prints only while its peers are alive, and these are ended before it is replaced."""
    node.start("sh", "-c", script, fence=2.0)
    if not ends:
        assert goes_on(node, 3.0)
        return
    found = node.final()
    assert found["exit_signal"] in (signal.SIGTERM, signal.SIGKILL)
    assert found["message"].startswith("no keeper, and nothing printed, for 2 s"), found["message"]


# --- Whichever of our processes is killed, the task ends, and its state shows that ---

FAMILY = ("sh", "-c", f'python3 "{PROGRAMS}/family.py" & wait')


def test_nothing_remains_two_seconds_after_the_supervisor_is_killed(node: Node) -> None:
    leader = node.start(*FAMILY)["pid"]
    family = identities(node.folder, 5)
    begun = time.time_ns()
    os.kill(supervisor_of(leader), signal.SIGKILL)
    found = node.final()
    assert dead(family)
    assert found["ended_ns"] - begun < 2_000_000_000
    assert (found["state"], found["exit_code"], found["exit_signal"]) == (state.LOST, None, None)
    assert "supervisor was killed by signal 9" in found["message"]
    node.alone()


def test_a_task_that_ignores_term_is_killed_with_its_children_even_without_a_guard(node: Node) -> None:
    leader = node.python("family.py", "deaf")["pid"]
    family = identities(node.folder, 5)
    os.kill(guard_of(leader), signal.SIGKILL)
    begun = time.monotonic()
    node.stop(0.4)
    until(lambda: node.state_of()["state"] == state.STOPPING)
    found = node.final()
    assert 0.4 <= time.monotonic() - begun < 10.0
    assert (found["state"], found["exit_signal"]) == (state.EXITED, signal.SIGKILL)
    assert (found["want"], dead(family)) == (state.WANT_STOP, True)
    node.alone()


def test_killing_both_is_detected_by_the_free_lock_and_the_cookie(node: Node) -> None:
    leader = node.start(*FAMILY)["pid"]
    family = identities(node.folder, 5)
    guard, supervisor = guard_of(leader), supervisor_of(leader)
    kill_together(guard, supervisor)
    until(lambda: not state.is_locked(node.task()), what="both are dead")
    assert not state.is_final(node.state_of())
    bearing = [identity for identity in family if cookies(identity.pid)]
    assert len(bearing) >= 3

    found = state.settle(node.task())
    assert found == node.state_of()
    assert found["state"] == state.LOST
    assert "killed together" in found["message"]
    assert dead(bearing)
    for identity in family:  # documented: without its cookie, and with both of us killed, it is not found
        if lives(identity):
            os.kill(identity.pid, signal.SIGKILL)


def test_the_log_has_the_last_bytes_before_the_supervisor_was_killed(node: Node) -> None:
    leader = node.start("sh", "-c", "echo one; read x < /dev/zero; sleep 600")["pid"]
    until(lambda: node.log() == b"one\n")
    supervisor = supervisor_of(leader)
    os.kill(supervisor, signal.SIGSTOP)
    with Path(f"/proc/{leader}/fd/1").open("wb", buffering=0) as output:
        output.write(b"two\n")
    os.kill(supervisor, signal.SIGKILL)
    assert node.final()["state"] == state.LOST
    assert node.log() == b"one\ntwo\n"


def test_a_terminated_supervisor_stops_its_task_gracefully(node: Node) -> None:
    leader = node.python("saves.py")["pid"]
    until(lambda: node.log() == b"up\n")
    for pid in (guard_of(leader), supervisor_of(leader)):  # as when the machine shuts down
        os.kill(pid, signal.SIGTERM)
    found = node.final()
    assert (found["state"], found["exit_code"], node.log()) == (state.EXITED, 42, b"up\nsaves\nsaved\n")
    assert found["message"] == "its supervisor received TERM"


def test_a_truncated_state_file_means_lost_and_hides_no_other_task(node: Node) -> None:
    node.start("true")
    node.final()
    node.alone()
    Path(node.task().state).write_bytes(b"")
    found = state.settle(node.task())
    assert (found["state"], found["task"]) == (state.LOST, "worker/0")
    assert "restarted" in found["message"]
    assert node.state_of() == found


# --- A stop ends the task, even if one of our processes is frozen or out of descriptors ---


def stopped(*pids: int) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    until(lambda: all(procs.status(pid) == "T" for pid in pids), what=f"{pids} stand still")


def starved(*pids: int) -> None:
    """Keep a process from opening files, and so from writing its state."""
    for pid in pids:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (0, 0))


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    made = Lab(tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize(
    ("break_it", "which", "kill"),
    [
        (stopped, "supervisor", False),
        (stopped, "supervisor", True),
        (stopped, "guard", True),
        (stopped, "supervisor guard", False),
        (stopped, "leader", False),
        (starved, "supervisor", True),
    ],
)
def test_a_stop_ends_the_task(lab: Lab, break_it: Callable[..., None], which: str, kill: bool) -> None:
    agent = lab.agent()
    leader = lab.start(agent, "sh", "-c", f'python3 "{PROGRAMS}/family.py" & wait')["pid"]
    family = identities(lab.folder, 5)
    pids = {"leader": leader, "supervisor": supervisor_of(leader), "guard": guard_of(leader)}
    break_it(*(pids[name] for name in which.split()))
    assert lab.stop(agent, attempt="7") == {"asked": []}  # late, after silence
    assert lab.stop(agent, kill=kill, grace=0.5) == {"asked": ["worker/0"]}

    def over() -> bool:
        (run,) = agent.request("states", run=lab.run)["runs"]
        return all(state.is_final(task["state"]) and not task["alive"] for task in run["tasks"])

    until(over, what="the task is over, and its host reports it")
    until(lambda: dead(family), what="nothing of it is alive")
    assert agent.request("sweep", run=lab.run)["alive"] == []


# --- The log has the task's exact bytes, whatever happens to the disk ---


def test_beyond_the_cap_the_task_continues_and_the_gap_is_reported(node: Node) -> None:
    node.start("sh", "-c", "yes | head -c 3000000; exit 5", log_cap=1_000_001)
    found = node.final()
    assert found["exit_code"] == 5
    assert node.log() == (b"y\n" * 500_001)[:1_000_001]
    (gap,) = found["gaps"]
    assert (gap["offset"], gap["bytes"]) == (1_000_001, 1_999_999)
    assert "cap of 1000001 bytes" in gap["why"]


def fill(path: Path) -> None:
    """Fill all remaining space on its disk."""
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Node]:
    """A run whose state is on a 1 MiB file system; if none can be mounted, a file size limit replaces it."""
    with mounted(tmp_path / "small", "size=1m") as place:
        made = Node(paths.open_root(str(place / "state")), tmp_path)
        yield made
        made.stop(kill=True)
        made.alone()


def test_the_log_resumes_with_a_reported_gap_once_there_is_space(small: Node) -> None:
    ballast = Path(small.paths.root, "ballast")
    for name in ("one", "two"):
        os.mkfifo(small.folder / name)
    text = "l" * 5000
    small.start("sh", "-c", f"echo first; read x < one; echo {text}; read x < two; echo last")
    until(lambda: small.log() == b"first\n")
    fill(ballast)
    (small.folder / "one").write_text("\n")
    until(lambda: small.state_of()["gaps"], what="the gap is reported")
    ballast.unlink()
    wait = time.monotonic() + 0.25  # the log checks for space at most every 0.2 s
    until(lambda: time.monotonic() > wait)
    (small.folder / "two").write_text("\n")
    found = small.final()
    (gap,) = found["gaps"]
    assert gap["why"] == "No space left on device"
    kept = f"first\n{text}\n".encode()
    assert gap["offset"] + gap["bytes"] == len(kept)
    assert small.log() == kept[: gap["offset"]] + b"last\n"


LINES = "print('a', 'b'); print('half', end='')"
CHILD = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {LINES!r}])"


@pytest.mark.parametrize(
    ("unbuffered", "program", "writes"),
    [
        ("1", LINES, [b"a b\n", b"half"]),
        ("", LINES, [b"a b\nhalf"]),
        ("1", CHILD, [b"a", b" ", b"b", b"\n", b"half"]),  # a reader may wait for half a line
    ],
)
def test_each_line_is_one_write(tmp_path: Path, unbuffered: str, program: str, writes: list[bytes]) -> None:
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)  # each write is a message
    hook = {
        "PYTHONPATH": str(Path(sitecustomize.__file__).parent),
        "PYTHONUNBUFFERED": unbuffered,
        "ORCHESTRATE_STACKS": f"{environ.SIGNAL}:{tmp_path}/stacks",
        "ORCHESTRATE_REPORT": str(tmp_path / "report"),
    }
    with ours, its:
        argv = [sys.executable, "-c", program]
        subprocess.run(argv, stdout=its.fileno(), env=os.environ | hook, check=True)
        its.send(b"end")
        received = iter(lambda: ours.recv(100), b"end")
        assert [write for write in received if write] == writes  # Python 3.13 also writes b"" at exit
