"""Data points of training, thinned on arrival and read while being written."""

import random
from itertools import pairwise
from pathlib import Path

import pytest

from orchestrator.events import TaskProgressed
from orchestrator.run.points import Thinned, TrainingPoint
from orchestrator.store.points import PointFile, PointReader

MANY = 30_000


def point(n: int, **values: float) -> TrainingPoint:
    return TrainingPoint(n, float(n), "worker/0", "1", n, values)


@pytest.mark.parametrize("tasks", [1, 64])
def test_a_metric_keeps_a_bounded_number_of_points_over_the_whole_run(tasks: int) -> None:
    """The first, last, lowest, and highest are kept; a rare metric loses no points to a frequent one."""
    most = {1: 1000, 64: 125}[tasks]
    thinned = Thinned(tasks)
    for n in range(MANY):
        loss = {777: 1e6, 999: -1e6}.get(n, 1 / (n + 1))
        thinned.take(point(n, loss=loss, **({"val_loss": 0.5} if n % 1000 == 0 else {})))
    found = thinned.points()
    steps = [one.step for one in found]
    assert steps == sorted(set(steps))
    assert most / 2 <= len(steps) <= most + MANY // 1000 + 4
    assert {0, 777, 999, MANY - 1} <= set(steps)
    kept = [one.step for one in found if one.kept and "val_loss" not in one.values]
    assert max(b - a for a, b in pairwise(kept)) <= 4 * MANY / most
    assert sum("val_loss" in one.values for one in found) == MANY // 1000


def test_names_of_metrics_are_bounded() -> None:
    thinned = Thinned(1)
    for n in range(2000):
        thinned.take(point(n, **{f"m{n}": 1.0}))
    assert len(thinned.points()) <= 32


def test_a_reader_gets_each_point_once_and_always_the_last_one(tmp_path: Path) -> None:
    """Even if the file is rewritten meanwhile, or the keeper is replaced."""
    dice = random.Random(7)
    file, readers = PointFile(tmp_path / "p", 1), [PointReader(tmp_path / "p") for _ in range(3)]
    seen: list[list[int]] = [[] for _ in readers]
    for n in range(MANY):
        event = TaskProgressed("worker/0", n, 1.0, None)
        shown = file.take(event, "1", float(n)) or file.newest("worker/0", now=n % 10 == 0)
        if shown and dice.random() < 0.1:
            file.write()
        for number, reader in enumerate(readers):
            if dice.random() < (0.01, 0.001, 0.0001)[number]:
                seen[number] += [one.step for one in reader.poll()]
        if n % 7000 == 6999:
            file.write()
            file = PointFile(tmp_path / "p", 1)
    file.newest("worker/0", now=True)
    file.write()
    for steps, reader in zip(seen, readers, strict=True):
        steps += [one.step for one in reader.poll()]
        assert steps == sorted(set(steps))
        assert steps[-1] == MANY - 1
        assert len(steps) > 400
    assert (tmp_path / "p").stat().st_size < 500_000


@pytest.mark.parametrize(
    "damage", [b"", b"{}\n", b"\xff" * 99, b"[" * 100_000, b'{"n":1,"made":1,"strides":3}\n']
)
def test_damaged_points_are_skipped_and_repaired(damage: bytes, tmp_path: Path) -> None:
    path = tmp_path / "p"
    path.write_bytes(damage + b"\nhalf")
    assert PointReader(path).poll() == []
    file = PointFile(path, 1)
    file.take(TaskProgressed("worker/0", 1, 1.0, None), "1", 1.0)
    file.write()
    assert [one.step for one in PointReader(path).poll()] == [1]


def test_a_new_keeper_keeps_the_same_density_of_points(tmp_path: Path) -> None:
    file, half = PointFile(tmp_path / "p", 1), 64_000
    for n in range(2 * half):
        if n == half:
            file.write()
            file = PointFile(tmp_path / "p", 1)
        file.take(TaskProgressed("worker/0", n, 1.0, None), "1", float(n))
    file.write()
    kept = [one.step for one in PointReader(tmp_path / "p").poll() if one.kept]
    early = sum(step < half for step in kept)
    assert 0.3 < early / len(kept) < 0.7
