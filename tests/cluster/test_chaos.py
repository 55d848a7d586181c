"""A few rounds of scripts/chaos, one of each kind, and properties of all rounds."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.chaos import expected
from tests.chaos.play import play
from tests.chaos.rounds import KINDS, plan

if TYPE_CHECKING:
    from tests.cluster.machines import Cluster

# Faults that need separate machines, networks, or kernels; tests/ssh has one of each other kind.
ROUNDS = (("oom", 1), ("split-long", 1), ("spare-rejoin", 1), ("node-restart", 2), ("pair-cut", 1))


@pytest.mark.skipif(os.geteuid() != 0, reason="faults are made as root on the Docker host")
@pytest.mark.parametrize(("fault", "seed"), ROUNDS, ids=[fault for fault, _ in ROUNDS])
def test_a_fault(cluster: Cluster, tmp_path: Path, fault: str, seed: int) -> None:
    result = play(plan(seed, (fault,), tensorflow=0), cluster, tmp_path / "round")
    assert not result.wrong, f"{result.round}: {result.ended}\n" + "\n".join(result.wrong)
    assert result.struck


def test_every_fault_is_in_the_tables() -> None:
    assert set(expected.TRAINING) <= set(KINDS)
    assert set(expected.VALIDATING) <= set(expected.EARLY) <= set(KINDS)
