"""A conversation with a real agent, recorded: what the mutations begin with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.node.lab import Lab
from tests.node.test_wire_contract import STORIES, Asker, Said


def conversation(folder: Path) -> tuple[dict[str, Any], list[Said]]:
    """An agent's hello, and all it says to a controller that asks it for everything."""
    lab = Lab(folder)
    try:
        asker = Asker(lab)
        for story in STORIES:
            story(asker)
        return asker.agent.hello, list(asker.said)
    finally:
        lab.close()
