"""When a host that was validated is validated again."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from orchestrator.model import Host, Role, TaskId, TaskSpec
from orchestrator.node.look.fingerprint import devices
from orchestrator.run.validity import (
    DAY,
    Validation,
    ValidationDecision,
    data_of,
    decide,
    host_key,
    settled,
    subject_key,
)
from orchestrator.store.validations import Validations

NOW = 1_795_000_000.0
STATE = {"python": "aa", "packages": "bb", "data": "cc"}
AGAIN, STANDS = ValidationDecision(again=True), ValidationDecision(again=False)
SPEC = TaskSpec(TaskId(Role.WORKER, 0), "a", 2222, ("python3", "-m", "worker_entry"), {"A": "b"})
HOST = Host("a", "a", "10.0.0.1")


@pytest.mark.parametrize(
    ("last", "state", "decision"),
    [
        (None, STATE, AGAIN),
        (Validation(NOW, STATE), STATE, STANDS),
        (Validation(NOW - DAY + 1, STATE), STATE, STANDS),
        (Validation(NOW - DAY, STATE), STATE, AGAIN),
        (Validation(NOW + 1, STATE), STATE, AGAIN),  # a clock that was set back
        (Validation(float("nan"), STATE), STATE, AGAIN),
        (Validation(NOW, {**STATE, "data": "dd"}), STATE, ValidationDecision(again=True, changed=("data",))),
        (Validation(NOW, {}), STATE, ValidationDecision(again=True, changed=("data", "packages", "python"))),
        (Validation(NOW, {**STATE, "gpu": "a"}), STATE, ValidationDecision(again=True, changed=("gpu",))),
        (Validation(NOW, {}), {}, AGAIN),
    ],
)
def test_the_decision(
    last: Validation | None, state: Mapping[str, str], decision: ValidationDecision
) -> None:
    assert decide(last, state, NOW) == decision


def test_only_data_may_change_in_a_validation() -> None:
    assert settled(STATE, {**STATE, "data": "fetched"})
    assert not settled(STATE, {**STATE, "packages": "another"})


@pytest.mark.parametrize(
    ("options", "data"),
    [
        ("", ("$TFDS_DATA_DIR/mnist",)),
        ("--dataset digits", ()),
        ("--dataset=digits", ()),
        ("--dataset synthetic --data-dir /data", ()),
        ("--dataset cifar10 --data-dir /data", ("/data/cifar10",)),
        ("--dataset emnist/letters:3.*.* --data-dir=~/tfds", ("~/tfds/emnist",)),
        ("--dataset digits --dataset mnist", ("$TFDS_DATA_DIR/mnist",)),
        ("--dataset /data/records", ("/data/records",)),
        ("--dataset ~/x.tfrecord", ("~/x.tfrecord",)),
        ("--dataset ./records", None),
        ("--dataset x.tfrecord", None),
        ("--data-dir tfds", None),
        ("python3 -m worker_entry --validate --dataset digits", ()),
    ],
)
def test_what_worker_entry_reads(options: str, data: tuple[str, ...] | None) -> None:
    assert data_of(options.split()) == data


def test_another_subject_is_another_memory() -> None:
    plain = subject_key(SPEC, "ab", {}, None)
    others = [
        subject_key(dataclasses.replace(SPEC, argv=(*SPEC.argv, "--epochs=2")), "ab", {}, None),
        subject_key(dataclasses.replace(SPEC, env={"A": "c"}), "ab", {}, None),
        subject_key(dataclasses.replace(SPEC, setup="module load x"), "ab", {}, None),
        subject_key(SPEC, "cd", {}, None),
        subject_key(SPEC, "ab", {"KEY": "1"}, b"k"),
        subject_key(SPEC, "ab", {"KEY": "2"}, b"k"),
    ]
    assert len({plain, *others}) == 1 + len(others)
    assert subject_key(SPEC, "ab", {}, None) == plain
    assert subject_key(SPEC, "ab", {"KEY": "1"}, None) is None, "a guess at a secret could be tried out"


def test_hosts_are_known_by_the_way_to_them() -> None:
    ways = [HOST, dataclasses.replace(HOST, ssh="b"), dataclasses.replace(HOST, user="ada")]
    assert len({host_key(host) for host in ways}) == 3
    assert host_key(dataclasses.replace(HOST, name="renamed")) == host_key(HOST)


@pytest.fixture
def memory(tmp_path: Path) -> Validations:
    return Validations(tmp_path / "state" / "validated")


def test_it_is_remembered_for_a_host_and_a_subject(memory: Validations) -> None:
    memory.write("h", "s", Validation(NOW, STATE))
    memory.write("h", "t", Validation(NOW, STATE))
    memory.write("i", "s", Validation(NOW, STATE))
    assert memory.read("h", "s") == Validation(NOW, STATE)
    assert memory.read("h", "u") is None
    memory.forget("h", "t")
    assert memory.read("h", "t") is None
    assert memory.read("h", "s") is not None
    memory.forget("h")
    assert memory.read("h", "s") is memory.read("h", "t") is None
    assert memory.read("i", "s") is not None


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"{",
        b"[]",
        b'{"at": "soon", "state": {}}',
        b'{"at": 1e400, "state": {}}',
        b'{"at": 1, "state": {"a": 1}}',
        b'{"at": 1, "state": ' + b"[" * 9000,
        b"\xff" * 20_000,
    ],
)
def test_a_damaged_memory_is_none(memory: Validations, tmp_path: Path, damage: bytes) -> None:
    memory.write("h", "s", Validation(NOW, STATE))
    (path,) = (tmp_path / "state" / "validated").iterdir()
    path.write_bytes(damage)
    last = memory.read("h", "s")
    assert last is None or decide(last, STATE, NOW).again
    memory.write("h", "s", Validation(NOW, STATE))
    assert memory.read("h", "s") == Validation(NOW, STATE)


def test_something_else_in_its_place_is_not_followed(memory: Validations, tmp_path: Path) -> None:
    folder = tmp_path / "state" / "validated"
    folder.mkdir(parents=True)
    os.mkfifo(folder / "h-s.json")
    (folder / "h-t.json").symlink_to("/dev/zero")
    assert memory.read("h", "s") is memory.read("h", "t") is None


def test_what_is_too_old_to_count_goes(memory: Validations, tmp_path: Path) -> None:
    memory.write("h", "s", Validation(NOW, STATE))
    (path,) = (tmp_path / "state" / "validated").iterdir()
    (path.parent / "a folder").mkdir()
    old = time.time() - DAY - 1
    os.utime(path, (old, old))
    os.utime(path.parent / "a folder", (old, old))
    memory.write("i", "s", Validation(NOW, STATE))
    assert memory.read("h", "s") is None
    assert memory.read("i", "s") is not None


def test_the_accelerators_of_a_machine(tmp_path: Path) -> None:
    """Folders as the drivers of NVIDIA and AMD make them: no such machine is at hand."""
    for name in ("nvidia0", "nvidiactl", "kfd", "tty0", "sda"):
        (tmp_path / "dev").mkdir(exist_ok=True)
        (tmp_path / "dev" / name).touch()
    gpu = tmp_path / "proc" / "driver" / "nvidia" / "gpus" / "0000:01:00.0"
    gpu.mkdir(parents=True)
    (gpu / "information").write_text("Model: A\n")
    (gpu.parents[1] / "version").write_text("550.1\n")
    first = list(devices(str(tmp_path)))
    assert [line for line in first if line.startswith("dev/")] == ["dev/kfd", "dev/nvidia0", "dev/nvidiactl"]
    (gpu / "information").write_text("Model: B\n")
    assert list(devices(str(tmp_path))) != first
    (gpu.parents[1] / "version").write_text("560.1\n")
    assert list(devices(str(tmp_path)))[-1] == "560.1\n"
