"""`clean`: what ended runs left goes, what is alive stays, and a launch never loses its code."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.node.base import procs
from orchestrator.node.disk import removing
from orchestrator.node.disk.measuring import Folder
from orchestrator.node.serve.agent import Request
from orchestrator.node.stock import work
from orchestrator.node.tidy import prune
from tests.exclusive import exclusive
from tests.node.agent_client import AgentClient
from tests.node.harness import guard_of, kill_together, names_in, supervisor_of, until
from tests.node.lab import Lab, gone, wait_gone


@pytest.fixture(autouse=True)
def _alone() -> Iterator[None]:
    """An orphan that one of these tests looks at is nobody's for the others: they would end it."""
    with exclusive("clean"):
        yield


MONTH = 30 * 86_400.0
DIGEST, OTHER = "a1" * 20, "b2" * 20


def clean(lab: Lab, agent: AgentClient, **fields: Any) -> dict[str, Any]:
    return agent.request("clean", **{**wish(lab), **fields})


def wish(lab: Lab) -> dict[str, Any]:
    return {
        "workdir": str(lab.workdir),
        "alive": [],
        "known": [],
        "older": MONTH,
        "shared": True,
        "work": False,
        "dry": False,
    }


def age(path: Path, seconds: float) -> None:
    """As if nobody had touched it or anything in it for so long."""
    then = time.time() - seconds
    for place in (*path.rglob("*"), path):
        os.utime(place, (then, then), follow_symlinks=False)


def tree(lab: Lab, digest: str, days: float) -> Path:
    made = lab.workdir / "trees" / digest
    (made / "pkg").mkdir(parents=True)
    for number in range(40):
        (made / "pkg" / f"m{number}.py").write_text(f"{number}\n")
    age(made, days * 86_400)
    return made


def made_from(lab: Lab, run: str, *digests: str, days: float) -> Path:
    """The working folder of a run, with a checkpoint in it."""
    folder = lab.workdir / "runs" / run
    (folder / "work").mkdir(parents=True)
    (folder / "work" / "ckpt-1").write_bytes(b"x" * 5000)
    (folder / "trees").write_text("\n".join(digests))
    age(folder, days * 86_400)
    return folder


def ended_run(lab: Lab, agent: AgentClient, run: str, *, days: float, size: int = 1000) -> Path:
    """The state of a run whose one task is over."""
    lab.run, before = run, lab.run
    lab.start(agent, sys.executable, "-c", f"print('x' * {size})")
    assert lab.over()["state"] == "exited"
    lab.run = before
    folder = lab.state / "runs" / run
    age(folder, days * 86_400)
    return folder


def went(reply: dict[str, Any], kind: str) -> list[str]:
    return [entry["name"] for entry in reply["folders"][kind]["gone"]]


# --- processes ---

LEAVES_A_CHILD = (
    "import subprocess, sys; subprocess.Popen(['sleep', '1000'], start_new_session=True); "
    "print('up', flush=True); import time; time.sleep(1000)"
)


def crashed(lab: Lab, agent: AgentClient) -> list[int]:
    """A task whose guard and supervisor were killed together: what is alive of it."""
    leader = lab.start(agent, sys.executable, "-c", LEAVES_A_CHILD)["pid"]
    until(lambda: b"up" in Path(lab.task().log).read_bytes())
    ours = [guard_of(leader), supervisor_of(leader)]
    kill_together(*ours)
    wait_gone(*ours, leader)
    return [process.pid for process in procs.bearers(lab.run)]


def test_what_a_crash_left_is_shown_and_then_killed(lab: Lab) -> None:
    agent = lab.agent()
    (child,) = crashed(lab, agent)
    before = Path(lab.task().state).read_bytes()
    shown = clean(lab, agent, dry=True)
    assert [orphan["pid"] for orphan in shown["orphans"]] == [child]
    assert not gone(child)
    assert Path(lab.task().state).read_bytes() == before
    clean(lab, agent)
    assert gone(child)


