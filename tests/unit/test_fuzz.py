"""The short form of scripts/fuzz: whatever comes in, only our own errors come of it."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.fleet import session as sessions
from tests.fuzz import controller, records
from tests.fuzz.record import conversation
from tests.node.test_wire_contract import Said

SEEDS = st.integers(0, 2**64)
MANY = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], list[Said]]:
    return conversation(tmp_path_factory.mktemp("lab"))


@MANY
@given(seed=SEEDS)
def test_a_controller_stands_what_agents_say(
    recorded: tuple[dict[str, Any], list[Said]], monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(sessions, "log", controller.Strict("strict"))
    controller.play(random.Random(seed), *recorded)


@pytest.mark.parametrize("kind", records.READERS)
@MANY
@given(seed=SEEDS)
def test_damaged_lines_are_refused(kind: str, seed: int) -> None:
    records.play(random.Random(seed), kind)
