"""What can be asked of worker_entry, and what is refused before TensorFlow is imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from worker_entry import options
from worker_entry.failure import EXIT_USAGE
from worker_entry.schedule import Schedule, resolve

ROOT = Path(__file__).parents[2]

WRONG = [
    ("--batch-size 0", "argument --batch-size: must be at least 1, not 0"),
    ("--learning-rate -1", "argument --learning-rate: must be above 0, not -1"),
    ("--learning-rate nan", "argument --learning-rate: must be above 0, not nan"),
    ("--learning-rate inf", "argument --learning-rate: must be above 0, not inf"),
    ("--seed -1", "argument --seed: must be at least 0, not -1"),
    ("--dataset Digits!", "argument --dataset: 'Digits!' is not a data set's name"),
    ("--devices gpu", "argument --devices: a list such as gpu:0,gpu:1 is needed: 'gpu' is not one"),
    ("--start-timeout 0", "argument --start-timeout: must be above 0, not 0"),
    ("--save-every 5", "--save-every needs --checkpoint-dir"),
    ("--epoch 4", "unrecognized arguments: --epoch 4"),
]


@pytest.mark.parametrize(("line", "message"), WRONG, ids=[line for line, _ in WRONG])
def test_a_wrong_option_is_one_clear_error(
    line: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        options.parse(line.split())
    assert ended.value.code == EXIT_USAGE
    error = capsys.readouterr().err.splitlines()
    assert error[0].startswith(f"error: {message}")
    assert error[1].startswith("  try: ")
    assert len(error) == 2


def test_a_wrong_option_costs_no_import_of_tensorflow() -> None:
    look = (
        "import sys; from worker_entry.__main__ import main\n"
        "try: main(['--batch-size', '0'])\n"
        "except SystemExit as end: assert end.code == 2\n"
        "assert not {'tensorflow', 'numpy', 'tf_keras'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", look], cwd=ROOT, check=True, capture_output=True)


def test_nothing_given_is_the_tutorial() -> None:
    given = options.parse([])
    assert (given.dataset, given.loop, given.optimizer) == ("mnist", "fit", "sgd")
    assert (given.batch_size, given.learning_rate, given.strategy) == (64, 1e-3, "auto")
    assert resolve(given.epochs, given.steps_per_epoch, 60_000, 256) == Schedule(
        3, 5, "the tutorial's length"
    )


def test_a_validation_is_alone_and_touches_nothing_of_the_jobs() -> None:
    line = (
        "--strategy multi-worker --dataset digits --epochs 100 --batch-size 32"
        " --checkpoint-dir c --export-dir e --tensorboard-dir t --download --validate"
    )
    job = options.parse(line.split())
    assert job.validate
    alone = options.for_validation(job)
    assert (alone.strategy, alone.epochs, alone.steps_per_epoch) == ("one-device", None, None)
    assert (alone.dataset, alone.batch_size) == ("digits", 32)
    assert (alone.checkpoint_dir, alone.export_dir, alone.tensorboard_dir) == (None,) * 3


@pytest.mark.parametrize(
    ("epochs", "steps", "expected"),
    [
        (None, None, (3, 5)),
        (8, None, (8, 6)),  # 1,437 digits in batches of 256: five and a bit, as Keras counts
        (None, 7, (3, 7)),
        (2, 7, (2, 7)),
    ],
)
def test_the_length_of_training(epochs: int | None, steps: int | None, expected: tuple[int, int]) -> None:
    found = resolve(epochs, steps, 1437, 256)
    assert (found.epochs, found.steps_per_epoch) == expected
    assert found.steps == expected[0] * expected[1]


def test_a_restart_begins_at_the_very_next_step() -> None:
    schedule = Schedule(4, 5, "")
    assert [schedule.position(done) for done in (0, 4, 5, 12, 20)] == [(0, 0), (0, 4), (1, 0), (2, 2), (4, 0)]
