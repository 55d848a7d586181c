"""Popular tutorials train exactly as published, on one host and on several.

Their downloads are replaced. `custom_loop.py` uses a name that TensorFlow has removed: the verdict gives the
current name, and with it the program trains.
"""

import re
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from orchestrator.errors import ExitStatus
from orchestrator.rehearsal import Cluster
from tests.ssh.runs.desk import Desk
from tests.training import training_python

HERE = Path(__file__).parent
SEEDS = HERE / "programs" / "seeds"
TUTORIAL = (HERE.parents[1] / "docs" / "tutorial.md").read_text()
PATIENCE = 240.0
REMOVED, TODAY = "experimental_run_v2", "run"

DIGITS = """
import numpy as np

def load_digits(return_X_y):
    labels = np.arange(1797) % 10
    images = np.zeros((1797, 64))
    images[np.arange(1797), labels * 6] = 16
    return images, labels
"""
# The program, the hosts, and the minimum number of epochs or scores that each task must print.
ALL = [
    (name, many, pattern)
    for name, pattern in (
        ("local", r"Epoch 3/3"),
        ("workers", r"Epoch 3/3"),
        ("custom_loop", r"Accuracy after restoring"),
        ("keras_fit", r"Eval loss"),
        ("mirrored", r"Epoch 5/5"),
        ("tutorial", r"accuracy: 0"),
    )
    for many in (1, 2, 4)
    if many != 2 or name == "workers"
]
IN_THE_SUITE = [("workers", 2)]  # the original multi-worker tutorial, with one file for all


@pytest.fixture(scope="module")
def machines() -> Iterator[Cluster]:
    with Cluster(4, python=training_python()) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("seeds")
    subprocess.run([training_python(), HERE / "seed_data.py", folder], check=True, capture_output=True)
    return folder


@pytest.fixture
def desk(machines: Cluster, tmp_path: Path) -> Iterator[Desk]:
    with closing(Desk(machines, tmp_path)) as made:
        yield made


def text_of(name: str) -> str:
    if name == "tutorial":
        blocks: list[str] = re.findall(r"```python\n(.*?)```", TUTORIAL, re.DOTALL)
        return next(block for block in blocks if "fit(" in block)
    return (SEEDS / f"{name}.py").read_text()


def launch(desk: Desk, data: Path, text: str, many: int) -> tuple[int, str]:
    sets = "few" if "epochs=12" in text else "tfds"
    desk.write_hosts(desk.cluster.hosts[:many])
    desk.script("program.py", text)
    (desk.project / "sklearn").mkdir(exist_ok=True)  # it is large, and the tutorial uses only its digits
    desk.script("sklearn/__init__.py", "")
    desk.script("sklearn/datasets.py", DIGITS)
    env = (f"--env=TFDS_DATA_DIR={data / sets}", f"--env=KERAS_HOME={data / 'keras'}")
    viewer = desk.launch(*env, "--", "program.py")
    return viewer.wait(PATIENCE), viewer.stdout + viewer.stderr


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("name", "many", "pattern"),
    [
        pytest.param(*row, id=f"{row[0]}-{row[1]}", marks=() if row[:2] in IN_THE_SUITE else pytest.mark.soak)
        for row in ALL
    ],
)
def test_a_tutorial_trains_as_published(desk: Desk, data: Path, name: str, many: int, pattern: str) -> None:
    text = text_of(name)
    if REMOVED in text:
        status, shown = launch(desk, data, text, many)
        assert status == ExitStatus.RUN_FAILED
        assert f"write `strategy.{TODAY}` instead of {REMOVED}" in shown, shown
        text = text.replace(REMOVED, TODAY)
    status, shown = launch(desk, data, text, many)
    assert status == ExitStatus.OK, shown
    assert "so that tf.keras is Keras 2" in shown
    logs = sorted((desk.run_folder() / "logs" / "1").glob("*.log"))
    assert len(logs) == many
    assert all(re.search(pattern, log.read_text()) for log in logs), shown
    if name == "workers" and many > 1:
        assert f"1 file cannot be shared by {many} workers" in shown
