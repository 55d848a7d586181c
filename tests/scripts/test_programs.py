"""Programs as users write them, launched unchanged, with the losses that they must reach."""

import re
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from orchestrator.rehearsal import Cluster
from tests.scripts.corpus import ALL, IN_THE_SUITE, Launched
from tests.ssh.runs.desk import Desk
from tests.training import training_python

PROGRAMS = Path(__file__).parent / "programs"
PATIENCE = 240.0
MOST = 4  # tasks


@pytest.fixture(scope="module")
def machines() -> Iterator[Cluster]:
    with Cluster(MOST, python=training_python()) as cluster:
        yield cluster


@pytest.fixture
def desk(machines: Cluster, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Desk]:
    one: Launched = request.param
    with closing(Desk(machines, tmp_path)) as made:
        made.write_hosts(machines.hosts[: len(one.roles)], job=one.job)
        made.give_roles(*one.roles)
        shutil.copytree(
            PROGRAMS, made.project, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__")
        )
        yield made


def losses(desk: Desk) -> list[float]:
    text = "\n".join(log.read_text() for log in sorted((desk.run_folder() / "logs" / "1").glob("*.log")))
    return [float(value) for value in re.findall(r"final loss (\S+)", text)]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("desk", "one"),
    [
        pytest.param(one, one, id=name, marks=() if name in IN_THE_SUITE else pytest.mark.soak)
        for name, one in ALL.items()
    ],
    indirect=["desk"],
)
def test_a_program_is_launched_unchanged(desk: Desk, one: Launched) -> None:
    options = ["--code", str(desk.project)] if one.folder else []
    desk.project /= one.folder
    viewer = desk.launch(
        *options,
        *(f"--env={pair.format(shared=desk.folder / 'shared')}" for pair in one.env),
        "--",
        *one.command,
    ).ended(limit=PATIENCE)
    found = losses(desk)
    assert len(found) == one.trainers
    assert all(value < one.below for value in found), found
    assert one.loss is None or found == pytest.approx([one.loss] * one.trainers, abs=2e-6)
    assert one.says in viewer.stdout + viewer.stderr
    assert "not finite" not in viewer.stderr
    assert not desk.named("PeersReported")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("desk", [Launched(("worker",), ())], indirect=True)
@pytest.mark.soak
def test_diverged_training_is_not_a_plain_success(desk: Desk) -> None:
    viewer = desk.launch("--", "diverges.py").ended(limit=PATIENCE)
    output = viewer.stdout + viewer.stderr
    assert "succeeded, with a loss that is not finite," in output


@pytest.mark.timeout(300)
def test_a_path_shared_by_hosts_is_reported(machines: Cluster, tmp_path: Path) -> None:
    """Shared folders are detected only by querying the hosts; this program only imitates training."""
    desk = Desk(machines, tmp_path)
    desk.script(
        "train.py",
        "import sys\nsys.exit()\n"
        "strategy = tf.distribute.MultiWorkerMirroredStrategy()\n"
        "with strategy.scope():\n    model = build()\n"
        "model.fit(x)\nmodel.save('model.h5')\n",
    )
    desk.write_hosts(machines.hosts[:2], workdir=str(desk.folder / "shared"))
    viewer = desk.launch("--no-validate", "--", "train.py", fast=False).ended(limit=PATIENCE)
    desk.close()
    assert "O105 train.py, line 7: all tasks write model.h5" in viewer.stderr
    assert "these hosts share their working folder" in viewer.stderr
