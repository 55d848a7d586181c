"""A cluster that cannot form ends in time, instead of after TensorFlow's silent hour."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.tf.gang import Gang, words, worker_entry
from worker_entry.ports import OPEN, look

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


def test_a_port_in_use_is_said_at_once(tmp_path: Path) -> None:
    patient = worker_entry(*words("--dataset digits --start-timeout 100"))  # it shall hold the port
    with (
        Gang(tmp_path / "one", patient, jobs=THREE, start=["worker/0"]) as one,
        Gang(tmp_path / "two", worker_entry("--dataset", "digits"), jobs=THREE, start=[]) as two,
    ):
        one.until("its server", lambda: look(one.cluster["worker"][0]) == OPEN)
        two.cluster = one.cluster
        second = two.start("worker/0")
        assert two.wait() == {"worker/0": 1}
        assert "Could not start gRPC server" in second.records("error")[0]["message"]


def test_without_a_tpu_the_error_names_what_was_looked_for(tmp_path: Path) -> None:
    training = worker_entry("--dataset", "digits", "--strategy", "tpu")
    with Gang(tmp_path, training, env={"TPU_NAME": "my-tpu"}) as gang:
        assert gang.wait() == {"alone": 1}
        (error,) = gang["alone"].records("error")
        assert error["message"].startswith("no TPU was found; looked for my-tpu (--tpu, TPU_NAME)")
