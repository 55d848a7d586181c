"""When a host that was validated is validated again."""

from __future__ import annotations

import dataclasses
import os
import time
from pathlib import Path

import pytest

from orchestrator.model import Host, Role, TaskId, TaskSpec
from orchestrator.node.look.fingerprint import devices
from orchestrator.run.validity import DAY, data_of, host_key, subject_key
from orchestrator.store.validations import Validations

SPEC = TaskSpec(TaskId(Role.WORKER, 0), "a", 2222, ("python3", "-m", "worker_entry"), {"A": "b"})
HOST = Host("a", "a", "10.0.0.1")


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
    plain = subject_key(SPEC, "ab", "st", {}, None)
    others = [
        subject_key(dataclasses.replace(SPEC, argv=(*SPEC.argv, "--epochs=2")), "ab", "st", {}, None),
        subject_key(dataclasses.replace(SPEC, env={"A": "c"}), "ab", "st", {}, None),
        subject_key(dataclasses.replace(SPEC, setup="module load x"), "ab", "st", {}, None),
        subject_key(SPEC, "cd", "st", {}, None),
        subject_key(SPEC, "ab", "changed", {}, None),
        subject_key(SPEC, "ab", "st", {"KEY": "1"}, b"k"),
        subject_key(SPEC, "ab", "st", {"KEY": "2"}, b"k"),
    ]
    assert len({plain, *others}) == 1 + len(others)
    assert subject_key(SPEC, "ab", "st", {}, None) == plain
    assert subject_key(SPEC, "ab", "st", {"KEY": "1"}, None) is None, "a guess at a secret could be tried out"


def test_hosts_are_known_by_the_way_to_them() -> None:
    ways = [HOST, dataclasses.replace(HOST, ssh="b"), dataclasses.replace(HOST, user="ada")]
    assert len({host_key(host) for host in ways}) == 3
    assert host_key(dataclasses.replace(HOST, name="renamed")) == host_key(HOST)


@pytest.fixture
def memory(tmp_path: Path) -> Validations:
    return Validations(tmp_path / "state" / "validated")


def test_it_is_remembered_for_a_host_and_a_subject(memory: Validations) -> None:
    memory.write("h", "s")
    memory.write("i", "s")
    age = memory.age("h", "s")
    assert age is not None
    assert 0 <= age < DAY
    assert memory.age("h", "u") is None
    memory.forget("h")
    assert memory.age("h", "s") is None
    assert memory.age("i", "s") is not None


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'"soon"', b"1e400", b"99999999999", b"0", b"[" * 9000])
def test_a_damaged_memory_is_none(memory: Validations, tmp_path: Path, damage: bytes) -> None:
    """A moment that is not within the last day, too: a clock may have been set back."""
    memory.write("h", "s")
    (path,) = (tmp_path / "state" / "validated").iterdir()
    path.write_bytes(damage)
    assert memory.age("h", "s") is None
    memory.write("h", "s")
    assert memory.age("h", "s") is not None


def test_something_else_in_its_place_is_not_followed(memory: Validations, tmp_path: Path) -> None:
    folder = tmp_path / "state" / "validated"
    folder.mkdir(parents=True)
    os.mkfifo(folder / "h-s.json")
    (folder / "h-t.json").symlink_to("/dev/zero")
    assert memory.age("h", "s") is memory.age("h", "t") is None


def test_a_memory_that_is_too_old_goes(memory: Validations, tmp_path: Path) -> None:
    memory.write("h", "s")
    (path,) = (tmp_path / "state" / "validated").iterdir()
    old = time.time() - DAY - 1
    os.utime(path, (old, old))
    memory.write("i", "s")
    assert [file.name for file in (tmp_path / "state" / "validated").iterdir()] == ["i-s.json"]


def test_the_accelerators_of_a_machine(tmp_path: Path) -> None:
    """Folders as the drivers of NVIDIA and AMD make them: no such machine is at hand."""
    for name in ("nvidia0", "nvidiactl", "kfd", "tty0", "sda"):
        (tmp_path / "dev").mkdir(exist_ok=True)
        (tmp_path / "dev" / name).touch()
    driver = tmp_path / "proc" / "driver" / "nvidia"
    (driver / "gpus" / "0000:01:00.0").mkdir(parents=True)
    (driver / "version").write_text("550.1\n")
    assert list(devices(str(tmp_path))) == [
        "dev/kfd",
        "dev/nvidia0",
        "dev/nvidiactl",
        "proc/driver/nvidia/gpus/0000:01:00.0",
        "550.1\n",
    ]
