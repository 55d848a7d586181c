"""`clean`: what ended runs left goes, what is alive stays, and a launch never loses its code."""

from __future__ import annotations

import fcntl
import json
import os
import pwd
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.node.base import procs
from orchestrator.node.base.paths import open_root
from orchestrator.node.disk import removing
from orchestrator.node.disk.measuring import Folder
from orchestrator.node.serve.agent import Request
from orchestrator.node.stock import work
from orchestrator.node.tidy import prune
from tests.exclusive import exclusive
from tests.node.agent_client import AgentClient
from tests.node.harness import guard_of, kill_together, names_in, supervisor_of, until
from tests.node.lab import Lab, gone, wait_gone
from tests.ports import free_port


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
        "keep_bytes": None,
        "shared": True,
        "work": False,
        "envs": None,
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
    assert [task["task"] for task in shown["settled"]] == ["worker/0"]
    assert [orphan["pid"] for orphan in shown["orphans"]] == [child]
    assert not gone(child)
    assert Path(lab.task().state).read_bytes() == before
    done = clean(lab, agent)
    assert done["settled"] == shown["settled"]  # that sweeps by the cookie
    assert gone(child)
    assert clean(lab, agent)["settled"] == []


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


def test_after_a_reboot_the_states_are_made_true(lab: Lab) -> None:
    agent = lab.agent()
    leader = lab.start(agent, "sleep", "1000")["pid"]
    kill_together(guard_of(leader), supervisor_of(leader))
    wait_gone(leader)
    path = Path(lab.task().state)
    path.write_text(json.dumps({**json.loads(path.read_bytes()), "incarnation": "another boot"}))
    (shown,), (settled,) = clean(lab, agent, dry=True)["settled"], clean(lab, agent)["settled"]
    assert shown == settled
    assert settled["why"] == "the machine was restarted"


def test_what_is_alive_is_left_alone_here_and_in_other_state_folders(lab: Lab) -> None:
    agent, neighbour = lab.agent(), lab.agent(state=lab.folder / "another state")
    leader = lab.start(agent, "sleep", "1000")["pid"]
    for asked in (agent, neighbour):
        reply = clean(lab, asked, older=0.0, keep_bytes=0)
        assert reply["orphans"] == reply["killed"] == reply["settled"] == []
        assert went(reply, "state") == []
    assert not gone(leader)
    assert agent.request("clean_look") == {"alive": [lab.run], "known": [lab.run]}
    assert neighbour.request("clean_look")["alive"] == []
    lab.stop(agent, kill=True)
    wait_gone(leader)


# --- ports and GPUs ---


def test_ports_are_free_leased_or_somebody_elses(lab: Lab) -> None:
    agent = lab.agent()
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        taken, free = stranger.getsockname()[1], free_port()
        wanted = {str(taken): "worker/0", str(free): "ps/0"}
        agent.request("lease", run=lab.run, owner="ada@laptop", ports=wanted)
        held = clean(lab, agent)["ports"]
        assert [(lease["port"], lease["run"]) for lease in held["leased"]] == [
            (free, lab.run),
            (taken, lab.run),
        ]
        agent.close()
        found = clean(lab, lab.agent())["ports"]
        assert found["leased"] == []
        (used,) = found["used"]
        assert used["port"] == taken
        assert f"pid {os.getpid()}" in used["holder"]


