"""The agent: its start, requests, helpers, ports, and following a task through it."""

import fcntl
import os
import pwd
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.node.base import descriptors
from orchestrator.node.look import mesh
from orchestrator.node.serve import bootstrap
from orchestrator.node.serve.agent import Jobs
from orchestrator.node.serve.loop import Loop
from orchestrator.node.task import state
from tests.folders import remove
from tests.node.agent_client import OLD_PYTHON, AgentClient, AgentError, Silence
from tests.node.harness import guard_of, supervisor_of, until
from tests.node.lab import Lab, children, gone, wait_gone
from tests.node.test_agent_store import make_tree
from tests.ports import free_port


def test_a_bug_is_reported_with_its_traceback_and_does_not_end_the_agent(lab: Lab) -> None:
    agent = lab.agent()
    with pytest.raises(AgentError) as caught:
        agent.request("join_queue", run="r", owner="o", machine="", since="once", go=True)
    assert caught.value.kind == "bug"
    assert "could not convert string to float" in caught.value.what
    assert 'float(request["since"])' in caught.value.why  # the sources are available
    assert agent.request("ping")


def test_a_slow_request_does_not_delay_others(lab: Lab) -> None:
    agent = lab.agent()
    setup = "sleep 30"
    slow = agent.send("facts", python="python3", workdir=str(lab.workdir), setup=setup)
    until(lambda: children(agent.pid), what="the helper")
    began = time.monotonic()
    assert agent.request("ping")
    assert time.monotonic() - began < 15.0
    assert slow not in agent.replies


def test_a_silent_controller_ends_the_agent(lab: Lab) -> None:
    agent = lab.agent(idle=1.0)
    with pytest.raises(Silence, match="the agent ended"):
        agent.listen()
    assert agent.close() == 0


def helpers(agent: AgentClient, lab: Lab) -> list[int]:
    """Start a job whose child has started other programs."""
    agent.send("facts", python="python3", workdir=str(lab.workdir), setup="sleep 1000 & sleep 1000")

    def family() -> list[int]:
        found = children(agent.pid)
        for pid in found:
            found += children(pid)
        return found if len(found) >= 4 else []  # the helper, bash, two sleeps

    found: list[int] = until(family, what="helper, bash and its sleeps")
    return found


def test_a_killed_agent_leaves_no_helper(lab: Lab) -> None:
    agent = lab.agent()
    family = helpers(agent, lab)
    os.kill(agent.pid, signal.SIGKILL)
    wait_gone(*family)


def test_a_stop_that_overtakes_a_start_waits_for_it(lab: Lab) -> None:
    agent, tasks = lab.agent(), [f"worker/{n}" for n in range(4)]
    spec = {"argv": ["sleep", "600"], "env": {}, "cwd": str(lab.folder), "grace": 1.0}
    # Sent together, as by a controller that is stopped just as it launches.
    starts = [agent.send("start", run=lab.run, attempt="1", task=task, spec=spec) for task in tasks]
    stop = agent.send("stop", run=lab.run, grace=1.0, kill=True)
    assert all(agent.reply(start)[0]["started"] for start in starts)
    assert agent.reply(stop)[0]["asked"] == tasks
    for task in tasks:
        assert lab.over(task)["state"] == "exited"
    assert agent.request("sweep", run=lab.run)["killed"] == []


# --- Work in forked children: replies, errors, deadlines ---


def run(work: Callable[[], Any], seconds: float = 20.0) -> tuple[dict[str, Any], bytes]:
    """Return the reply of `work` from its child."""
    loop = Loop()
    answers: list[Any] = []
    Jobs(loop).run("work", work, answers.append, seconds=seconds)
    deadline = time.monotonic() + 20.0
    loop.after(20.0, lambda: None)
    while not answers and time.monotonic() < deadline:
        loop.step()
    (answer,) = answers
    return answer  # type: ignore[no-any-return]


def test_work_past_its_deadline_is_killed_with_everything_it_started(tmp_path: Any) -> None:
    pids = tmp_path / "pids"

    def work() -> Any:
        deaf = subprocess.Popen(["sh", "-c", "trap '' TERM; while :; do sleep 1; done"])
        pids.write_text(f"{os.getpid()} {deaf.pid}")
        deaf.wait()
        return {}, b""

    header, _ = run(work, seconds=3.0)  # enough for it to start
    assert header["error"]["kind"] == "timeout"
    assert header["error"]["what"] == "`work` did not end within 3 s"
    until(lambda: all(gone(int(pid)) for pid in pids.read_text().split()), what="the end of the work")


# --- From a login shell to hello: any shell, Python, locale, and noise ---