def test_an_orphan_of_a_task_that_is_settled_is_killed(lab: Lab) -> None:
    """Its state was removed by hand, or its end was told while a process hid."""
    agent = lab.agent()
    (child,) = crashed(lab, agent)
    folder = lab.state / "runs" / lab.run
    folder.rename(lab.folder / "removed by hand")
    shown = clean(lab, agent, dry=True)
    assert [orphan["pid"] for orphan in shown["orphans"]] == [child]
    assert not gone(child)
    done = clean(lab, agent)
    assert [orphan["pid"] for orphan in done["killed"]] == [child]
    assert done["orphans"] == []
    wait_gone(child)


def test_what_is_alive_is_left_alone_here_and_in_other_state_folders(lab: Lab) -> None:
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


# --- GPUs ---


def test_gpu_memory_of_a_killed_task_is_awaited_by_a_fake_nvidia_smi(lab: Lab) -> None:
    """The driver lists a process for a moment after it is gone."""
    agent = lab.agent()
    crashed(lab, agent)
    agent.request("states", run=lab.run)
    (task,) = agent.request("states", run=lab.run)["runs"][0]["tasks"]
    tools = lab.folder / "tools"
    tools.mkdir()
    fake = tools / "nvidia-smi"
    fake.write_text(f"#!/bin/sh\nprintf '%s, 1, python\\n1, 1, init\\n' {task['state']['pid']}\n")
    fake.chmod(0o755)
    assert agent.request("gpu_held", run=lab.run) == {"held": []}
    seeing = lab.agent(env={"PATH": f"{tools}:{os.environ['PATH']}"})
    (held,) = seeing.request("gpu_held", run=lab.run)["held"]
    assert held["pid"] == task["state"]["pid"]
    assert seeing.request("gpu_held", run="another") == {"held": []}


# --- folders ---


def test_a_run_with_a_keeper_keeps_its_state(lab: Lab) -> None:
    agent, keeper = lab.agent(), lab.agent()
    folder = ended_run(lab, agent, "run-a", days=50)
    assert keeper.request("keep", run="run-a", who="ada")["granted"]
    age(folder, 50 * 86_400)
    assert went(clean(lab, agent), "state") == []
    keeper.close()
    age(folder, 50 * 86_400)
    assert went(clean(lab, agent), "state") == ["run-a"]
    assert names_in(lab.state / "runs") == []


def test_working_folders_stay_unless_asked_for(lab: Lab) -> None:
    agent = lab.agent()
    old, young = made_from(lab, "run-a", days=50), made_from(lab, "run-b", days=50)
    (young / "work" / "deep").mkdir()
    (young / "work" / "deep" / "ckpt-2").touch()  # whatever was written last counts
    made_from(lab, "run-c", days=50)
    assert went(clean(lab, agent), "work") == []
    assert went(clean(lab, agent, work=True, shared=False), "work") == []
    assert went(clean(lab, agent, work=True, alive=["run-c"]), "work") == ["run-a"]
    assert not old.exists()
    assert names_in(lab.workdir / "runs") == ["run-b", "run-c"]


def test_code_stays_while_a_run_may_need_it(lab: Lab) -> None:
    agent = lab.agent()
    used, unused = tree(lab, DIGEST, 50), tree(lab, OTHER, 50)
    made_from(lab, "run-a", DIGEST, days=40)
    assert went(clean(lab, agent, shared=False), "code") == []
    assert went(clean(lab, agent, alive=["run-a"]), "code") == [OTHER]
    assert not unused.exists()
    assert (
        went(clean(lab, agent, older=45 * 86_400.0), "code") == []
    )  # run-a: of a machine that was not asked
    assert went(clean(lab, agent, older=45 * 86_400.0, known=["run-a"]), "code") == [DIGEST]
    assert not used.exists()


