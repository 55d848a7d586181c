"""A few rounds of scripts/soak-keeper: each seed is a moment, a trainer and a way to go on."""

from collections.abc import Iterator
from contextlib import closing

import pytest

from orchestrator.rehearsal import Cluster
from tests.ssh.runs.desk import Desk
from tests.ssh.runs.keeper_kills import Soak, draw
from tests.training import training_python

# Stopped from elsewhere, followed from everywhere, and killed twice; test_every_phase.py has the rest.
SEEDS = (48, 47, 39)


@pytest.fixture(scope="module")
def soak(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Soak]:
    with (
        Cluster(3) as cluster,
        closing(Desk(cluster, tmp_path_factory.mktemp("soak") / "a user's $(folder)")) as desk,
    ):
        yield Soak(desk, training_python())


@pytest.mark.parametrize("seed", SEEDS)
def test_a_keeper_killed_at_any_moment_leaves_nothing_that_cannot_be_seen_and_ended(
    soak: Soak, seed: int
) -> None:
    soak.round(draw(seed))
