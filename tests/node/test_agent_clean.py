"""`clean` removes what finished runs left, keeps live runs, and never takes code from a launch."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.node.disk import removing
from orchestrator.node.serve.agent import Request
from orchestrator.node.stock import work
from tests.folders import age
from tests.node.agent_client import AgentClient
from tests.node.harness import names_in
from tests.node.lab import Lab, gone, wait_gone

pytestmark = pytest.mark.usefixtures("cleaning")
MONTH = 30 * 86_400.0
DIGEST, OTHER = "a1" * 20, "b2" * 20


def clean(lab: Lab, agent: AgentClient, **fields: Any) -> dict[str, Any]:
    wish = {"alive": [], "known": [], "older": MONTH, "shared": True, "work": False, "dry": False}
    return agent.request("clean", workdir=str(lab.workdir), **{**wish, **fields})


def tree(lab: Lab, digest: str, days: float) -> Path:
    made = lab.workdir / "trees" / digest
    (made / "pkg").mkdir(parents=True)
    (made / "pkg" / "m.py").touch()
    age(days * 86_400, made)
    return made


def made_from(lab: Lab, run: str, *digests: str, days: float) -> Path:
    """Create the working folder of a run, with a checkpoint."""
    folder = lab.workdir / "runs" / run
    (folder / "work").mkdir(parents=True)
    (folder / "work" / "ckpt-1").write_bytes(b"x" * 5000)
    (folder / "trees").write_text("\n".join(digests))
    age(days * 86_400, folder)
    return folder


def went(reply: dict[str, Any], kind: str) -> list[str]:
    return [entry["name"] for entry in reply["folders"][kind]["gone"]]


def test_live_runs_are_left_alone_in_every_state_folder(lab: Lab) -> None:
    agent, neighbour = lab.agent(), lab.agent(state=lab.folder / "another state")
    leader = lab.start(agent, "sleep", "1000")["pid"]
    for asked in (agent, neighbour):
        reply = clean(lab, asked, older=0.0)
        assert reply["orphans"] == reply["killed"] == []
        assert went(reply, "state") == []
    assert not gone(leader)
    assert agent.request("clean_look") == {"alive": [lab.run], "known": [lab.run]}
    assert neighbour.request("clean_look")["alive"] == []
    lab.stop(agent, kill=True)
    wait_gone(leader)


def test_a_run_with_a_keeper_keeps_its_state(lab: Lab) -> None:
    agent, keeper = lab.agent(), lab.agent()
    lab.start(agent, "true")
    assert lab.over()["state"] == "exited"
    assert keeper.request("keep", run=lab.run, who="ada")["granted"]
    age(50 * 86_400, lab.state / "runs" / lab.run)
    assert went(clean(lab, agent), "state") == []
    keeper.close()
    age(50 * 86_400, lab.state / "runs" / lab.run)
    assert went(clean(lab, agent), "state") == [lab.run]
    assert names_in(lab.state / "runs") == []


def test_working_folders_are_kept_unless_requested(lab: Lab) -> None:
    agent = lab.agent()
    old, young = made_from(lab, "run-a", days=50), made_from(lab, "run-b", days=50)
    (young / "work" / "deep").mkdir()
    (young / "work" / "deep" / "ckpt-2").touch()  # the latest write counts
    made_from(lab, "run-c", days=50)
    assert went(clean(lab, agent), "work") == []
    assert went(clean(lab, agent, work=True, shared=False), "work") == []
    assert went(clean(lab, agent, work=True, alive=["run-c"]), "work") == ["run-a"]
    assert not old.exists()
    assert names_in(lab.workdir / "runs") == ["run-b", "run-c"]


def test_code_is_kept_while_a_run_may_need_it(lab: Lab) -> None:
    agent = lab.agent()
    used, unused = tree(lab, DIGEST, 50), tree(lab, OTHER, 50)
    made_from(lab, "run-a", DIGEST, days=40)
    assert went(clean(lab, agent, shared=False), "code") == []
    assert went(clean(lab, agent, alive=["run-a"]), "code") == [OTHER]
    assert not unused.exists()
    assert went(clean(lab, agent, older=45 * 86_400.0), "code") == [], "run-a may be alive elsewhere"
    assert went(clean(lab, agent), "code") == [DIGEST]
    assert not used.exists()


def environment(lab: Lab, name: str) -> Path:
    """Create an environment as `setup` does, with its lock next to it."""
    path = lab.workdir / "envs" / name
    (path / "bin").mkdir(parents=True)
    (path / "lock.txt").touch()
    (path.parent / f".lock-{name}").touch()
    age(86_400, path)
    return path


def test_old_environments_are_removed_once_no_run_is_alive(lab: Lab) -> None:
    agent = lab.agent()
    young, old = (environment(lab, name) for name in ("a1", "b2"))
    age(0, young)
    assert went(clean(lab, agent, older=3600.0, alive=["run-a"]), "envs") == [], "it may use any"
    assert went(clean(lab, agent, older=3600.0, shared=False), "envs") == []
    assert went(clean(lab, agent, older=3600.0), "envs") == ["b2"]
    assert (young.exists(), old.exists()) == (True, False)


def test_crash_leftovers_are_removed_after_a_day(lab: Lab) -> None:
    agent = lab.agent()
    (lab.workdir / "runs" / "run-a").mkdir(parents=True)
    for name in (
        f"trees/.incoming-{DIGEST}-00ff",
        "envs/.making-a1-00ff",
        ".share-00ff",
        "trees/.gone-00ff",
        "runs/.gone-00ff",
    ):
        (lab.workdir / name).mkdir(parents=True)
    assert went(clean(lab, agent), "scraps") == []
    age(2 * 86_400, lab.workdir)
    assert len(went(clean(lab, agent), "scraps")) == 5
    assert names_in(lab.workdir) == ["envs", "runs", "trees"]


def test_files_of_others_are_kept_however_old(lab: Lab) -> None:
    """`workdir = "/data/ada"`, where Ada keeps her own `data` and `runs`."""
    agent = lab.agent()
    places = [
        lab.workdir / name for name in ("data/imagenet", "trees/oak", "envs/mine", "runs/exp1/work.old")
    ]
    places += [lab.workdir / "runs" / "exp2" / "work", lab.state / "runs" / "tensorboard"]
    for place in places:
        place.mkdir(parents=True)
        (place / "mine").touch()
    for above in (lab.workdir, lab.state / "runs"):
        age(400 * 86_400, above)
    done = clean(lab, agent, work=True)
    assert {kind: found["gone"] for kind, found in done["folders"].items() if found["gone"]} == {}
    assert all((place / "mine").exists() for place in places)


def test_a_tree_removed_during_its_copy_is_missing(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tree(lab, DIGEST, 50)
    copy = work._copy

    def slow(item: os.DirEntry[str], target: str) -> None:
        if path.exists():
            removing.remove(str(path))
        copy(item, target)

    monkeypatch.setattr(work, "_copy", slow)
    fields = {"workdir": str(lab.workdir), "run": "run-a", "digest": DIGEST}
    agent: Any = SimpleNamespace(state=str(lab.state))
    reply = work.make(agent, Request(fields, b""))
    assert reply["missing"] == [DIGEST]
    assert not Path(reply["work"]).exists()
