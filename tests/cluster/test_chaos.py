"""A few rounds of scripts/chaos, one of each sort, and what holds of all rounds."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.chaos import expected
from tests.chaos.faults import BY_NAME
from tests.chaos.play import play
from tests.chaos.rounds import KINDS, plan

if TYPE_CHECKING:
    from tests.cluster.machines import Cluster

ROUNDS = (
    ("task-stop", 1),
    ("oom", 1),
    ("guard-kill", 3),
    ("folder-gone", 1),
    ("split-long", 1),
    ("spare-back", 2),
    ("sshd-kill", 1),
    ("keeper-kill", 1),
    ("node-restart", 2),
    ("link-cut", 1),
    ("pair-cut", 1),
    ("disk-full", 1),
    ("controller-full", 2),
    ("check-sshd", 2),
    ("check-both", 2),
    ("sync-full", 2),
)


@pytest.mark.skipif(os.geteuid() != 0, reason="faults are made as root on the Docker host")
@pytest.mark.parametrize(("fault", "seed"), ROUNDS, ids=[fault for fault, _ in ROUNDS])
def test_a_fault(cluster: Cluster, tmp_path: Path, fault: str, seed: int) -> None:
    result = play(plan(seed, (fault,), tensorflow=0), cluster, tmp_path / "round")
    assert not result.wrong, f"{result.round}: {result.ended}\n" + "\n".join(result.wrong)
    assert result.struck


def test_every_fault_has_a_place_in_the_tables() -> None:
    assert set(BY_NAME) == set(KINDS) == set(expected.TRAINING)
    assert set(expected.VALIDATING) <= set(expected.EARLY) <= set(BY_NAME)
