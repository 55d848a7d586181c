"""Chief, workers, and ps: both loops, a worker replaced during the run, a stop, a restart, and success."""

import re
import signal
from pathlib import Path

import pytest

from tests.tf.gang import Gang, words, worker_entry

CLUSTER = {"chief": 1, "worker": 2, "ps": 1}
TRAINING = words("--dataset digits --optimizer adam")
SERVERS = ["worker/0", "worker/1", "ps/0"]
SAVED = 75


@pytest.mark.soak
def test_fit_survives_losing_one_worker_and_all_of_them(tmp_path: Path) -> None:
    kept = ["--checkpoint-dir", str(tmp_path / "checkpoints")]
    training = worker_entry(*TRAINING, "--epochs", "400", "--save-every", "10", *kept)
    with Gang(tmp_path / "first", training, jobs=CLUSTER) as first:
        chief = first["chief/0"]
        first.until("the first step", lambda: chief.step > 0)
        first["worker/1"].kill()
        before = chief.step
        first.until("steps without that worker", lambda: chief.step > before + 20)
        replaced = first.start("worker/1")
        first.until("the new worker", lambda: len(replaced.records("ready")) == 2)
        before = chief.step
        first.until("steps with the new worker", lambda: chief.step > before + 20)
        for task in first.tasks.values():
            task.kill()
        at_least = chief.step
    epochs = at_least // 23 + 6
    again = worker_entry(
        *TRAINING, "--epochs", str(epochs), *kept, "--export-dir", str(tmp_path / "exported")
    )
    with Gang(tmp_path / "second", again, jobs=CLUSTER) as second:
        assert set(second.wait().values()) == {0}, second.tails()
        chief = second["chief/0"]
        found = re.search(r"continues at step (\d+)", chief.text)
        assert found
        # Only the steps since the last save are repeated.
        assert int(found[1]) >= at_least - 10 + 1  # killed during a save, it resumes from the previous one
        assert chief.result["steps"] == epochs * 23
        assert chief.result["test_accuracy"] > 0.8
        assert (tmp_path / "exported" / "saved_model.pb").is_file()


def test_the_coordinator_loop_stops_resumes_and_ends_all_tasks(tmp_path: Path) -> None:
    training = worker_entry(*TRAINING, *words("--loop custom --checkpoint-dir"), str(tmp_path / "kept"))
    with Gang(tmp_path / "first", [*training, "--epochs", "400"], jobs=CLUSTER) as first:
        chief = first["chief/0"]
        first.until("the first step", lambda: chief.step > 0)
        for task in first.tasks.values():
            task.signal(signal.SIGTERM)
        # The ps tasks hold the weights, so they must not stop before the chief has saved them.
        assert first.wait() == {"chief/0": SAVED, **dict.fromkeys(SERVERS, 0)}, first.tails()
        found = re.search(r"saved at step (\d+)", chief.text)
        assert found
        step = int(found[1])
    epochs = step // 23 + 8  # it was stopped early: enough to learn something
    with Gang(tmp_path / "second", [*training, "--epochs", str(epochs)], jobs=CLUSTER) as gang:
        assert set(gang.wait().values()) == {0}, gang.tails()
        assert f"continues at step {step + 1}" in gang["chief/0"].text
        result = gang["chief/0"].result
        assert (result["steps"], result["dataset"]) == (epochs * 23, "digits")
        assert result["test_accuracy"] > 0.8
        assert [len(gang[name].records("ready")) for name in SERVERS] == [1, 1, 1]


def test_a_missing_ps_ends_the_chief_in_time(tmp_path: Path) -> None:
    training = worker_entry(*TRAINING, "--start-timeout", "3")
    with Gang(tmp_path, training, jobs=CLUSTER, start=["chief/0"]) as gang:
        assert gang.wait() == {"chief/0": 1}
        assert "Timeout (0:00:03)!" in gang["chief/0"].text
