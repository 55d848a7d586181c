"""Plans reported by nodes, matched with the hosts of the inventory; their seal, and its key."""

import errno
import json
import os
import stat
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NoReturn

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from orchestrator.errors import ClusterError, ExitStatus, UsageError, worded
from orchestrator.model import Host, Inventory, Job, Preparing, Restarts, RunPlan
from orchestrator.phases.connect import for_nodes
from orchestrator.planning.takeover import PLANNED, RunReport, adopt, join, speaks_for
from orchestrator.store.folder import decode_plan, encode_plan
from orchestrator.store.key import OpenedPlan, key_path, opened, own_key, read_key, seal
from tests.golden import matches_golden
from tests.unit.plans import host, make

OURS = Inventory(
    (
        host("a", identity="~/.ssh/ours", ssh_config="ours", user="ada", port=22, python="/ours/python"),
        host("b"),
        host("c", spare=True),
    )
)
JOB = Job(secrets=("TOKEN",), max_restarts=3, backup="/etc", setup="evil", env={"LD_PRELOAD": "evil.so"})
PLAN = make(
    host(
        "a", identity="theirs", ssh_config="theirs", user="eve", port=7, python="/theirs/python", state="/s"
    ),
    host("b", agent_python="/theirs/agent"),
    host("c", spare=True),
    job=JOB,
    command=("evil.py",),
)


def report(by: str, plan: RunPlan = PLAN, *, authentic: bool = False) -> RunReport:
    return RunReport(by, plan, authentic)


def adopted(*reports: RunReport, answering: tuple[str, ...] = ("a", "b", "c")) -> RunPlan:
    (known,) = join(reports)
    return adopt(known, OURS, answering)


@pytest.mark.parametrize("authentic", [True, False], ids=["sealed", "untrusted"])
def test_fields_taken_over_from_a_plan(request: pytest.FixtureRequest, *, authentic: bool) -> None:
    """Without our seal nothing that could be executed; with it, hosts as this machine reaches them."""
    plan = adopted(*(report(by, authentic=authentic) for by in "ab"))
    assert bool(plan.untrusted) is not authentic
    usual = msgspec.to_builtins(replace(plan, hosts=()))
    hosts = [msgspec.to_builtins(host) for host in plan.hosts]
    matches_golden(f"takeover/{request.node.callspec.id}.json", json.dumps([usual, hosts], indent=1) + "\n")


def test_host_fields_allowed_in_a_plan_are_listed() -> None:
    """Any new field of a host comes from the inventory, unless it is added to that list."""
    fields = set(Host.__struct_fields__)
    reach = {"via", "ssh", "user", "port", "identity", "ssh_config", "agent_python"}
    assert set(PLANNED) <= fields
    assert not reach & set(PLANNED)


def test_a_later_attempt_counts_only_if_sealed() -> None:
    second = replace(PLAN, attempt=2)
    lie = replace(PLAN, attempt=99, command=("lie",))
    own = [report("a", PLAN, authentic=True), report("b", second, authentic=True)]
    (known,) = join([*own, report("c", lie)])
    assert known.plan == second
    assert known.authentic
    assert not known.contradiction
    staged = replace(PLAN, tree="7e" * 16)
    (known,) = join([report("a", staged, authentic=True), report("b", PLAN, authentic=True)])
    assert known.plan.tree


def test_a_host_without_the_run_does_not_tell_of_it() -> None:
    assert join([report("stranger")]) == []
    (known,) = join([report("a"), report("stranger")])
    assert known.reporters == ("a",)


@pytest.mark.parametrize(
    "other", [replace(PLAN, command=("other",)), replace(PLAN, owner="eve@evil"), replace(PLAN, spares=())]
)
def test_unsealed_plans_must_agree(other: RunPlan) -> None:
    with pytest.raises(ClusterError) as caught:
        adopted(report("a"), report("b", other))
    assert "a and b report different" in caught.value.why
    assert not adopted(report("a", authentic=True), report("b", other)).untrusted
    adopted(report("a"), report("b", replace(PLAN, attempt=2)))  # b alone heard of the next one


def test_every_host_that_answers_has_to_know_the_run() -> None:
    own = report("a", authentic=True)
    assert "b has no record of it" in adopted(own).untrusted
    assert not adopted(own, answering=("a", "c")).untrusted  # b is unreachable


