"""Other users of a machine: they control nothing that we execute, stage, keep, or listen on."""

import ast
import functools
import grp
import os
import pwd
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.node.base import paths, procs, trust
from orchestrator.node.base.fault import NodeError
from orchestrator.node.serve.agent import Request
from orchestrator.node.task import leases
from tests.exclusive import exclusive
from tests.folders import remove
from tests.node.agent_client import AgentClient, AgentError
from tests.node.harness import until
from tests.node.lab import Lab
from tests.node.test_agent_store import Receiver, make_tree
from tests.ports import free_port

NOBODY = 65534
DIGEST = "0123456789abcdef"
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="a second user needs root")


def as_nobody(act: Callable[[], object]) -> bool:
    """Return whether another user could run this."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            act()
            status = 0
        except OSError:
            pass
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.fixture
def wide_open() -> Iterator[None]:
    """A login with umask 000."""
    old = os.umask(0)
    yield
    os.umask(old)


@pytest.fixture
def lab() -> Iterator[Lab]:
    """A machine in a folder accessible to all users, unlike pytest's own."""
    folder = Path(tempfile.mkdtemp(prefix="all users ", dir="/tmp"))
    folder.chmod(0o711)
    made = Lab(folder)
    yield made
    made.close()
    shutil.rmtree(folder)


@pytest.fixture
def shared(lab: Lab) -> Path:
    """The working folder, created before our first use."""
    lab.workdir.mkdir()
    return lab.workdir


def make_work(lab: Lab, agent: AgentClient) -> dict[str, Any]:
    return agent.request("work_make", workdir=str(lab.workdir), run=lab.run, digest=DIGEST)


def is_present(lab: Lab, agent: AgentClient) -> bool:
    """Return whether a launch would accept the tree as it is."""
    one = Receiver(
        lab, lab.workdir.name, {"package/model.py": b"1"}, agent=agent, digest=DIGEST, room="trees"
    )
    try:
        return bool(one.begin()["present"])
    finally:
        agent.request("store_drop", path=str(one.path))


def writable_by_others(root: Path) -> list[str]:
    places = [place for place in (root, *root.rglob("*")) if not place.is_symlink()]
    return [str(place) for place in places if place.stat().st_mode & 0o022]


@pytest.mark.usefixtures("wide_open")
def test_nothing_we_stage_or_execute_is_writable_by_others_whatever_the_umask(lab: Lab) -> None:
    agent = lab.agent()
    agent.request("share", step="write", workdir=str(lab.workdir), nonce="n1", host="gpu-01")
    make_tree(lab, agent, {"train.py": b"1", "package/model.py": b"2"}, DIGEST)
    make_work(lab, agent)
    agent.close()
    assert writable_by_others(lab.workdir) == []
    assert writable_by_others(lab.state) == []


@pytest.mark.usefixtures("wide_open")
def test_files_created_by_a_task_or_a_command_follow_the_user_s_umask(lab: Lab) -> None:
    agent = lab.agent()
    lab.start(agent, sys.executable, "-c", "open('mine', 'w'); print('made', flush=True)")
    until(lambda: b"made" in Path(lab.task().log).read_bytes())
    agent.request("exec", argv=["touch", str(lab.folder / "by exec")])
    for name in ("mine", "by exec"):
        assert stat.S_IMODE((lab.folder / name).stat().st_mode) == 0o666, name


def test_code_planted_by_another_user_is_not_run(lab: Lab, shared: Path) -> None:
    shared.chmod(0o1777)
    (shared / "trees").mkdir()
    (shared / "trees").chmod(0o1777)
    planted = shared / "trees" / DIGEST
    assert as_nobody(planted.mkdir)
    agent = lab.agent()
    for ask in (lambda: is_present(lab, agent), lambda: make_work(lab, agent)):
        with pytest.raises(AgentError, match=r"will not run code from .*uid 65534") as caught:
            ask()
        assert caught.value.kind == "workdir"
        assert "folder of your own" in caught.value.hint
    assert not (shared / "runs").exists()


