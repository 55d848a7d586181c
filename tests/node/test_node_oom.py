"""A task's last state records out-of-memory kills and reboots."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.node.base import procs
from orchestrator.node.task import state, supervisor
from tests.node.harness import Node, until

LIMIT = 256 << 20
GROUPS = Path("/sys/fs/cgroup/memory")
# The kernel kills the process with the most memory; here guard and supervisor are copies of the tests'.
GREEDY = (
    "open('/proc/self/oom_score_adj', 'w').write('1000')\n"
    "held = []\nwhile True: held.append(bytearray(16 << 20))"
)


def machine(root: Path, kills: dict[str, int]) -> str:
    """A fake machine: contents of /proc, and the counters by file."""
    (root / "proc" / "self").mkdir(parents=True, exist_ok=True)
    (root / "proc" / "self" / "cgroup").write_text("4:memory:/job\n0::/user.slice/session.scope\n")
    for path, count in kills.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(f"low 0\nhigh 0\noom 7\noom_kill {count}\n")
    return f"{root}/"


GROUP = "sys/fs/cgroup/user.slice/session.scope/memory.events"
OLD_GROUP = "sys/fs/cgroup/memory/job/memory.oom_control"
CONTAINER = "sys/fs/cgroup/memory/memory.oom_control"
MACHINE = "proc/vmstat"


@pytest.mark.parametrize(
    ("counters", "risen", "kills"),
    [
        ([GROUP, MACHINE], [GROUP, MACHINE], 1),
        ([GROUP, MACHINE], [MACHINE], 0),  # elsewhere on the machine
        ([OLD_GROUP, CONTAINER, MACHINE], [CONTAINER, MACHINE], 0),
        ([OLD_GROUP, CONTAINER, MACHINE], [OLD_GROUP], 1),
        ([CONTAINER, MACHINE], [MACHINE], 0),
        ([CONTAINER, MACHINE], [CONTAINER], 1),
        ([MACHINE], [MACHINE], 1),
        ([], [], 0),
    ],
)
def test_oom_kills_are_counted(tmp_path: Path, counters: list[str], risen: list[str], kills: int) -> None:
    memory = supervisor.Memory(machine(tmp_path, dict.fromkeys(counters, 4)))
    assert memory.kills() == 0
    machine(tmp_path, dict.fromkeys(risen, 5))
    assert memory.kills() == kills


@pytest.mark.parametrize("counter", [GROUP, MACHINE])
def test_only_recent_kills_count(tmp_path: Path, counter: str) -> None:
    memory = supervisor.Memory(machine(tmp_path, {counter: 4}))
    machine(tmp_path, {counter: 5})
    for at in (1e12, 2e12):
        assert memory.kills() == 1
        memory.look(at)
    assert memory.kills() == 0


@pytest.fixture
def small_group() -> Iterator[Path]:
    """A memory group of 256 MB."""
    group = GROUPS / f"orchestrate-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no memory group of cgroup v1 can be made here: {error}")
    try:
        (group / "memory.limit_in_bytes").write_text(str(LIMIT))
        yield group
    finally:
        until(lambda: not (group / "cgroup.procs").read_text(), what="nobody is in the group")
        group.rmdir()


def start_in(group: Path, node: Node, *argv: str) -> None:
    """Start a task with guard and supervisor in a memory group, as on a machine with user limits."""
    pid = os.fork()
    if pid == 0:
        try:
            (group / "cgroup.procs").write_text(str(os.getpid()))
            node.start(*argv, grace=1.0)
        finally:
            os._exit(0)
    os.waitpid(pid, 0)


def test_a_real_out_of_memory_kill_is_recorded(node: Node, small_group: Path) -> None:
    start_in(small_group, node, sys.executable, "-c", GREEDY)
    final = node.final()
    assert (final["exit_signal"], final["oom_kills"]) == (9, 1)
    node.alone()


def test_a_reboot_makes_earlier_tasks_lost(node: Node) -> None:
    node.start("sleep", "600")
    folder = node.task()
    node.stop(kill=True)
    found = node.final()
    node.alone()
    boot, *rest = procs.incarnation().split("/")
    for earlier in (f"other-{boot}", boot):  # from another boot, or from this one in another container
        life = "/".join([earlier, *rest[:-1], "1"])
        state.write(
            folder, {**found, "state": "running", "ended_ns": None, "exit_signal": None, "incarnation": life}
        )
        settled = state.settle(node.task())
        assert (settled["state"], settled["restarted"]) == ("lost", True)
