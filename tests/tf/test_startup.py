"""A cluster that cannot form ends in time, instead of after TensorFlow's silent hour."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.tf.gang import Gang, words, worker_entry

THREE = {"worker": 3}
IMPATIENT = worker_entry(*words("--dataset digits --start-timeout 6"))


@pytest.mark.parametrize(
    "started", ["worker/0", "worker/1"], ids=["seen from the leader", "without the leader"]
)
def test_a_cluster_that_does_not_form_ends_in_time(tmp_path: Path, started: str) -> None:
    with Gang(tmp_path, IMPATIENT, jobs=THREE, start=[started]) as gang:
        at = time.monotonic()
        assert gang.wait() == {started: 1}
        assert time.monotonic() - at < 6 + 15 + 30  # the time-out, what comes after it, a busy machine