@pytest.mark.parametrize(
    ("hosts", "why"),
    [
        ((host("a"),), "b is not in it"),
        (
            (host("a"), replace(host("b"), address="10.0.0.9")),
            "b has the address 10.0.0.9 there, b in the plan",
        ),
    ],
)
@pytest.mark.parametrize("authentic", [True, False])
def test_the_inventory_has_to_hold_every_host(hosts: tuple[Host, ...], why: str, *, authentic: bool) -> None:
    (known,) = join([report("a", authentic=authentic)])
    with pytest.raises(UsageError) as caught:
        adopt(known, Inventory(hosts), ())
    assert why in caught.value.why
    many = replace(PLAN, retired=tuple(host(f"\x1b[31mx{n}" * 200) for n in range(500)))
    (known,) = join([report("a", many, authentic=authentic)])
    with pytest.raises(UsageError) as caught:
        adopt(known, OURS, ())
    assert len(caught.value.why) < 2000
    assert caught.value.why.isprintable()
    assert "and 495 more" in caught.value.why


FIRST, SECOND = PLAN.tasks
A_HOST, B_HOST = PLAN.hosts
TWICE = "a host appears twice"
# Modifications of a plan by a node, and the resulting message.
IMPOSSIBLE: list[tuple[dict[str, object], str]] = [
    ({"tasks": ()}, "its tasks are on other hosts"),
    ({"tasks": (FIRST, replace(SECOND, host="c"))}, "its tasks are on other hosts"),
    ({"tasks": (FIRST, replace(SECOND, id=FIRST.id))}, "its tasks are not distinct"),
    ({"tasks": (FIRST, replace(SECOND, id=replace(SECOND.id, index=10**9)))}, "its tasks are not distinct"),
    ({"tasks": (FIRST, replace(SECOND, argv=()))}, "a task has no command"),
    ({"tasks": (FIRST, replace(SECOND, port=0))}, "a port is out of range"),
    ({"hosts": (A_HOST, replace(B_HOST, port=99_999))}, "a port is out of range"),
    ({"hosts": (A_HOST, replace(B_HOST, ssh="-oProxyCommand=x"))}, "a host cannot be reached"),
    ({"hosts": (A_HOST, replace(B_HOST, tasks=0))}, "a host has no tasks"),
    ({"hosts": (A_HOST, A_HOST)}, TWICE),
    ({"retired": (A_HOST,)}, TWICE),
    ({"run": "../x"}, ""),
    ({"tree": "../x"}, "its code has no digest"),
    ({"attempt": 0}, "it counts its attempts wrong"),
    ({"created": -1.0}, "its launch time is unknown"),
    ({"grace": -1.0}, "one of its times is out of range"),
    ({"restarts": Restarts(host_timeout=1e300)}, "one of its times is out of range"),
    ({"preparing": Preparing(stands_in={"x": "a"})}, "it prepares hosts that are not in it"),
]


def test_values_shared_by_tasks_are_stored_once() -> None:
    plan = make(host("a"), host("b"), host("c"))
    (stored,) = {task.env["ORCHESTRATE_HOSTS"] for task in plan.tasks}
    data = encode_plan(plan)
    assert data.count(b'"ORCHESTRATE_HOSTS": "' + stored.encode()) == 1
    assert decode_plan(data) == plan


@pytest.mark.parametrize(("changes", "why"), IMPOSSIBLE)
def test_an_impossible_plan_is_rejected(changes: dict[str, object], why: str) -> None:
    assert decode_plan(encode_plan(PLAN)) == PLAN
    with pytest.raises(msgspec.ValidationError, match=why or None):
        decode_plan(encode_plan(replace(PLAN, **changes)))


def test_only_its_host_reports_on_a_task() -> None:
    second = replace(PLAN, attempt=2)
    assert speaks_for(second, "a", "2", "worker/0")
    assert speaks_for(second, "a", "4", "worker/0")
    assert speaks_for(second, "a", "5", "worker/0") is False  # more than the restarts allow
    assert speaks_for(second, "b", "2", "worker/0") is False  # the other host's task
    assert speaks_for(second, "a", "2", "worker/1") is False
    assert speaks_for(second, "b", "1", "worker/0")  # it may have had the task then
    assert speaks_for(second, "b", "validate", "worker/1")


