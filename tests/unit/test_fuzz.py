"""The short form of scripts/fuzz: whatever comes in, only our own errors come of it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator import wire
from orchestrator.fleet import session as sessions
from orchestrator.node.serve import ops
from tests.fuzz import agent, controller, records
from tests.fuzz.record import conversation
from tests.node.test_wire_contract import Said

SEEDS = st.integers(0, 2**64)
MANY = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], list[Said]]:
    return conversation(tmp_path_factory.mktemp("lab"))


@pytest.fixture
def players(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[agent.Players]:
    monkeypatch.setattr(ops, "OPS", {name: ops.OPS[name] for name in agent.SAFE})
    made = agent.Players(tmp_path / "state")
    yield made
    made.close()


@MANY
@given(seed=SEEDS)
def test_a_controller_stands_what_agents_say(
    recorded: tuple[dict[str, Any], list[Said]], monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(sessions, "log", controller.Strict("strict"))
    controller.play(random.Random(seed), *recorded)


@MANY
@given(seed=SEEDS)
def test_an_agent_stands_what_controllers_say(
    recorded: tuple[dict[str, Any], list[Said]], players: agent.Players, seed: int
) -> None:
    asked = [one.request for one in recorded[1] if one.request.OP in agent.SAFE]
    players.play(random.Random(seed), [wire.header(number, one) for number, one in enumerate(asked, 1)])


@pytest.mark.parametrize("kind", records.READERS)
@MANY
@given(seed=SEEDS)
def test_damaged_lines_are_refused(kind: str, seed: int) -> None:
    records.play(random.Random(seed), kind)
