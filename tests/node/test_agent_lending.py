"""Large files of trees: lent to runs where they cannot be cloned, and never harmed by what a task writes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.node.disk import copies
from orchestrator.node.stock.lending import LARGE
from tests.exclusive import exclusive
from tests.node.agent_client import AgentClient
from tests.node.lab import Lab
from tests.node.test_agent_clean import clean
from tests.node.test_agent_trees import manifest, seal, tar

WHOLE = b"weights " * (LARGE // 8)
FILES = {"deep/big": WHOLE, "small": b"x"}
DIGEST, LATER = "aa", "bb"


@pytest.fixture
def agent(lab: Lab) -> AgentClient:
    made = lab.agent()
    send(lab, made)
    return made


def send(lab: Lab, agent: AgentClient, files: dict[str, bytes] = FILES, digest: str = DIGEST) -> set[str]:
    """Make a tree as a launch does; return what had to be sent."""
    entries = manifest(files)
    begun = agent.request("tree_begin", workdir=str(lab.workdir), digest=digest, manifest=entries, reuse=True)
    sent = {entries[place]["path"] for place in begun.get("missing", ())}
    if not begun.get("present"):
        data = tar({path: files[path] for path in sent})
        fields: dict[str, Any] = {"workdir": str(lab.workdir), "digest": digest}
        agent.reply(agent.send("tree_tar", data, more=False, **fields))
        seal(lab, agent, digest)
    return sent


def keep(agent: AgentClient, run: str) -> None:
    assert agent.request("keep", run=run, who="me", plan="{}")["granted"]


def make(lab: Lab, agent: AgentClient, run: str, digest: str = DIGEST) -> dict[str, Any]:
    return agent.request("work_make", workdir=str(lab.workdir), run=run, digests=[digest])


def big(lab: Lab, run: str) -> Path:
    return lab.workdir / "runs" / run / "work" / "deep" / "big"


def in_tree(lab: Lab, digest: str = DIGEST) -> Path:
    return lab.workdir / "trees" / digest / "deep" / "big"


def is_lent(lab: Lab, run: str, digest: str = DIGEST) -> bool:
    return big(lab, run).samefile(in_tree(lab, digest))


@pytest.fixture(autouse=True)
def a_disk_that_cannot_clone(tmp_path: Path) -> None:
    (tmp_path / "probe").write_bytes(b"x")
    if copies.clone(str(tmp_path / "probe"), str(tmp_path / "clone")):
        pytest.fail("the folder of tests is on a disk that clones files: set TMPDIR to one on ext4 or tmpfs")


def test_a_large_file_takes_no_room_in_a_run_and_a_small_one_is_the_runs_own(
    lab: Lab, agent: AgentClient
) -> None:
    for run in ("run-a", "run-b"):  # the first is over: nothing of it ever ran
        keep(agent, run)
        assert make(lab, agent, run)["made"]
        agent.close()
        agent = lab.agent()
        assert is_lent(lab, run)
        assert not big(lab, run).parent.with_name("small").samefile(in_tree(lab).parent.with_name("small"))


def test_nobody_else_is_lent_what_a_living_run_may_write_to(lab: Lab, agent: AgentClient) -> None:
    keep(agent, "run-a")
    make(lab, agent, "run-a")
    other = lab.agent()
    make(lab, other, "run-b")
    assert is_lent(lab, "run-a")
    assert not is_lent(lab, "run-b")
    assert big(lab, "run-b").read_bytes() == WHOLE
    assert send(lab, other, {**FILES, "small": b"y"}, LATER) == {"small"}
    assert not in_tree(lab, LATER).samefile(in_tree(lab))
    agent.close()
    make(lab, other, "run-c")
    assert is_lent(lab, "run-c")


def test_a_run_with_a_task_alive_is_not_over_though_its_keeper_is_gone(lab: Lab, agent: AgentClient) -> None:
    make(lab, agent, lab.run)
    lab.start(agent, "sleep", "1000")
    other = lab.agent()
    make(lab, other, "run-b")
    assert not is_lent(lab, "run-b")
    lab.stop(agent, kill=True)
    lab.over()
    make(lab, lab.agent(), "run-c")
    assert is_lent(lab, "run-c")


def test_a_run_that_this_machine_does_not_know_may_be_alive(lab: Lab, agent: AgentClient) -> None:
    make(lab, agent, "run-a")
    make(lab, agent, "run-b")
    assert is_lent(lab, "run-a")
    assert not is_lent(lab, "run-b")


def append(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"!")


def overwrite(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(b"WEIGHTS")


def make_runnable(path: Path) -> None:
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("write", "sent"), [(append, {"deep/big"}), (overwrite, {"deep/big"}), (make_runnable, set())]
)
def test_a_tree_gets_anew_what_a_task_wrote_to_and_the_task_keeps_its_own(
    lab: Lab, agent: AgentClient, write: Callable[[Path], None], sent: set[str]
) -> None:
    make(lab, agent, "run-a")
    write(big(lab, "run-a"))
    wrote = big(lab, "run-a").read_bytes(), big(lab, "run-a").stat().st_mode
    assert make(lab, agent, "run-b")["missing"] == [DIGEST]
    assert send(lab, agent) == sent
    assert (big(lab, "run-a").read_bytes(), big(lab, "run-a").stat().st_mode) == wrote
    make(lab, agent, "run-b")
    assert big(lab, "run-b").read_bytes() == WHOLE
    assert big(lab, "run-b").stat().st_mode & 0o777 == 0o644
    assert not is_lent(lab, "run-b")  # a program that writes to it gets a copy from then on
    write(big(lab, "run-b"))
    assert send(lab, agent) == set()


def test_a_task_may_replace_or_remove_what_it_was_lent(lab: Lab, agent: AgentClient) -> None:
    make(lab, agent, "run-a")
    big(lab, "run-a").unlink()
    big(lab, "run-a").write_bytes(b"mine")
    assert send(lab, agent) == set()
    make(lab, agent, "run-b")
    assert is_lent(lab, "run-b")
    assert big(lab, "run-b").read_bytes() == WHOLE


def test_every_tree_that_has_the_file_is_mended(lab: Lab, agent: AgentClient) -> None:
    assert send(lab, agent, {**FILES, "small": b"y"}, LATER) == {"small"}
    assert in_tree(lab, LATER).samefile(in_tree(lab))
    make(lab, agent, "run-a")
    append(big(lab, "run-a"))
    assert send(lab, agent, {**FILES, "small": b"y"}, LATER) == {"deep/big"}
    assert send(lab, agent) == set()  # the other tree has it again
    assert in_tree(lab).read_bytes() == WHOLE


def test_a_run_that_starts_again_needs_no_whole_tree(lab: Lab, agent: AgentClient) -> None:
    make(lab, agent, "run-a")
    append(big(lab, "run-a"))
    assert make(lab, agent, "run-a")["missing"] == []


@pytest.mark.parametrize("text", ["", "{", "[[1]]", '[["deep/big"]]', "[[1, 2, 3, 4, 5, 6]]", "7", '["x"]'])
def test_damaged_lists_lend_nothing(lab: Lab, agent: AgentClient, text: str) -> None:
    for name in (f".large-{DIGEST}", ".written"):
        (lab.workdir / "trees" / name).write_text(text)
    make(lab, agent, "run-a")
    assert not is_lent(lab, "run-a")
    assert big(lab, "run-a").read_bytes() == WHOLE


def test_lists_of_trees_that_are_gone_go_too(lab: Lab, agent: AgentClient) -> None:
    beside = lab.workdir / "trees" / f".large-{DIGEST}"
    with exclusive("clean"):
        clean(lab, agent)
        assert beside.exists()
        in_tree(lab).parent.parent.rename(lab.workdir / "elsewhere")
        clean(lab, agent)
    assert not beside.exists()