KEY, OTHER = bytes(32), bytes(range(32))
OWN = make(host("a", identity="~/.ssh/mine", ssh_config="~/x", user="ada", port=2200))
TEXT = msgspec.json.encode(for_nodes(OWN))


def test_a_sealed_plan_is_authentic_only_with_its_key() -> None:
    sealed = seal(TEXT, KEY)
    assert opened(sealed, KEY) == OpenedPlan(TEXT, authentic=True)
    for key in (OTHER, None):
        assert opened(sealed, key) == OpenedPlan(TEXT, authentic=False)
    assert opened(seal(TEXT, None), KEY) == OpenedPlan(TEXT, authentic=False)
    assert decode_plan(opened(sealed, KEY).plan) == for_nodes(OWN)


def test_plans_on_nodes_omit_how_this_machine_connects() -> None:
    for own in ("~/.ssh/mine", "~/x", "2200", '"ada"'):
        assert own not in TEXT.decode()


@given(st.integers(0), st.binary(min_size=1, max_size=3))
def test_a_modified_plan_is_not_authentic(place: int, bytes_: bytes) -> None:
    sealed = seal(TEXT, KEY).encode()
    at = place % len(sealed)
    altered = sealed[:at] + bytes_ + sealed[at + len(bytes_) :]
    try:
        found = opened(altered.decode(errors="surrogateescape"), KEY)
    except ValueError:
        return
    assert found.authentic == (found.plan == TEXT and altered == sealed)


def test_a_small_compressed_text_cannot_expand_without_bound() -> None:
    with pytest.raises(ValueError, match="it ends elsewhere"):
        opened(seal(bytes(65 << 20), None), KEY)


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "config"


def test_concurrent_launches_create_one_key(config: Path) -> None:
    together = threading.Barrier(8)

    def key() -> bytes | None:
        together.wait()
        return own_key()

    with ThreadPoolExecutor(8) as pool:
        for _ in range(20):
            keys = {made.result() for made in [pool.submit(key) for _ in range(8)]}
            assert keys == {read_key()}
            assert os.listdir(config / "orchestrate") == ["key"]
            key_path().unlink()


def test_a_key_is_created_once_and_only_for_its_owner(config: Path) -> None:
    assert read_key() is None
    key = own_key()
    assert key is not None
    assert len(key) == 32
    assert own_key() == read_key() == key
    assert key_path() == config / "orchestrate" / "key"
    assert stat.S_IMODE(key_path().stat().st_mode) == 0o600
    assert stat.S_IMODE(key_path().parent.stat().st_mode) == 0o700
    assert os.listdir(key_path().parent) == ["key"]


def put(path: Path, make: Callable[[], None]) -> None:
    """Replace a file with something else."""
    path.unlink()
    make()


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda path: path.chmod(0o640), "its mode is 640"),
        (lambda path: path.write_text(""), "it is damaged"),
        (lambda path: put(path, lambda: os.mkfifo(path, 0o600)), "not a regular file"),
        (lambda path: put(path, lambda: path.symlink_to(path)), "symbolic links"),
    ],
)
@pytest.mark.usefixtures("config")
def test_an_invalid_key_is_an_error(damage: Callable[[Path], object], why: str) -> None:
    own_key()
    damage(key_path())
    for use in (read_key, own_key):
        with pytest.raises(UsageError) as caught:
            use()
        assert why in caught.value.why
        assert caught.value.hint.startswith("`")


@pytest.mark.usefixtures("config")
def test_the_advice_is_not_to_move_another_user_s_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """HOME may be root's in a container that runs as another user."""

    def refuse(*_: object, **__: object) -> int:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("orchestrator.store.key.open_plain", refuse)
    with pytest.raises(UsageError, match="cannot be used") as caught:
        own_key()
    assert caught.value.hint.startswith("set XDG_CONFIG_HOME")


def test_a_user_without_a_home_folder_gets_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container whose user is not in /etc/passwd, with an empty environment."""

    def refuse(uid: int) -> NoReturn:
        raise KeyError(uid)

    for name in ("HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", refuse)
    with pytest.raises(RuntimeError) as caught:
        own_key()
    error = worded(caught.value)
    assert (error.status, error.hint[:15]) == (ExitStatus.HERE, "`export HOME=FO")
