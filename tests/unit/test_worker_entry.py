"""What worker_entry can be asked, refuses before TensorFlow is imported, reads in TF_CONFIG and reports."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from worker_entry import options
from worker_entry.cluster import ALONE, Cluster, Task, choose, parse
from worker_entry.failure import EXIT_USAGE, UsageError
from worker_entry.report import Pace, Reporter
from worker_entry.schedule import Schedule, resolve

ROOT = Path(__file__).parents[2]

WRONG = [
    ("--batch-size 0", "argument --batch-size: must be at least 1, not 0"),
    ("--learning-rate nan", "argument --learning-rate: must be above 0, not nan"),
    ("--dataset Digits!", "argument --dataset: 'Digits!' is not a data set's name"),
    ("--devices gpu", "argument --devices: a list such as gpu:0,gpu:1 is needed: 'gpu' is not one"),
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
    length = Schedule(3, 5, "the tutorial's length")
    assert resolve(given.epochs, given.steps_per_epoch, 60_000, 256) == length


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
        (8, None, (8, 6)),  # 1,437 digits in batches of 256: five and a bit, as Keras counts
        (None, 7, (3, 7)),
        (2, 7, (2, 7)),
    ],
)
def test_the_length_of_training(epochs: int | None, steps: int | None, expected: tuple[int, int]) -> None:
    found = resolve(epochs, steps, 1437, 256)
    assert (found.epochs, found.steps_per_epoch) == expected
    assert found.steps == expected[0] * expected[1]


def test_a_file_that_cannot_be_written_does_not_end_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Reporter(str(tmp_path / "no" / "folder")).ready("")
    assert "report not written" in capsys.readouterr().out


def test_the_pace_leaves_out_the_first_step() -> None:
    now = 100.0
    pace = Pace(lambda: now)
    now += 4  # tracing
    pace.step()
    for _ in range(10):
        now += 0.1
        pace.step()
    assert pace.steps_per_second == pytest.approx(10)
    assert pace.seconds == pytest.approx(5)


TWO = {"worker": ["10.0.0.1:2222", "10.0.0.2:2222"]}
PS = {"chief": ["10.0.0.1:2222"], "worker": ["10.0.0.2:2222"], "ps": ["10.0.0.3:2222"]}


def config(cluster: object, kind: str = "worker", index: int = 0) -> str:
    return json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})


def test_without_tf_config_a_process_is_alone() -> None:
    assert parse(None) == parse("") == parse("{}") == ALONE
    assert not ALONE.distributed
    assert ALONE.is_leader


WRONG_CONFIGS = [
    ("{", "it is no JSON object"),
    (config({"master": ["a:1"]}), '"master" is not a task type'),
    (config({"worker": ["a"]}), '"worker" must be a list'),
    (config(TWO, "worker", 2), "task worker/2 is not in"),
    (json.dumps({"cluster": TWO}), '"task" must have'),
]


@pytest.mark.parametrize(("text", "why"), WRONG_CONFIGS, ids=[why for _, why in WRONG_CONFIGS])
def test_a_wrong_tf_config_says_what_is_wrong(text: str, why: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(text)
    assert caught.value.why.startswith(why)


@pytest.mark.parametrize(
    ("asked", "text", "gpus", "tpu", "name"),
    [
        ("auto", None, 1, None, "one-device"),
        ("auto", None, 2, None, "mirrored"),
        ("auto", None, 0, "local", "tpu"),
        ("auto", config(TWO), 8, None, "multi-worker"),
        ("auto", config(PS, "ps"), 0, None, "parameter-server"),
    ],
)
def test_the_strategy_follows_tf_config_and_devices(
    asked: str, text: str | None, gpus: int, tpu: str | None, name: str
) -> None:
    chosen = choose(asked, parse(text), gpus, tpu)
    assert chosen.name == name
    assert chosen.why


@pytest.mark.parametrize(
    ("asked", "cluster", "what"),
    [
        ("mirrored", TWO, "--strategy mirrored has no use for 2 tasks"),
        ("parameter-server", TWO, "--strategy parameter-server needs chief, worker and ps tasks"),
        ("multi-worker", PS, "--strategy multi-worker has no use for 1 ps tasks"),
        ("auto", {"worker": ["a:1"], "ps": ["b:1"]}, "parameter servers need a chief"),
    ],
)
def test_a_strategy_that_does_not_fit_the_cluster_is_refused(
    asked: str, cluster: dict[str, list[str]], what: str
) -> None:
    jobs = {kind: tuple(addresses) for kind, addresses in cluster.items()}
    with pytest.raises(UsageError) as caught:
        choose(asked, Cluster(jobs, Task("worker", 0)), 0, None)
    assert caught.value.what == what