old_python = pytest.mark.skipif(OLD_PYTHON is None, reason="no Python 3.8 here")


@old_python
def test_python_3_8_runs_the_agent_and_a_task(lab: Lab) -> None:
    agent = lab.agent(python=OLD_PYTHON, ahead={"ping": {}})
    assert agent.reply(1)
    assert agent.hello["python"].startswith("3.8.")
    lab.start(agent, "sh", "-c", "echo from an old one")
    lab.follow(agent, "worker/0")
    assert lab.final(agent)["exit_code"] == 0
    assert agent.log("worker/0") == b"from an old one\n"
    port, workdir = free_port(), str(lab.workdir)
    assert agent.request("facts", python="python3", workdir=workdir)["python"]["ok"]
    assert agent.request("listen", ports=[port], nonce="n")["listening"] == [port]
    targets = [{"host": "h", "address": address, "port": port} for address in ("127.0.0.1", "localhost")]
    results = agent.request("probe", nonce="n", timeout=5.0, targets=targets)["results"]
    assert [result["tcp"] for result in results] == [True, True]
    make_tree(lab, agent, {"train.py": b"1"}, "aa")
    assert agent.request("work_make", workdir=workdir, run=lab.run, digest="aa")


def test_requests_sent_with_the_agent_are_answered_and_a_run_without_a_plan_leaves_nothing(
    lab: Lab,
) -> None:
    agent = lab.agent(ahead={"keep": {"run": "r1", "who": "me"}, "ping": {}})
    assert agent.reply(1)[0]["granted"]
    assert agent.reply(2)
    assert (lab.state / "runs" / "r1").is_dir()
    agent.close()
    assert not (lab.state / "runs" / "r1").exists()
    agent = lab.agent(ahead={"keep": {"run": "r1", "who": "me"}})
    agent.request("keep", run="r1", who="me", plan="a plan")
    agent.close()
    assert (lab.state / "runs" / "r1" / "run.json").read_text() == "a plan"