def environment(lab: Lab, name: str) -> Path:
    """As `setup` leaves one, with its lock beside it."""
    path = lab.workdir / "envs" / name
    (path / "bin").mkdir(parents=True)
    (path / "bin" / "python").write_bytes(Path("/bin/sleep").read_bytes())
    (path / "bin" / "python").chmod(0o755)
    (path / "lock.txt").touch()
    (path.parent / f".lock-{name}").touch()
    age(path, 86_400)
    return path


def test_old_environments_go_once_no_run_is_alive_and_no_process_uses_one(lab: Lab) -> None:
    agent = lab.agent()
    young, old, used = (environment(lab, name) for name in ("a1", "b2", "c3"))
    age(young, 0)
    with subprocess.Popen([str(used / "bin" / "python"), "60"]) as sleeper:
        try:
            assert went(clean(lab, agent, older=3600.0, alive=["run-a"]), "envs") == [], "it may use any"
            assert went(clean(lab, agent, older=3600.0, shared=False), "envs") == []
            assert went(clean(lab, agent, older=3600.0), "envs") == ["b2"]
            assert (young.exists(), old.exists(), used.exists()) == (True, False, True)
        finally:
            sleeper.kill()


def test_scraps_of_a_crash_go_after_a_day(lab: Lab) -> None:
    agent = lab.agent()
    (lab.workdir / "runs" / "run-a" / "work.node.00ff00ff00ff").mkdir(parents=True)
    for name in (
        f"trees/.incoming-{DIGEST}-00ff",
        "envs/.making-a1-00ff",
        ".share-00ff",
        "trees/.gone-00ff",
        "runs/.gone-00ff",
    ):
        (lab.workdir / name).mkdir(parents=True)
    assert went(clean(lab, agent), "scraps") == []
    age(lab.workdir, 2 * 86_400)
    assert len(went(clean(lab, agent), "scraps")) == 6
    assert names_in(lab.workdir) == ["envs", "runs", "trees"]
    assert names_in(lab.workdir / "runs" / "run-a") == []


def test_what_is_not_ours_stays_however_old(lab: Lab) -> None:
    """`workdir = "/data/ada"`, where Ada has `data` and `runs` of her own."""
    agent = lab.agent()
    places = [
        lab.workdir / name for name in ("data/imagenet", "trees/oak", "envs/mine", "runs/exp1/work.old")
    ]
    places += [lab.workdir / "runs" / "exp2" / "work", lab.state / "runs" / "tensorboard"]
    for place in places:
        place.mkdir(parents=True)
        (place / "mine").touch()
    for above in (lab.workdir, lab.state / "runs"):
        age(above, 400 * 86_400)
    done = clean(lab, agent, work=True)
    assert {kind: found["gone"] for kind, found in done["folders"].items() if found["gone"]} == {}
    assert all((place / "mine").exists() for place in places)


# --- a launch at the same moment ---


def test_a_tree_that_was_used_since_it_was_looked_at_stays(lab: Lab) -> None:
    path = tree(lab, DIGEST, 50)
    seen = Folder(str(path), path.stat().st_mtime, 0)
    lab.agent().request("work_make", workdir=str(lab.workdir), run="run-a", digest=DIGEST)
    assert not prune._unused(seen)
    assert names_in(lab.workdir / "trees") == [DIGEST]
    assert len(names_in(path / "pkg")) == 40


def test_a_tree_that_goes_while_it_is_copied_is_missing(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tree(lab, DIGEST, 50)
    copy = work._copy

    def slow(source: str, target: str) -> None:
        if path.exists():
            removing.remove(str(path))
        copy(source, target)

    monkeypatch.setattr(work, "_copy", slow)
    fields = {"workdir": str(lab.workdir), "run": "run-a", "digest": DIGEST}
    reply = work.make(None, Request(fields, b""))  # type: ignore[arg-type]
    assert reply["missing"] == [DIGEST]
    assert not Path(reply["work"]).exists()
