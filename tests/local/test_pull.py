"""What a host has, into a folder of a person."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path

import pytest

from orchestrator.connectors import connectors
from orchestrator.fleet import Fleet
from orchestrator.model import Host
from orchestrator.node.disk.below import Below
from orchestrator.node.disk.listing import Entry
from orchestrator.sync import pull


def test_what_an_interrupted_pull_has_put_here_is_renewed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work, to = tmp_path / "work", tmp_path / "mine"
    work.mkdir()
    for name in ("a", "b", "c"):
        (work / name).write_text("one")
    host = Host("one", "local", "127.0.0.1", agent_python=sys.executable, state=str(tmp_path / "state"))
    place = pull.Taking._place

    def interrupted(self: pull.Taking, new: Below, one: Entry, name: str) -> None:
        if name == "b":
            raise KeyboardInterrupt
        place(self, new, one, name)

    with closing(Fleet(connectors(), lambda _: None)) as fleet:
        assert fleet.connect([host]) == {}
        session = fleet.sessions["one"]

        def take() -> int:
            parts = pull.choose(session, str(work), [])
            return pull.take(session, parts, to, "run-1", lambda _: None).files

        with monkeypatch.context() as patch:
            patch.setattr(pull.Taking, "_place", interrupted)
            with pytest.raises(KeyboardInterrupt):
                take()
        assert (to / "a").read_text() == "one"
        (work / "a").write_text("the next checkpoint")
        assert take() == 3
    assert (to / "a").read_text() == "the next checkpoint"
    assert not [path for path in to.iterdir() if ".incoming-" in path.name]