def test_an_old_python_is_reported() -> None:
    loader = (Path(bootstrap.__file__).parent / "loader.py").read_text()
    old = loader.replace("sys.version_info < (3, 8)", "sys.version_info < (99, 0)")
    done = subprocess.run(["python3", "-c", old], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "the agent needs Python 3.8 or newer" in done.stderr
    assert done.stdout == ""


def test_a_login_without_utf8_preserves_every_byte(lab: Lab) -> None:
    agent = lab.agent(env={"LC_ALL": "en_US.ISO-8859-1", "LANG": ""})
    assert agent.hello["state"] == str(lab.state)  # the folder's name contains é
    assert (lab.state / "runs").is_dir()


def test_compiled_code_is_kept_but_not_trusted_once_modified(lab: Lab) -> None:
    code = lab.state / "code"
    lab.agent().close()
    first = code.read_bytes()
    lab.agent().close()
    assert code.read_bytes() == first
    for damaged in (first[:-9], first[:3], b"", b"\0" * len(first), first[:99] + b"?" + first[100:]):
        code.write_bytes(damaged)
        lab.agent().close()
        assert code.read_bytes() == first, damaged[:4]
    code.unlink()
    lab.state.chmod(0o755)
    os.mkfifo(code)  # no process waits for its other end
    refused = lab.agent()
    assert "open to other users" in refused.hello["state_error"]["what"]
    refused.close()
    assert code.is_fifo()
    code.unlink()
    lab.state.rename(lab.folder / "elsewhere")
    lab.state.symlink_to(lab.folder / "elsewhere")
    (lab.folder / "elsewhere").chmod(0o700)
    lab.agent().close()
    assert not code.exists()  # the link's creator may redirect it


# --- Two agents check each other's task ports ---

NONCE = "6f1ed002ab5595859014ebf0951522d9"


def look(agent: AgentClient, port: int, address: str = "127.0.0.2", timeout: float = 3.0) -> dict[str, Any]:
    targets = [{"host": "b", "address": address, "port": port}]
    (result,) = agent.request("probe", nonce=NONCE, timeout=timeout, targets=targets)["results"]
    return dict(result)


@pytest.mark.parametrize(
    "question", [b"", b"GET / HTTP/1.0\r\n\r\n", NONCE[:9].encode() + b"\n", b"\0" * 4096]
)
def test_a_connection_without_the_run_s_token_gets_no_reply(lab: Lab, question: bytes) -> None:
    """As docs/security.md promises."""
    agent, port = lab.agent(), free_port()
    agent.request("listen", ports=[port], nonce=NONCE, host="b", large=1 << 16)
    with socket.create_connection(("127.0.0.1", port), 10) as peer:
        try:
            peer.sendall(question)
            peer.shutdown(socket.SHUT_WR)
            answer = peer.recv(1024)
        except OSError:
            answer = b""  # disconnected midway
    assert answer == b""
    assert look(agent, port)["tcp"]  # and a client with the token gets a reply


def test_the_reason_a_connection_fails(lab: Lab) -> None:
    a, b, port = lab.agent(), lab.agent(), free_port()
    rows = {
        (free_port(), "127.0.0.1"): "refused",
        (1, "no-such-host.invalid"): "does not resolve",
        (1, "255.255.255.255"): "no route",
        (port, "127.0.0.1"): "answered by c",
    }
    b.request("listen", ports=[port], nonce=NONCE, host="c")
    for (number, address), why in rows.items():
        answer = look(a, number, address, timeout=2.0)
        assert (answer["tcp"], answer["why"]) == (False, why)
    b.request("listen", ports=[port], nonce="another", host="b")
    assert look(a, port)["why"] == "answered by something else"


def test_the_process_holding_a_port_is_named(lab: Lab) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        free = free_port()
        found = lab.agent().request("listen", ports=[port, free], nonce=NONCE)
    assert found["listening"] == [free]
    (busy,) = found["busy"]
    assert busy["port"] == port
    assert f"pid {os.getpid()} (user {pwd.getpwuid(os.getuid()).pw_name})" in busy["holder"]


def test_an_address_that_did_not_answer_is_reported_although_another_one_does(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As behind a firewall that drops IPv6: PyTorch and JAX wait there for the first address of the name."""
    agent, port = lab.agent(), free_port()
    agent.request("listen", ports=[port], nonce=NONCE, host="b")
    with socket.socket() as full, socket.socket() as one, socket.socket() as two:
        full.bind(("127.0.0.3", 0))
        full.listen(0)
        for waiting in (one, two):  # the kernel drops what comes next
            waiting.setblocking(False)
            waiting.connect_ex(full.getsockname())
        places = [(2, 1, 6, "", place) for place in (full.getsockname(), ("127.0.0.1", port))]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: places)
        answer = mesh._silence({"host": "b"})
        mesh._call({"host": "b", "address": "b.lan", "port": port}, answer, NONCE, 0, 1.0)
    assert (answer["tcp"], answer["why"], answer["resolved"]) == (True, "timed out", "127.0.0.3")


def test_ipv4_is_used_when_ipv6_is_missing_or_undetermined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)  # as if descriptors had run out
    with descriptors.listen(0, 1) as listener:
        assert listener.family is socket.AF_INET


def test_a_checked_port_can_be_bound_without_reuseaddr(lab: Lab) -> None:
    """TIME_WAIT would block the port for a minute for a server that does not set SO_REUSEADDR."""
    agent, port = lab.agent(), free_port()
    agent.request("listen", ports=[port], nonce=NONCE, host="b")
    for _ in range(3):
        assert look(agent, port)["tcp"]
    agent.request("unlisten")
    with socket.socket() as plain:
        plain.bind(("", port))
        plain.listen()


def test_a_lease_ends_with_the_agent_unless_a_task_holds_it(lab: Lab) -> None:
    port, other = free_port(), free_port()
    a = lab.agent()
    bobs: dict[str, Any] = {"run": "r2", "owner": "me", "machine": "", "since": 2.0}
    ports = {str(port): "worker/0", str(other): "worker/1"}
    a.request("lease", run=lab.run, owner="me", machine="", since=1.0, ports=ports)
    lab.start(a, "sleep", "1000", port=port)
    a.close()
    b = lab.agent()
    assert b.request("lease", **bobs, ports={str(other): "worker/0"})["conflicts"] == []
    (conflict,) = b.request("lease", **bobs, ports={str(port): "worker/0"})["conflicts"]
    assert (conflict["run"], conflict["task"]) == (lab.run, "worker/0")
    lab.follow(b, "worker/0")
    lab.stop(b, kill=True)
    lab.final(b)
    until(lambda: b.request("lease", **bobs, ports={str(port): "worker/0"})["conflicts"] == [])


def test_an_agent_that_has_not_noticed_its_lost_connection_is_ended_by_the_next_one(lab: Lab) -> None:
    old, other = lab.agent(), lab.agent()
    port: dict[str, Any] = {"ports": {str(free_port()): "worker/0"}, "machine": "", "since": 1.0}
    old.request("lease", run=lab.run, owner="me", **port)
    assert old.request("keep", run=lab.run, who="me")["granted"]
    for who, again in (("me", False), ("another", True)):
        assert not other.request("keep", run=lab.run, who=who, again=again)["granted"]
    assert old.request("ping")
    other.request("keep", run=lab.run, who="me", again=True)
    until(lambda: other.request("keep", run=lab.run, who="me")["granted"], what="the place of the keeper")
    assert other.request("lease", run="the next run", owner="me", **port)["conflicts"] == []


# --- A task as it is seen through an agent: every byte, every time, the state last ---


def python(text: str) -> tuple[str, ...]:
    return (sys.executable, "-I", "-S", "-u", "-c", text)


def times(agent: AgentClient, task: str = "worker/0") -> list[tuple[int, int]]:
    return [
        tuple(time)
        for header, _ in agent.stream
        if header["kind"] == "log" and header["task"] == task
        for time in header["times"]
    ]


@pytest.mark.parametrize("lost_at", [0, 1, 100, 70_000])
def test_a_follower_resumes_where_another_stopped(lab: Lab, lost_at: int) -> None:
    """No byte is duplicated or missing; the first record covers the first byte."""
    first = lab.agent()
    lab.start(first, *python("import time\nfor n in range(4): print('x' * 30_000); time.sleep(0.07)"))
    lab.follow(first, "worker/0")
    lab.final(first)
    whole = first.log("worker/0")
    index = times(first)
    second = lab.agent()
    lab.follow(second, "worker/0", log=lost_at)
    lab.final(second)
    assert second.log("worker/0") == whole[lost_at:]
    covering = max(n for n, (offset, _) in enumerate(index) if offset <= lost_at)
    assert times(second) == index[covering:]


def test_a_stalled_reader_uses_no_memory_and_does_not_delay_a_stop(lab: Lab) -> None:
    """With 100 MB pending and stdout full, the stop takes effect although its reply is queued."""
    agent = lab.agent()
    resize(agent, 4096)
    lab.start(agent, *python("import os\nfor n in range(100): os.write(1, bytes([n]) * (1 << 20))"))
    until(lambda: Path(lab.task().log).stat().st_size == 100 << 20, what="the log")
    victim = lab.start(agent, "sleep", "1000", task="worker/1")["pid"]
    lab.follow(agent, "worker/0")
    before = memory(agent.pid)
    began = time.monotonic()
    asked = agent.send("stop", run=lab.run, grace=60.0, kill=False)
    wait_gone(victim)
    assert time.monotonic() - began < 30.0
    time.sleep(0.2)  # time an agent without back-pressure would use to continue reading
    assert memory(agent.pid) - before < 8 << 20
    resize(agent, 1 << 20)
    assert agent.reply(asked)[0]["asked"] == ["worker/1"]
    lab.final(agent)
    assert agent.log("worker/0") == b"".join(bytes([n]) * (1 << 20) for n in range(100))


def resize(agent: AgentClient, size: int) -> None:
    assert agent.process.stdout is not None
    fcntl.fcntl(agent.process.stdout, 1031, size)  # F_SETPIPE_SZ


def memory(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(os.geteuid() != 0, reason="a read-only disk needs root to mount")
def test_a_task_that_ends_on_a_read_only_disk_is_lost(lab: Lab) -> None:
    """As after a disk error: its end cannot be recorded, and its peers wait for it."""
    agent = lab.agent()
    pid = lab.start(agent, "sh", "-c", "echo here; exec sleep 1000")["pid"]
    lab.follow(agent, "worker/0")
    agent.until(lambda: agent.log("worker/0") == b"here\n")
    folder = str(lab.state / "runs" / lab.run)
    subprocess.run(["mount", "--bind", folder, folder], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", folder], check=True)
        os.kill(pid, signal.SIGKILL)
        final = lab.final(agent)
        assert final["state"] == "lost"
        assert "its end could not be recorded: Read-only file system" in final["message"]
        assert agent.request("sweep", run=lab.run) == {"killed": [], "alive": []}
        [run] = agent.request("states", run=lab.run)["runs"]
        assert [(task["state"]["state"], task["alive"]) for task in run["tasks"]] == [("lost", False)]
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def test_a_task_whose_folder_is_removed_is_ended_and_reported_as_lost(lab: Lab) -> None:
    agent = lab.agent()
    pid = lab.start(agent, "sh", "-c", "echo here; exec sleep 1000")["pid"]
    lab.follow(agent, "worker/0")
    agent.until(lambda: agent.log("worker/0") == b"here\n")
    ours = [supervisor_of(pid), guard_of(pid)]
    remove(lab.state / "runs" / lab.run)
    final = lab.final(agent)
    assert (final["state"], final["message"]) == ("lost", state.REMOVED)
    wait_gone(pid, *ours)
    assert agent.request("sweep", run=lab.run) == {"killed": [], "alive": []}