@pytest.mark.parametrize("place", ["", "trees", "runs"])
def test_a_folder_where_others_could_replace_the_code_is_refused_with_a_working_fix(
    lab: Lab, shared: Path, place: str
) -> None:
    agent = lab.agent()
    make_tree(lab, agent, {"train.py": b"1"}, DIGEST)
    (shared / "runs").mkdir()
    (shared / place).chmod(0o777)
    assert as_nobody((shared / place / "planted").touch)
    with pytest.raises(AgentError, match="anyone may write there") as caught:
        make_work(lab, agent)
    assert os.system(caught.value.hint) == 0
    assert make_work(lab, agent)["missing"] == []


def test_a_single_user_group_may_have_write_access(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As created by useradd, with umask 002; users and groups are fake, the folder is real."""
    tmp_path.chmod(0o775)
    os.chown(tmp_path, 0, 4242)
    user = pwd.struct_passwd(("ada", "x", 0, 4242, "", "/", "/bin/sh"))
    monkeypatch.setattr(pwd, "getpwuid", lambda _: user)

    def check(name: str, *members: str) -> None:
        monkeypatch.setattr(grp, "getgrgid", lambda gid: grp.struct_group((name, "x", gid, list(members))))
        trust.is_private.cache_clear()
        trust.check_way(str(tmp_path))

    check("ada")
    for name, *members in (("ada", "bob"), ("users",)):
        with pytest.raises(NodeError, match="will not run code"):
            check(name, *members)


# --- other users while a run is alive ---


def test_another_user_can_neither_read_nor_stop_nor_feed_a_task(lab: Lab) -> None:
    agent, port = lab.agent(), free_port()
    agent.request("lease", run=lab.run, owner="ada", machine="", since=1.0, ports={str(port): "worker/0"})
    lab.start(agent, "sleep", "600")
    task = lab.task()
    lease = str(lab.state / "leases" / str(port))
    runs = str(lab.state / "runs")
    for path in (task.log, task.state, task.report, lease, runs):
        assert not as_nobody(functools.partial(os.open, path, os.O_RDONLY))
    for path in (task.control, task.lock, lease):
        assert not as_nobody(functools.partial(os.open, path, os.O_WRONLY | os.O_NONBLOCK))
    leader = agent.request("states", run=lab.run)["runs"][0]["tasks"][0]["state"]["pid"]
    assert not as_nobody(lambda: os.kill(leader, 0))
    assert not as_nobody(lambda: os.open(f"/proc/{leader}/environ", os.O_RDONLY))
    assert not as_nobody(lambda: os.open(f"/proc/{leader}/fd/1", os.O_WRONLY))
    lab.stop(agent, kill=True)


def test_a_port_that_another_users_run_has_leased_is_refused(lab: Lab) -> None:
    port = free_port()
    asked: dict[str, Any] = {"machine": "", "since": 1.0, "ports": {str(port): "worker/0"}}
    lab.agent().request("lease", run=lab.run, owner="ada@laptop", **asked)
    eve = lab.agent(state=lab.folder / "state of eve")  # she cannot see the lease
    (conflict,) = eve.request("lease", run="hers", owner="eve@desk", **asked)["conflicts"]
    assert (conflict["port"], conflict["run"], conflict["owner"]) == (port, lab.run, "ada@laptop")
    asked["ports"] = {str(port + 1): "worker/0"}
    assert eve.request("lease", run="hers", owner="eve@desk", **asked)["conflicts"] == []


def test_of_two_users_who_ask_at_once_one_gets_a_port(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    refused, places, port = list[bool](), leases.places, str(free_port())

    def ask(user: str) -> None:
        agent: Any = SimpleNamespace(paths=paths.open_root(str(lab.folder / user)), leases={}, rooms={})
        asked = {"run": user, "owner": user, "machine": "", "since": 1.0, "ports": {port: "worker/0"}}
        refused.append(bool(leases.lease(agent, Request(asked, b""))["conflicts"]))
        agents.append(agent)

    def meanwhile() -> list[leases.Place]:
        monkeypatch.setattr(leases, "places", places)
        found = places()
        ask("eve")
        return found

    agents = list[Any]()  # their sockets are the leases
    monkeypatch.setattr(leases, "places", meanwhile)
    ask("ada")
    assert refused == [True, False]
    for agent in agents:
        for _, place in agent.rooms.values():
            place.close()


# --- copied cookies ---


def bearer(environ: dict[str, str], user: int = 0) -> int:
    """Start a process with that environment as a child of the test, not of our code."""
    child = os.fork()
    if child == 0:
        if user:
            os.setgid(user)
            os.setuid(user)
        os.execve("/bin/sleep", ["sleep", "600"], environ)
    until(lambda: procs.argv0(child) == "sleep")
    return child


def is_killed(child: int) -> bool:
    """Return whether it has been killed; afterwards it is gone in any case."""
    pid, _ = os.waitpid(child, os.WNOHANG)
    if pid == 0:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return pid != 0


def over(lab: Lab, agent: AgentClient) -> dict[str, str]:
    """Run a task until it ends by itself; return its environment."""
    show = "import os; print([(k, v) for k, v in os.environ.items() if k.startswith('ORCHESTRATE_')])"
    lab.start(agent, sys.executable, "-c", show)
    lab.over()
    return dict(ast.literal_eval(Path(lab.task().log).read_text()))


def clean(lab: Lab, agent: AgentClient) -> dict[str, Any]:
    fields: dict[str, Any] = {"alive": [], "known": [], "older": 86_400.0, "dry": False}
    return agent.request("clean", workdir=str(lab.workdir), shared=True, work=False, **fields)


def test_root_leaves_another_users_process_with_a_copied_cookie_alone(lab: Lab) -> None:
    with exclusive("clean"):
        agent = lab.agent()
        marks = over(lab, agent)
        child = bearer(marks, NOBODY)
        done = clean(lab, agent)
        assert agent.request("sweep", run=lab.run)["killed"] == []
        assert (done["killed"], done["orphans"], is_killed(child)) == ([], [], False)


def test_an_unguarded_process_of_the_run_does_not_survive_into_the_next_attempt(lab: Lab) -> None:
    with exclusive("clean"):
        agent = lab.agent()
        child = bearer(over(lab, agent))
        assert [one["pid"] for one in agent.request("sweep", run=lab.run)["killed"]] == [child]
        assert is_killed(child)


@pytest.mark.parametrize(
    ("change", "killed"),
    [
        ({}, True),
        ({"ORCHESTRATE_ATTEMPT": "2"}, False),
        ({"ORCHESTRATE_REPORT": "/elsewhere/report.jsonl"}, False),
    ],
)
def test_only_a_full_set_of_marks_counts(lab: Lab, change: dict[str, str], killed: bool) -> None:
    with exclusive("clean"):
        agent = lab.agent()
        child = bearer({**over(lab, agent), **change})
        assert [one["pid"] for one in clean(lab, agent)["killed"]] == [child] * killed
        assert is_killed(child) is killed


def test_only_processes_that_see_our_files_are_ended_for_an_unknown_run(lab: Lab) -> None:
    with exclusive("clean"):
        agent = lab.agent()
        marks = over(lab, agent)
        remove(lab.state / "runs" / lab.run)
        inside, elsewhere = bearer(marks), subprocess.Popen(["unshare", "-m", "sleep", "600"], env=marks)
        until(lambda: procs.argv0(elsewhere.pid) == "sleep")
        done = clean(lab, agent)
        assert [one["pid"] for one in done["killed"]] == [inside]
        assert is_killed(inside)
        assert elsewhere.poll() is None
        elsewhere.kill()
        elsewhere.wait()
