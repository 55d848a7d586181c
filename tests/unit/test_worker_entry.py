"""Options of worker_entry, its use of TF_CONFIG, its reports, and the common step at which tasks stop."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Set as AbstractSet
from pathlib import Path

import pytest

from worker_entry import options
from worker_entry.cluster import ALONE, Cluster, Task, choose, parse
from worker_entry.failure import EXIT_USAGE, ExpectedError, UsageError
from worker_entry.ports import GONE_AFTER, OPEN, Presence
from worker_entry.report import Pace, Reporter
from worker_entry.schedule import Schedule, resolve
from worker_entry.stopping import NEVER, STEP, Stop

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
def test_an_invalid_option_is_one_clear_error(
    line: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        options.parse(line.split())
    assert ended.value.code == EXIT_USAGE
    error = capsys.readouterr().err.splitlines()
    assert error[0].startswith(f"error: {message}")
    assert error[1].startswith("  try: ")
    assert len(error) == 2


def test_an_invalid_option_does_not_import_tensorflow() -> None:
    look = (
        "import sys; from worker_entry.__main__ import main\n"
        "try: main(['--batch-size', '0'])\n"
        "except SystemExit as end: assert end.code == 2\n"
        "assert not {'tensorflow', 'numpy', 'tf_keras'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", look], cwd=ROOT, check=True, capture_output=True)


def test_the_defaults_are_those_of_the_tutorial() -> None:
    given = options.parse([])
    assert (given.dataset, given.loop, given.optimizer) == ("mnist", "fit", "sgd")
    assert (given.batch_size, given.learning_rate, given.strategy) == (64, 1e-3, "auto")
    length = Schedule(3, 5, "the tutorial's length")
    assert resolve(given.epochs, given.steps_per_epoch, 60_000, 256) == length


def test_a_validation_runs_alone_and_leaves_the_job_s_files_untouched() -> None:
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


def test_an_unwritable_file_does_not_end_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Reporter(str(tmp_path / "no" / "folder")).ready("")
    assert "report not written" in capsys.readouterr().out


def test_the_pace_excludes_the_first_step() -> None:
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


def test_without_tf_config_a_process_trains_alone() -> None:
    assert parse(None) == parse("") == parse("{}") == ALONE
    assert not ALONE.distributed
    assert ALONE.is_leader


WRONG_CONFIGS = [
    ("{", "JSONDecodeError: "),
    ("[1]", "TypeError: "),
    (config({"master": ["a:1"]}, "master"), "ValueError: task master/0 is not in"),
    (config(TWO, "worker", 2), "ValueError: task worker/2 is not in"),
    (json.dumps({"cluster": TWO}), "KeyError: 'task'"),
]


@pytest.mark.parametrize(("text", "why"), WRONG_CONFIGS, ids=[why for _, why in WRONG_CONFIGS])
def test_an_invalid_tf_config_is_explained(text: str, why: str) -> None:
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


# --- All tasks stop at the same step, whenever and wherever SIGTERM arrives ---

STEPS = 40
PATIENCE = 20


class MemoryBoard:
    """A coordination service in memory: a key is put once, and a get waits for it."""

    def __init__(self) -> None:
        self._values: dict[str, str] = {}
        self._changed = threading.Condition()

    def put(self, key: str, value: str) -> bool:
        with self._changed:
            if key in self._values:
                return False
            self._values[key] = value
            self._changed.notify_all()
            return True

    def get(self, key: str) -> str:
        with self._changed:
            assert self._changed.wait_for(lambda: key in self._values, PATIENCE), f"nobody put {key}"
            return self._values[key]


def train(tasks: int, terms: AbstractSet[tuple[int, int]] = frozenset()) -> list[int]:
    """Return each task's last step. Each step is a barrier; `terms` requests stops as (task, step)."""
    board = MemoryBoard()
    names = [f"worker/{i}" for i in range(tasks)]
    barrier = threading.Barrier(tasks)
    last = [0] * tasks
    failures: list[BaseException] = []

    def task(index: int) -> None:
        stop = Stop(names[index], names, board)
        try:
            for step in range(1, STEPS + 1):
                barrier.wait(PATIENCE)  # the gradient sum: no task ends this step before all have started it
                if (index, step) in terms:
                    stop.ask()
                last[index] = step
                if stop.now(step):
                    break
            stop.close()
        except BaseException as error:
            failures.append(error)
            barrier.abort()

    threads = [threading.Thread(target=task, args=(index,), daemon=True) for index in range(tasks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert not failures
    assert not any(thread.is_alive() for thread in threads), f"stuck at steps {last}"
    return last


def test_without_a_stop_request_all_steps_run() -> None:
    assert train(8) == [STEPS] * 8


def test_stop_requests_at_any_steps_stop_all_tasks_at_one_step() -> None:
    dice = random.Random(7)
    for _ in range(60):
        tasks = dice.randint(2, 6)
        asked = {(dice.randrange(tasks), dice.randint(1, STEPS)) for _ in range(dice.randint(1, 6))}
        last = train(tasks, asked)
        first = min(step for _, step in asked)
        assert last == [min(first + 1, STEPS)] * tasks, asked


def test_a_single_process_stops_after_the_current_step() -> None:
    stop = Stop("alone", ["alone"], MemoryBoard())
    assert not stop.now(1)
    before = signal.getsignal(signal.SIGTERM)
    try:
        stop.obey_sigterm()
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.now(2)
    finally:
        signal.signal(signal.SIGTERM, before)
    stop.close()


def test_a_task_past_the_stop_step_fails_instead_of_saving_diverging_state() -> None:
    board = MemoryBoard()
    stop = Stop("worker/0", ["worker/0", "worker/1"], board)
    board.put(STEP, "3")
    board.get(f"{STEP}/worker/0")
    assert stop.now(3)
    with pytest.raises(RuntimeError, match="out of step"):
        stop.now(4)


def test_closing_ends_the_reader_without_a_stop() -> None:
    board = MemoryBoard()
    stop = Stop("worker/0", ["worker/0", "worker/1"], board)
    stop.close()
    assert board.get(STEP) == NEVER
    assert not stop.now(5)


def looks(*answers: str) -> Presence:
    queue = iter(answers)
    times = iter(range(1000))
    return Presence("chief/0", lambda: next(queue), 5, lambda: next(times))


def test_a_task_counts_as_lost_after_several_missed_checks() -> None:
    presence = looks("refused", "refused", OPEN, "refused", OPEN, *["refused"] * GONE_AFTER)
    answers = [presence.gone() for _ in range(5 + GONE_AFTER)]
    assert answers == [False] * (4 + GONE_AFTER) + [True]


def test_a_task_that_never_appears_is_named() -> None:
    presence = looks(*["refused"] * 6)
    assert not any(presence.gone() for _ in range(5))
    with pytest.raises(ExpectedError, match="chief/0 did not connect"):
        presence.gone()
