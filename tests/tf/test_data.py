"""Data as they come: prepared tensorflow-datasets without a network, TFRecords, and none at all."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.tf.gang import ROOT, Gang, words, worker_entry
from tests.training import training_python

OPTIONS = words("--optimizer adam --epochs 2")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Digits as TFRecords: `one/` and `four/` training files, and as tensorflow-datasets' mnist."""
    folder = tmp_path_factory.mktemp("data")
    done = subprocess.run(
        [training_python(), "tests/tf/prepare.py", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder


def train(folder: Path, *options: str, jobs: dict[str, int] | None = None) -> list[dict[str, Any]]:
    with Gang(folder, worker_entry(*OPTIONS, *options), jobs=jobs) as gang:
        return gang.finish()


def test_a_prepared_set_needs_no_network(tmp_path: Path, prepared: Path) -> None:
    """It is one file: by data, each of two tasks gets its half of every batch, as one process sees it."""
    both = train(tmp_path, "--data-dir", str(prepared), "--batch-size", "32", jobs={"worker": 2})
    assert {result["dataset"] for result in both} == {"mnist"}
    assert len({result["digest"] for result in both}) == 1
    assert both[0]["note"] == "tensorflow-datasets mnist/3.0.1"
    assert both[0]["test_accuracy"] > 0.7


NO_NETWORK = (
    "import sys; from worker_entry.__main__ import main; from worker_entry.data import prepared\n"
    "prepared.HOST = ('127.0.0.1', 1)\n"
    "sys.exit(main(sys.argv[1:]))"
)


@pytest.mark.parametrize(
    "program",
    [worker_entry(), ["-c", NO_NETWORK, "--download"]],
    ids=["not asked to download", "asked, without a network"],
)
def test_no_data_is_one_error_with_three_ways_out(tmp_path: Path, program: list[str]) -> None:
    with Gang(tmp_path / "gang", [*program, "--data-dir", str(tmp_path / "empty")]) as gang:
        started = time.monotonic()
        assert gang.wait() == {"alone": 1}
        task = gang["alone"]
        assert task.records("error")[0]["message"].startswith("the data set mnist is not on this machine")
        (hint,) = [line for line in task.text.splitlines() if line.startswith("  try: ")]
        assert all(way in hint for way in ("--download", "--data-dir", "--dataset digits"))
        assert time.monotonic() - started < 20  # on an idle machine 3, most of it TensorFlow's import


@pytest.mark.parametrize(("folder", "jobs"), [("one", {}), ("four", {"worker": 2})])
def test_tfrecords_of_ones_own(tmp_path: Path, prepared: Path, folder: str, jobs: dict[str, int]) -> None:
    """`four` has a file for each task and more, so each task reads files of its own."""
    results = train(tmp_path, "--dataset", str(prepared / folder), jobs=jobs)
    assert len({result["digest"] for result in results}) == 1
    assert results[0]["dataset"] == folder
    assert results[0]["test_accuracy"] > 0.6
