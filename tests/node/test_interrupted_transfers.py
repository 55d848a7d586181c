"""What a dead receiver left is removed by whoever comes next; a living one's is not touched."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from orchestrator.node.base.fault import NodeError
from orchestrator.node.disk import files, removing
from orchestrator.node.serve.agent import Request
from tests.exclusive import exclusive
from tests.node.agent_client import AgentClient, AgentError
from tests.node.harness import names_in, until
from tests.node.lab import Lab
from tests.sync.liar import member

DIGEST = "0123456789abcdef"


def half_a_tree(lab: Lab, agent: AgentClient, digest: str = DIGEST) -> Path:
    """A transfer that has begun and goes on for ever; what has come of it."""
    where: dict[str, Any] = {"workdir": str(lab.workdir), "digest": digest}
    incoming = agent.request("tree_begin", manifest=[], reuse=True, **where)["incoming"]
    agent.request("tree_tar", member("weights", bytes(3 << 20))[: 5 << 19], more=True, **where)
    part = Path(f"{incoming}.part")
    until(lambda: part.exists() and names_in(part) and (part / "weights").stat().st_size > 1 << 20)
    return part


def half_a_folder(lab: Lab, agent: AgentClient) -> Path:
    target = lab.folder / "backup"
    incoming = Path(agent.request("files_begin", target=str(target))["incoming"])
    agent.request("files_put", member("w", bytes(1 << 20))[: 1 << 19], more=True, incoming=str(incoming))
    until(lambda: names_in(incoming) == ["w"])
    return incoming


def kill(agent: AgentClient) -> None:
    os.kill(agent.pid, signal.SIGKILL)
    agent.process.wait()


def clean(lab: Lab, agent: AgentClient) -> dict[str, Any]:
    fields: dict[str, Any] = {"alive": [], "known": [], "older": 86_400.0}
    asked = {**fields, "workdir": str(lab.workdir), "shared": False, "work": False, "dry": False}
    found: dict[str, Any] = agent.request("clean", **asked)["folders"]["scraps"]
    return found


def test_a_receiver_whose_controller_is_gone_leaves_nothing(lab: Lab) -> None:
    agent = lab.agent()
    tree, folder = half_a_tree(lab, agent), half_a_folder(lab, agent)
    agent.close()
    until(lambda: not tree.exists() and not folder.exists())
    assert names_in(lab.workdir / "trees") == []


def test_the_next_transfer_removes_what_a_killed_receiver_left_and_no_living_ones(lab: Lab) -> None:
    victim, living, next_one = lab.agent(), lab.agent(), lab.agent()
    dead = [half_a_tree(lab, victim), half_a_folder(lab, victim)]
    alive = half_a_tree(lab, living)
    kill(victim)
    where: dict[str, Any] = {"workdir": str(lab.workdir), "digest": "ff"}
    begun = Path(next_one.request("tree_begin", manifest=[], reuse=True, **where)["incoming"])
    assert [path.exists() for path in (*dead, alive, begun)] == [False, False, True, True]


def test_clean_removes_and_counts_what_a_killed_receiver_left(lab: Lab) -> None:
    with exclusive("clean"):
        clean_after_a_kill(lab)


def clean_after_a_kill(lab: Lab) -> None:
    victim, agent = lab.agent(), lab.agent()
    dead = half_a_tree(lab, victim)
    assert clean(lab, agent)["gone"] == []  # it lives
    kill(victim)
    clean(lab, agent)
    assert not dead.exists()
    assert names_in(lab.state / "incoming") == []


def test_very_deep_folders_are_one_error_to_list_and_can_be_removed(lab: Lab) -> None:
    deep = lab.folder / "deep"
    deep.mkdir()
    here = os.open(deep, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    agent = lab.agent()
    with pytest.raises(AgentError, match="more than 200 deep") as caught:
        agent.request("files_list", path=str(deep))
    assert caught.value.kind == "files"
    agent.request("files_remove", target=str(deep))
    assert "deep" not in names_in(lab.folder)
    assert removing.remove(str(deep)) is None  # there is nothing any more


def test_more_names_than_a_message_holds_are_one_error(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(9):
        (lab.folder / ("\u8bad" * 60 + str(number))).touch()  # a letter of these crosses as 6 bytes
    monkeypatch.setattr(files, "MAX_PAYLOAD", 3000)
    with pytest.raises(NodeError, match=r"more in .* than one list can name") as caught:
        files.listing(None, Request({"op": "files_list", "path": str(lab.folder)}, b""))  # type: ignore[arg-type]
    assert (caught.value.kind, caught.value.hint) == ("files", "name a part")
