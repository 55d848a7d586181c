"""What the kernel killed for want of memory is in a task's last state; a restarted machine too."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.node.base import procs
from orchestrator.node.task import control, oom, start, state, supervisor
from tests.exclusive import exclusive
from tests.node.harness import Node, until

LIMIT = 256 << 20
V1 = Path("/sys/fs/cgroup/memory")
# The kernel takes the process with the most memory, and here guard and supervisor are copies of the tests'.
GREEDY = (
    "open('/proc/self/oom_score_adj', 'w').write('1000')\n"
    "held = []\nwhile True: held.append(bytearray(16 << 20))"
)


def machine(root: Path, cgroup: str, kills: dict[str, int]) -> str:
    """A made-up machine: what /proc says, and the counters by file."""
    (root / "proc" / "self").mkdir(parents=True, exist_ok=True)
    (root / "proc" / "self" / "cgroup").write_text(cgroup)
    for path, count in kills.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        before = "low 0\nhigh 0\noom 7\n" if path.endswith("events") else "oom_kill_disable 0\nunder_oom 0\n"
        (root / path).write_text(f"{before}oom_kill {count}\n")
    return f"{root}/"


def limit(root: Path, path: str, text: str) -> None:
    (root / path).write_text(text)


V1_LINES = "9:cpu,cpuacct:/x\n4:memory:/slice/job\n0::/elsewhere\n"
V1_JOB, V1_SLICE = "sys/fs/cgroup/memory/slice/job", "sys/fs/cgroup/memory/slice"
V2_LINES = "0::/user.slice/session.scope\n"
V2_JOB, V2_SLICE = "sys/fs/cgroup/user.slice/session.scope", "sys/fs/cgroup/user.slice"


def test_a_kill_in_the_own_group_of_cgroup_v1(tmp_path: Path) -> None:
    counters = {f"{V1_JOB}/memory.oom_control": 3, f"{V1_SLICE}/memory.oom_control": 9, "proc/vmstat": 40}
    root = machine(tmp_path, V1_LINES, counters)
    limit(tmp_path, f"{V1_JOB}/memory.limit_in_bytes", "9223372036854771712\n")
    limit(tmp_path, f"{V1_SLICE}/memory.limit_in_bytes", "2000000000\n")
    memory = oom.Memory(root)
    assert memory.kills() is None
    machine(tmp_path, V1_LINES, {f"{V1_JOB}/memory.oom_control": 5, "proc/vmstat": 42})
    assert memory.kills() == {"kills": 2, "limit": 2_000_000_000}


def test_a_kill_in_the_own_group_of_cgroup_v2(tmp_path: Path) -> None:
    root = machine(tmp_path, V2_LINES, {f"{V2_JOB}/memory.events": 0, f"{V2_SLICE}/memory.events": 0})
    limit(tmp_path, f"{V2_JOB}/memory.max", "1073741824\n")
    limit(tmp_path, f"{V2_SLICE}/memory.max", "max\n")
    memory = oom.Memory(root)
    machine(tmp_path, V2_LINES, {f"{V2_JOB}/memory.events": 1, f"{V2_SLICE}/memory.events": 1})
    assert memory.kills() == {"kills": 1, "limit": 1 << 30}


def test_a_kill_elsewhere_on_the_machine_is_not_ours(tmp_path: Path) -> None:
    counters = [f"{V2_JOB}/memory.events", f"{V2_SLICE}/memory.events", "proc/vmstat"]
    memory = oom.Memory(machine(tmp_path, V2_LINES, dict.fromkeys(counters, 4)))
    machine(tmp_path, V2_LINES, dict.fromkeys(counters[1:], 5))
    assert memory.kills() is None


def test_a_task_that_moved_to_another_group_was_killed_there(tmp_path: Path) -> None:
    counters = [f"{V2_JOB}/memory.events", "proc/vmstat"]
    memory = oom.Memory(machine(tmp_path, V2_LINES, dict.fromkeys(counters, 4)))
    machine(tmp_path, V2_LINES, {"proc/vmstat": 5})
    assert memory.kills(killed=False) is None
    assert memory.kills(killed=True) == {"kills": 1, "limit": None}


@pytest.mark.parametrize("counter", [f"{V2_JOB}/memory.events", f"{V2_SLICE}/memory.events", "proc/vmstat"])
def test_a_kill_counts_only_while_it_is_fresh(tmp_path: Path, counter: str) -> None:
    found = {"kills": 1, "limit": None}
    memory = oom.Memory(machine(tmp_path, V2_LINES, {counter: 4}))
    machine(tmp_path, V2_LINES, {counter: 5})
    assert memory.kills() == found
    memory.look(1e12)
    assert memory.kills() == found
    memory.look(2e12)
    assert memory.kills() is None


@pytest.fixture
def small_group() -> Iterator[Path]:
    """A memory group of 256 MB."""
    group = V1 / f"orchestrate-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no memory group of cgroup v1 can be made here: {error}")
    try:
        (group / "memory.limit_in_bytes").write_text(str(LIMIT))
        with exclusive("oom"):  # the machine's counter tells of all
            yield group
    finally:
        until(lambda: not (group / "cgroup.procs").read_text(), what="nobody is in the group")
        group.rmdir()


def start_in(group: Path, node: Node, *argv: str) -> None:
    """Start a task whose guard and supervisor are in a group, too, as on a machine with limits for users."""
    full = {"argv": list(argv), "env": {}, "cwd": str(node.folder), "grace": 1.0}
    pid = os.fork()
    if pid == 0:
        try:
            (group / "cgroup.procs").write_text(str(os.getpid()))
            start.start(node.paths, node.run, "1", "worker/0", full, [])
        finally:
            os._exit(0)
    os.waitpid(pid, 0)


def test_a_task_that_is_really_killed_for_want_of_memory(node: Node, small_group: Path) -> None:
    start_in(small_group, node, sys.executable, "-c", GREEDY)
    final = node.final()
    assert (final["exit_signal"], final["oom"]) == (9, {"kills": 1, "limit": LIMIT})
    node.alone()


def test_a_kill_by_somebody_is_no_want_of_memory(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine where nobody else runs out of it: a kill that nobody owns counts for the machine."""
    root = machine(tmp_path / "machine", V1_LINES, {"proc/vmstat": 3})
    monkeypatch.setattr(supervisor, "Memory", lambda: oom.Memory(root))
    node.start("sh", "-c", "kill -9 $$")
    assert node.final()["oom"] is None


def test_a_task_of_an_earlier_life_of_the_machine_is_lost_by_its_restart(node: Node) -> None:
    node.start("sleep", "600")
    folder = node.task()
    node.stop(kill=True)
    found = node.final()
    node.alone()
    boot, *rest = procs.incarnation().split("/")
    for earlier, message in [
        (f"other-{boot}", "the machine was restarted"),
        (boot, "its container was restarted"),
    ]:
        life = "/".join([earlier, *rest[:-1], "1"])
        state.write(
            folder, {**found, "state": "running", "ended_ns": None, "exit_signal": None, "incarnation": life}
        )
        settled = control.settle(node.task())
        assert (settled["state"], settled["message"]) == ("lost", message)
        began = subprocess.run(["date", "+%s"], capture_output=True, text=True, check=True)
        uptime = float(Path("/proc/uptime").read_text().split()[0])  # later: it only makes less of it
        assert settled["restarted_ns"] / 1e9 >= float(began.stdout) - uptime - 5
