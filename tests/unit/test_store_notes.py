"""Notes that were given once, and what is remembered of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.events import Event, Noted, Phase, PhaseEnded, PhaseStarted, RunPlanned, Stamped
from orchestrator.store.notes import Notes

PLAN = RunPlanned("r", "", "ada@laptop", (), (("worker/0", "a"),), ("set A=1",), "/r")
STORY = (
    PLAN,
    PhaseStarted(Phase.STAGE, 1),
    Noted("left out: .env"),
    PhaseEnded(Phase.STAGE, ok=True, seconds=1.0),
    Noted("a spare is left out"),
)


def launch(notes: Notes, *events: Event) -> frozenset[str]:
    known = notes.read()
    for event in events:
        notes.hear(Stamped(1.0, event))
    notes.write()
    return known


def test_notes_of_a_plan_and_its_code_are_known_at_the_next_launch(
    tmp_path: Path,
) -> None:
    assert launch(Notes(Path("/project"), tmp_path), *STORY) == frozenset()
    assert launch(Notes(Path("/project"), tmp_path), PLAN) == {"set A=1", "left out: .env"}
    assert launch(Notes(Path("/other"), tmp_path)) == frozenset()
    assert Notes(Path("/project"), tmp_path).read() == {"set A=1"}, "what was not given again is news"


@pytest.mark.parametrize("damage", [b"", b"{}", b'["a", 1]', b"[" * 9000, b"\xff"])
def test_damaged_notes_are_given_again(tmp_path: Path, damage: bytes) -> None:
    launch(Notes(Path("/project"), tmp_path), *STORY)
    (path,) = tmp_path.iterdir()
    path.write_bytes(damage)
    assert launch(Notes(Path("/project"), tmp_path), *STORY) == frozenset()
    assert Notes(Path("/project"), tmp_path).read() == {"set A=1", "left out: .env"}