def test_a_port_of_another_users_run_is_told_as_that(lab: Lab) -> None:
    """Of whoever has another state folder only the user is known; we have leased that port before."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ports = {str(listener.getsockname()[1]): "worker/0"}
        agent = lab.agent()
        agent.request("lease", run=lab.run, owner="ada@laptop", ports=ports)
        agent.close()
        other = lab.agent(state=lab.folder / "other")
        assert other.request("lease", run="r2", owner="bob@work", ports=ports)["conflicts"] == []
        (used,) = clean(lab, lab.agent())["ports"]["used"]
    user = pwd.getpwuid(os.getuid()).pw_name
    assert used["holder"] == {"run": None, "task": None, "owner": user, "since": None}


def test_gpu_memory_is_told_by_a_fake_nvidia_smi(lab: Lab) -> None:
    """No GPU here: a program of that name prints what nvidia-smi would."""
    agent = lab.agent()
    (child,) = crashed(lab, agent)
    (lab.state / "runs" / lab.run).rename(lab.folder / "removed by hand")
    tools = lab.folder / "tools"
    tools.mkdir()
    fake = tools / "nvidia-smi"
    said = f"{child}, 4096, python\n{os.getpid()}, [N/A], /usr/bin/python3\n"
    fake.write_text(f"#!/bin/sh\nprintf %s {shlex.quote(said)}\n")
    fake.chmod(0o755)
    assert clean(lab, agent, dry=True)["gpus"] is None
    seeing = lab.agent(env={"PATH": f"{tools}:{os.environ['PATH']}"})
    ended, ours = clean(lab, seeing, dry=True)["gpus"]
    assert (ended["pid"], ended["memory"], ended["run"], ended["ended"]) == (child, 4 << 30, lab.run, True)
    assert (ours["memory"], ours["run"], ours["ended"]) == (None, "", False)
    assert not any(app["ended"] for app in clean(lab, seeing)["gpus"])


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


def test_states_go_by_age_and_by_size_the_oldest_first(lab: Lab) -> None:
    agent = lab.agent()
    for name, days in (("run-a", 50), ("run-b", 20), ("run-c", 10), ("run-d", 0)):
        ended_run(lab, agent, name, days=days, size=200_000)
    assert went(clean(lab, agent, dry=True), "state") == ["run-a"]
    assert names_in(lab.state / "runs") == ["run-a", "run-b", "run-c", "run-d"]
    assert went(clean(lab, agent), "state") == ["run-a"]
    assert went(clean(lab, agent, keep_bytes=500_000), "state") == ["run-b"]
    age(lab.state / "runs" / "run-d", 0)
    assert went(clean(lab, agent, keep_bytes=0, alive=["run-c"]), "state") == []  # run-d is just over
    assert names_in(lab.state / "runs") == ["run-c", "run-d"]


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


def test_data_stays_while_a_run_may_need_it(lab: Lab) -> None:
    agent = lab.agent()
    for digest in (DIGEST, OTHER):
        (lab.workdir / "data" / digest / "files").mkdir(parents=True)
        (lab.workdir / "data" / digest / "files" / "train").write_bytes(b"x" * 5000)
        age(lab.workdir / "data" / digest, 50 * 86_400)
    (lab.workdir / "data" / f".incoming-{OTHER}.pieces").write_bytes(b"1")
    age(lab.workdir / "data" / f".incoming-{OTHER}.pieces", 2 * 86_400)
    made_from(lab, "run-a", DIGEST, days=40)
    assert went(clean(lab, agent, shared=False), "data") == []
    done = clean(lab, agent, alive=["run-a"])
    assert (went(done, "data"), went(done, "scraps")) == ([OTHER], [f".incoming-{OTHER}.pieces"])
    assert names_in(lab.workdir / "data") == [DIGEST]


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


def test_environments_that_nobody_names_go_when_that_is_wanted(lab: Lab) -> None:
    agent = lab.agent()
    kept, other, used = (environment(lab, name) for name in ("a1", "b2", "c3"))
    with subprocess.Popen([str(used / "bin" / "python"), "60"]) as sleeper:
        try:
            assert went(clean(lab, agent, older=0.0), "envs") == []
            assert went(clean(lab, agent, envs=["a1"], alive=["run-a"]), "envs") == [], "it may use any"
            assert went(clean(lab, agent, envs=["a1"], shared=False), "envs") == []
            assert went(clean(lab, agent, envs=["a1"], dry=True), "envs") == ["b2"]
            assert went(clean(lab, agent, envs=["a1"]), "envs") == ["b2"]
            assert (kept.exists(), other.exists(), used.exists()) == (True, False, True)
        finally:
            sleeper.kill()
    assert went(clean(lab, agent, envs=["a1"]), "envs") == ["c3"]
    clean(lab, agent)
    assert names_in(lab.workdir / "envs") == [".lock-a1", "a1"]


def test_wheels_that_were_kept_go_with_the_last_environment_made_of_them(lab: Lab) -> None:
    agent = lab.agent()
    for name, digest in (("a1", DIGEST), ("b2", OTHER), ("c3", OTHER)):
        (environment(lab, name) / "wheels").write_text(digest)
        (lab.workdir / "data" / digest / "wheels").mkdir(parents=True, exist_ok=True)
        age(lab.workdir / "envs" / name, 86_400)
        age(lab.workdir / "data" / digest, 86_400)
    assert went(clean(lab, agent, envs=["a1", "c3"]), "data") == []
    assert names_in(lab.workdir / "envs") == [".lock-a1", ".lock-b2", ".lock-c3", "a1", "c3"]
    assert went(clean(lab, agent, envs=["a1"], dry=True), "data") == [OTHER]
    assert went(clean(lab, agent, envs=["a1"]), "data") == [OTHER]
    assert names_in(lab.workdir / "data") == [DIGEST]


def test_an_environment_that_is_being_made_is_left_alone_and_what_was_interrupted_goes(lab: Lab) -> None:
    agent = lab.agent()
    folder = lab.workdir / "envs"
    for name in (".making-a1-00ff", ".wheels-a1-cp311"):
        (folder / name).mkdir(parents=True)
    lock = folder / ".lock-b2"
    lock.touch()
    with lock.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert went(clean(lab, agent, envs=[]), "scraps") == []
        assert lock.exists()
    age(folder, 2 * 86_400)
    assert sorted(went(clean(lab, agent), "scraps")) == [".making-a1-00ff", ".wheels-a1-cp311"]
    assert names_in(folder) == []


def test_locks_of_data_that_has_gone_go_too(lab: Lab) -> None:
    agent = lab.agent()
    data = lab.workdir / "data"
    (data / DIGEST).mkdir(parents=True)
    for digest in (DIGEST, OTHER):
        (data / f".lock-{digest}").touch()
    clean(lab, agent, dry=True)
    assert (data / f".lock-{OTHER}").exists()
    clean(lab, agent)
    assert sorted(path.name for path in data.iterdir()) == [f".lock-{DIGEST}", DIGEST]


def test_what_other_versions_put_before_pythons_goes_once_no_run_is_alive(lab: Lab) -> None:
    agent = lab.agent()
    lab.start(agent, "sleep", "1000")
    (ours,) = (lab.state / "site").iterdir()
    theirs = lab.state / "site" / "00ff"
    theirs.mkdir()
    for folder in (ours, theirs):
        os.utime(folder, (0, 0))
    assert went(clean(lab, agent), "scraps") == []
    lab.stop(agent, kill=True)
    until(lambda: agent.request("clean_look")["alive"] == [])
    assert went(clean(lab, agent), "scraps") == ["00ff"]
    assert list((lab.state / "site").iterdir()) == [ours]


def test_scraps_of_a_crash_go_after_a_day(lab: Lab) -> None:
    agent = lab.agent()
    (lab.workdir / "runs" / "run-a" / "work.node.00ff00ff00ff").mkdir(parents=True)
    for name in (f"trees/.incoming-{DIGEST}-00ff", ".share-00ff", "trees/.gone-00ff", "runs/.gone-00ff"):
        (lab.workdir / name).mkdir(parents=True)
    assert went(clean(lab, agent), "scraps") == []
    age(lab.workdir, 2 * 86_400)
    assert len(went(clean(lab, agent), "scraps")) == 5
    assert names_in(lab.workdir) == ["runs", "trees"]
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
    done = clean(lab, agent, work=True, envs=[], keep_bytes=0)
    assert {kind: found["gone"] for kind, found in done["folders"].items() if found["gone"]} == {}
    assert all((place / "mine").exists() for place in places)


def test_a_state_that_is_a_working_folder_too_stays(lab: Lab) -> None:
    """`workdir` and `state` are one folder: what a task wrote is never removed as its log."""
    agent = lab.agent()
    folder = ended_run(lab, agent, "run-a", days=50)
    (folder / "work").mkdir()
    (folder / "work" / "ckpt-1").touch()
    age(folder, 50 * 86_400)
    assert went(clean(lab, agent), "state") == []
    assert (folder / "work" / "ckpt-1").exists()


# --- a launch at the same moment ---


def test_a_tree_that_was_used_since_it_was_looked_at_stays(lab: Lab) -> None:
    path = tree(lab, DIGEST, 50)
    seen = Folder(str(path), path.stat().st_mtime, 0)
    lab.agent().request("work_make", workdir=str(lab.workdir), run="run-a", digests=[DIGEST])
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
    fields = {"workdir": str(lab.workdir), "run": "run-a", "digests": [DIGEST]}
    replies: list[dict[str, Any]] = []
    agent = SimpleNamespace(
        state_error=None,
        paths=open_root(str(lab.state)),
        rooms={},
        in_child=lambda _request, job, *, seconds: replies.append(job()),  # noqa: ARG005 - a name of it
    )
    assert work.make(agent, Request(fields, b"")) is None  # type: ignore[arg-type]
    (reply,) = replies
    assert reply["missing"] == [DIGEST]
    assert not Path(reply["work"]).exists()


def test_a_launch_has_all_of_its_code_or_is_told_to_send_it_again(lab: Lab) -> None:
    cleaner, stager = lab.agent(), lab.agent()
    tree(lab, DIGEST, 0)
    began = time.monotonic()
    clean(lab, cleaner)
    span = time.monotonic() - began
    for number in range(20):
        if not (lab.workdir / "trees" / DIGEST).exists():
            tree(lab, DIGEST, 50)
        age(lab.workdir / "trees" / DIGEST, 50 * 86_400)
        cleaning = cleaner.send("clean", **wish(lab))
        time.sleep(number / 20 * span)  # over the whole of the other one's work
        run = f"run-{number}"
        asked = stager.send("work_make", workdir=str(lab.workdir), run=run, digests=[DIGEST])
        reply = stager.reply(asked)[0]
        removed = went(cleaner.reply(cleaning)[0], "code")
        made = lab.workdir / "runs" / run / "work"
        assert reply["missing"] == [] or removed == [DIGEST]
        assert made.exists() == (reply["missing"] == [])
        assert not made.exists() or len(names_in(made / "pkg")) == 40
