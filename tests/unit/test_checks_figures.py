"""Conclusions from figures, and from what needs GPUs, of which this machine has none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from orchestrator import wire
from orchestrator.checks import Needs, of_extra, of_hosts, of_network
from orchestrator.checks.large import of_bandwidth
from orchestrator.events import Level, PairReported
from orchestrator.phases.mesh import rounds
from tests.unit.test_checks import GPUS, NEEDS, W, changed, said, seen

IMPORTED: dict[str, Any] = {
    "modules": [{"name": "tensorflow", "version": "2.21.0", "error": "", "path": ""}],
    "limits": {"nofile": 1024, "as": None, "nproc": None},
    "gpus": None,
    "threads": 10,
    "importing": "",
    "ended": "",
    "signal": None,
}


def pair(source: str, target: str, rate: float | None = None, **more: Any) -> PairReported:
    return PairReported(source, target, "10.0.0.9:2222", True, 0.1, True, 0.1, bandwidth=rate, **more)


def test_a_host_with_a_slow_link_is_named_and_not_its_partners() -> None:
    hosts = ("a", "b", "c", "d")
    pairs = [pair(x, y, 1e7 if "c" in (x, y) else 1e9) for x in hosts for y in hosts if x != y]
    assert said(list(of_bandwidth(pairs)), W) == [("c", "bandwidth", "10 MB/s")]
    assert said(list(of_bandwidth([msgspec.structs.replace(one, bandwidth=1e8) for one in pairs])), W) == []
    assert list(of_bandwidth([pair("a", "b")])) == []


def test_no_host_is_in_two_pairs_that_are_measured_at_once() -> None:
    hosts = [f"h{number}" for number in range(9)]
    ways = [(one, two) for one in hosts for two in hosts if one != two]
    groups = rounds(ways)
    assert sorted(way for group in groups for way in group) == sorted(ways)
    for group in groups:
        names = [name for way in group for name in way]
        assert len(group) <= 4
        assert len(set(names)) == len(names)


def test_closed_ports_beside_the_task_port_are_an_error_of_nccl() -> None:
    closed = msgspec.structs.replace(pair("a", "b"), tcp=False, why="timed out")
    (check,) = of_extra([closed, pair("b", "a")])
    assert (check.host, check.check, check.found) == (
        "b",
        "nccl",
        "a cannot reach its other ports: timed out",
    )


@pytest.mark.parametrize(("env", "many", "told"), [({}, True, True), ({}, False, False)])
def test_a_gpu_host_with_several_networks_is_told_which_to_name(
    env: dict[str, str], many: bool, told: bool
) -> None:
    own = [{"name": "eth0", "ip": "10.0.0.1"}, {"name": "docker0", "ip": "172.17.0.1"}]
    own += [{"name": "ib0", "ip": "10.1.0.1"}] if many else []
    one = seen("gpu-01", facts__gpus=GPUS, facts__interfaces=own, host__env=env)
    other = seen("gpu-02", facts__interfaces=[{"name": "eth0", "ip": "10.0.0.2"}])
    pairs = [pair("gpu-02", "gpu-01", resolved="10.0.0.1"), pair("gpu-01", "gpu-02", resolved="10.0.0.2")]
    found = [check for check in of_network([one, other], pairs) if check.check == "interface"]
    assert bool(found) is told
    if told:
        assert 'NCCL_SOCKET_IFNAME = "eth0"' in found[0].hint
        named = changed(one, host__env={"NCCL_SOCKET_IFNAME": "ib0"})
        assert not [check for check in of_network([named, other], pairs) if check.check == "interface"]


LIMITS: list[tuple[dict[str, Any], dict[str, Any], str, str]] = [
    ({}, {"limits": {**IMPORTED["limits"], "nofile": 21}}, "limits", "21 open files"),
    ({}, {"limits": {**IMPORTED["limits"], "as": 2 * 10**9}}, "limits", "2.0 GB of address space"),
    ({}, {"limits": {**IMPORTED["limits"], "nproc": 30}}, "limits", "20 more threads"),
    ({"facts__available": 5 * 10**8}, {}, "memory", "500 MB of memory left"),
    ({"facts__gpus": GPUS, "facts__shm": 64 << 20}, {}, "shm", "67 MB in /dev/shm"),
    ({"facts__gpus": GPUS, "host__devices": ("0", "1")}, {"gpus": 0}, "gpu", "TensorFlow sees 0 of 2"),
    (
        {},
        {"modules": [], "importing": "tensorflow", "ended": "killed by SIGILL", "signal": 4},
        "import",
        "Python ended importing tensorflow",
    ),
]


@pytest.mark.parametrize(("facts", "imported", "check", "found"), LIMITS)
def test_limits_below_which_training_fails_are_failures(
    facts: dict[str, Any], imported: dict[str, Any], check: str, found: str
) -> None:
    read = wire.read({**IMPORTED, **imported}, wire.Imported, "imports")
    one = replace(seen(**facts), imported=read)
    assert said(of_hosts([one], NEEDS), Level.FAIL) == [("gpu-01", check, found)]
    fine = replace(seen(), imported=wire.read(IMPORTED, wire.Imported, "imports"))
    assert not said(of_hosts([fine], NEEDS), Level.FAIL)


def test_a_gang_of_many_needs_more_files() -> None:
    few = wire.read({**IMPORTED, "limits": {"nofile": 64}}, wire.Imported, "imports")
    one = replace(seen(), imported=few)
    assert not said(of_hosts([one], NEEDS), Level.FAIL)
    many = Needs(tensorflow=True, legacy_keras=True, tasks=64)
    assert said(of_hosts([one], many), Level.FAIL) == [("gpu-01", "limits", "64 open files")]


def test_a_host_with_a_fraction_of_the_processors_is_named() -> None:
    cluster = [seen(f"gpu-0{number}", facts__cpus=8.0) for number in (1, 2, 3)]
    slow = changed(cluster[2], facts__cpus=2.4)
    assert said(of_hosts([*cluster[:2], slow], NEEDS), W) == [("gpu-03", "cpus", "2.4 per task")]
    assert said(of_hosts(cluster, NEEDS), W) == []
