"""The file of `--metrics`, read by Prometheus' own parser."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from orchestrator import events as ev
from orchestrator.events import Event, Noted, Stamped
from orchestrator.store.metrics import MetricsFile

ODD = 'a "b" \\ c\nd'
HISTORY: tuple[Event, ...] = (
    ev.RunPlanned("20261121-010203-abcd", ODD, "me@here", ("x",), (("worker/0", "gpu-01"),), (), "/runs"),
    ev.TreeSynced("gpu-01", "0" * 64, 3, 1000, 0.1, reused=False),
    ev.DataPlaced("gpu-01", "0" * 64, "/data", 10**9, 5, 10**9, 0.1, reused=False),
    ev.TaskStarted("worker/0", "gpu-01", "1", 7),
    ev.TaskProgressed("worker/0", 30, 0.25, 12.5),
)


def figures(path: Path) -> dict[tuple[str, ...], float]:
    """What the file says: (metric, the labels but those of the run) -> value."""
    found: dict[tuple[str, ...], float] = {}
    for family in text_string_to_metric_families(path.read_text()):
        for sample in family.samples:
            labels = dict(sample.labels)
            assert (labels.pop("run"), labels.pop("name")) == ("20261121-010203-abcd", ODD)
            found[sample.name.removeprefix("orchestrate_"), *labels.values()] = sample.value
    return found


def write(path: Path, *events: Event) -> list[Event]:
    """Write what is known after these events; return what was said of it."""
    said: list[Event] = []
    metrics = MetricsFile(path, [Stamped(100.0, one) for one in HISTORY])
    metrics.start(said.append)
    for event in events:
        metrics(Stamped(101.0, event))
    metrics.finish()
    return said


def test_prometheus_reads_the_figures_of_a_run(tmp_path: Path) -> None:
    path = tmp_path / "run.prom"
    assert write(path) == []
    found = figures(path)
    assert found["task_step", "worker/0", "gpu-01"] == 30
    assert found["task_loss", "worker/0", "gpu-01"] == 0.25
    assert found["task_steps_per_second", "worker/0", "gpu-01"] == 12.5
    assert found["run_start_time_seconds",] == 100.0
    assert found["host_received_bytes_total", "gpu-01"] == 10**9 + 1005
    states = {key[3] for key, value in found.items() if key[0] == "task_state" and value}
    assert states == {"training"}
    assert (path.stat().st_mode & 0o777, os.listdir(tmp_path)) == (0o644, ["run.prom"])

    failed = ev.AttemptFailed("1", "x", "worker/0", (), "", 0.0, 1, 2)
    ended = ev.RunEnded("20261121-010203-abcd", ev.Outcome.FAILED, 1, 9.0, "x", "", (), "/runs")
    write(path, ev.TaskProgressed("worker/0", 31, None, None, diverged="nan"), failed, ended)
    found = figures(path)
    assert math.isnan(found["task_loss", "worker/0", "gpu-01"])
    assert (found["task_step", "worker/0", "gpu-01"], found["run_restarts_total",]) == (31, 1)
    assert {key[1] for key, value in found.items() if key[0] == "run_ended" and value} == {"failed"}


@pytest.mark.parametrize("name", ["nowhere/run.prom", "folder", "fifo"])
def test_a_file_that_cannot_be_written_is_one_note(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "fifo")
    [note] = write(tmp_path / name, *HISTORY[3:])
    assert isinstance(note, Noted)
    assert str(tmp_path / name) in note.text
    assert sorted(os.listdir(tmp_path)) == ["fifo", "folder"]
