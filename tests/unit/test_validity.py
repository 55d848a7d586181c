"""When a host that was validated is validated again."""

from __future__ import annotations

import dataclasses
import os
import time
from pathlib import Path

from orchestrator.model import Host, Role, TaskId, TaskSpec
from orchestrator.node.look.facts import devices
from orchestrator.store.validations import DAY, Validations, subject

SPEC = TaskSpec(TaskId(Role.WORKER, 0), "a", 2222, ("python3", "-m", "worker_entry"), {"A": "b"})
HOST = Host("a", "a", "10.0.0.1")
OTHER = dataclasses.replace(HOST, ssh="b")


def test_another_subject_is_another_memory() -> None:
    plain = subject(SPEC, "ab", "st")
    others = [
        subject(dataclasses.replace(SPEC, argv=(*SPEC.argv, "--epochs=2")), "ab", "st"),
        subject(dataclasses.replace(SPEC, env={"A": "c"}), "ab", "st"),
        subject(dataclasses.replace(SPEC, setup="module load x"), "ab", "st"),
        subject(SPEC, "cd", "st"),
        subject(SPEC, "ab", "changed"),
    ]
    assert len({plain, *others}) == 1 + len(others)
    assert subject(SPEC, "ab", "st") == plain


def test_it_is_remembered_for_the_way_to_a_host_and_a_subject(tmp_path: Path) -> None:
    memory = Validations(tmp_path / "state" / "validated")
    assert memory.age(HOST, "s") is None
    memory.write(HOST, "s")
    memory.write(OTHER, "s")
    age = memory.age(dataclasses.replace(HOST, name="renamed"), "s")
    assert age is not None
    assert 0 <= age < DAY
    assert memory.age(HOST, "u") is None
    memory.forget(HOST)
    assert memory.age(HOST, "s") is None
    assert memory.age(OTHER, "s") is not None


def test_a_memory_that_is_too_old_or_of_the_future_counts_no_more(tmp_path: Path) -> None:
    memory = Validations(tmp_path)
    for seconds in (-DAY - 1, 60.0):
        memory.write(HOST, "s")
        (path,) = tmp_path.iterdir()
        os.utime(path, (time.time() + seconds,) * 2)
        assert memory.age(HOST, "s") is None
        memory.write(OTHER, "s")
        assert memory.age(HOST, "s") is None
        assert len(list(tmp_path.iterdir())) == 1
        memory.forget(OTHER)


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
