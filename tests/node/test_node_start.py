"""Starting a task: once, detached from the caller, and with exactly the given environment."""

import fcntl
import multiprocessing
import os
import shlex
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from orchestrator.node.base import paths, procs
from orchestrator.node.base.fault import NodeError
from orchestrator.node.task import state, supervisor, tasks
from tests.folders import mounted
from tests.node.agent_client import AgentClient
from tests.node.harness import Node, guard_of, link, names_in, supervisor_of, until


def test_a_second_start_does_nothing_and_reports_it(node: Node) -> None:
    first = node.start("sleep", "600")
    second = node.start("sleep", "600")
    assert (first["started"], first["already"]) == (True, False)
    assert (second["started"], second["already"], second["pid"]) == (False, True, first["pid"])
    assert second["state"]["state"] == state.RUNNING
    node.stop(kill=True)
    node.final()
    assert node.start("sleep", "600")["state"]["state"] == state.EXITED
    assert node.start("true", attempt="2")["started"]
    node.final(attempt="2")


def test_of_many_concurrent_starts_exactly_one_succeeds(node: Node) -> None:
    fork = multiprocessing.get_context("fork")
    pool = fork.Pool(6)
    answers = pool.map(_start_touch, [node] * 6)
    pool.close()  # not `terminate`, which `with` uses: it can hang on a busy machine
    pool.join()
    assert [answer["started"] for answer in answers].count(True) == 1
    node.final()
    assert node.log() == b"once\n"
    assert names_in(node.paths.attempt(node.run, "1")) == ["worker-0"]  # no half-created claims


def _start_touch(node: Node) -> dict[str, Any]:
    return node.start("echo", "once")


def test_a_program_on_a_noexec_disk_gets_a_working_fix(node: Node) -> None:
    with mounted(node.folder / "a disk", "noexec") as disk:
        (disk / "run.sh").write_text("#!/bin/sh\n")
        (disk / "run.sh").chmod(0o755)
        with pytest.raises(NodeError) as caught:
            node.start(str(disk / "run.sh"))
    assert f"launch `bash {shlex.quote(str(disk / 'run.sh'))}`" in caught.value.hint


@pytest.mark.parametrize(
    ("argv", "spec", "what", "why"),
    [
        (["no-such-program"], {}, "no-such-program could not be started", "No such file"),
        (["./nope.sh"], {}, "./nope.sh could not be started", "No such file"),
        (["./plain"], {}, "./plain could not be started", "Permission denied"),
        (["./empty"], {}, "./empty could not be started", "Exec format"),
        (["./lost"], {}, "./lost could not be started", "No such file"),
        (["true"], {"cwd": "/no/such"}, "its working folder /no/such cannot be entered", "No such file"),
        (["true"], {"cwd": "/etc/passwd"}, "its working folder /etc/passwd cannot", "Not a directory"),
        (["true", "x" * 200_000], {}, "true could not be started", "Argument list too long"),
    ],
)
def test_a_failed_start_is_reported_in_parts_and_is_final(
    node: Node, argv: list[str], spec: dict[str, Any], what: str, why: str
) -> None:
    locked = node.folder / "locked"
    locked.mkdir(mode=0)  # on PATH it causes "permission denied" for every name
    spec = {"env": {"PATH": f"{os.environ['PATH']}:{locked}"}, **spec}
    for name, mode, text in (
        ("plain", 0o644, ""),
        ("empty", 0o755, "echo"),
        ("lost", 0o755, "#!/no/such/interpreter"),
    ):
        file = node.folder / name
        file.write_text(text)
        file.chmod(mode)
    with pytest.raises(NodeError) as caught:
        node.start(*argv, **spec)
    assert caught.value.kind == "start"
    assert what in caught.value.what
    assert why in caught.value.why
    found = node.final()
    assert (found["state"], found["exit_code"], found["exit_signal"]) == (state.UNSTARTED, None, None)
    assert why in found["message"]
    node.alone()


def test_nothing_starts_after_a_stop_from_elsewhere(node: Node) -> None:
    tasks.store_plan(node.paths, node.run, "{}")
    with AgentClient(Path(node.paths.root)) as elsewhere:
        stop = elsewhere.request("stop", run=node.run, grace=0.0, kill=True, final=True)
        assert stop == {"asked": []}
        assert elsewhere.request("sweep", run=node.run) == {"killed": [], "alive": []}
    with pytest.raises(NodeError) as caught:
        node.start("sleep", "600")
    assert (caught.value.kind, caught.value.why) == ("stopped", "a user has stopped the run")
    found = node.final(seconds=5.0)
    assert (found["state"], found["want"]) == (state.UNSTARTED, state.WANT_STOP)
    node.alone()


def test_arguments_arrive_unchanged_even_through_a_setup(node: Node) -> None:
    awkward = ["it's", '"$(id)"', "a\nb", "", "*", "日本", "-n", "$1"]
    show = "import sys; print(repr(sys.argv[1:]))"
    node.start(sys.executable, "-c", show, *awkward)
    node.start(sys.executable, "-c", show, *awkward, task="worker/1", setup="export X=1  # a comment")
    for task in ("worker/0", "worker/1"):
        node.final(task)
        assert node.log(task).decode() == repr(awkward) + "\n"


def test_setup_can_set_the_environment_but_our_python_still_comes_first(node: Node) -> None:
    folder = node.folder / "venv" / "bin"
    folder.mkdir(parents=True)
    (node.folder / "venv" / "pyvenv.cfg").touch()
    (folder / "python3").symlink_to(sys.executable)
    for task, setup in (("worker/0", None), ("worker/1", "PATH=/usr/bin:/bin; export MODULE=loaded")):
        node.start("env", task=task, setup=setup, python=str(folder / "python3"))
        node.final(task)
        seen = dict(line.split("=", 1) for line in node.log(task).decode().splitlines() if "=" in line)
        assert seen["PATH"].split(":")[0] == str(folder)
        assert seen["VIRTUAL_ENV"] == str(node.folder / "venv")
        assert seen.get("MODULE") == ("loaded" if setup else None)


def test_the_task_has_its_own_session_clean_signals_and_no_inherited_descriptors(node: Node) -> None:
    ours = os.open("/dev/null", os.O_RDONLY)
    os.set_inheritable(ours, True)
    old = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    hup = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        pid = node.start("sh", "-c", "kill -STOP $$")["pid"]  # its libraries are loaded, then closed
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, old)
        signal.signal(signal.SIGHUP, hup)
        os.close(ours)
    until(lambda: procs.status(pid) == "T", what="it has begun")
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    status = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    assert [int(status[name], 16) for name in ("SigBlk", "SigIgn")] == [0, 0]
    assert os.getsid(pid) == pid == os.getpgid(pid)
    assert names_in(f"/proc/{pid}/fd") == ["0", "1", "2"]
    assert link(f"/proc/{pid}/fd/0") == "/dev/null"
    assert link(f"/proc/{pid}/fd/1").startswith("pipe:")
    assert os.getsid(supervisor_of(pid)) != os.getsid(0)


def test_guard_and_supervisor_inherit_only_the_leases(node: Node) -> None:
    mine, other = os.pipe()
    lease = os.open(node.folder / "lease", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(lease, fcntl.LOCK_EX)
    pid = node.start("sleep", "600", leases=[lease])["pid"]
    os.close(lease)
    os.close(other)
    assert os.read(mine, 1) == b""  # no other process holds the write end
    os.close(mine)
    for ours in (supervisor_of(pid), guard_of(pid)):
        assert [link(f"/proc/{ours}/fd/{fd}") for fd in (0, 1, 2)] == ["/dev/null"] * 3
        assert link(f"/proc/{ours}/cwd") == "/"
    assert guard_of(pid) != os.getpid()
    assert procs.look(guard_of(pid)).ppid != os.getpid()  # type: ignore[union-attr]

    again = os.open(node.folder / "lease", os.O_RDWR)
    with pytest.raises(BlockingIOError):
        fcntl.flock(again, fcntl.LOCK_EX | fcntl.LOCK_NB)
    node.stop(kill=True)
    node.final()
    node.alone()
    fcntl.flock(again, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(again)


def test_a_bug_in_the_supervisor_is_logged_and_ends_the_task(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> bool:
        raise ZeroDivisionError("by design")

    monkeypatch.setattr(supervisor.Supervisor, "_turn", broken)
    node.start("sleep", "600")
    found = node.final()
    assert found["state"] == state.LOST
    assert "crash.txt" in found["message"]
    assert "ZeroDivisionError: by design" in Path(node.task().crash).read_text()


# --- The state folder must be private and on a local disk, or it is refused with a fix ---


def refused(path: Path) -> NodeError:
    with pytest.raises(NodeError) as caught:
        paths.open_root(str(path))
    assert caught.value.kind == "state"
    assert caught.value.hint
    return caught.value


def test_the_default_folder_is_in_var_tmp_and_a_planted_link_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nobodys = 10**9 + os.getpid()  # tests of another clone may plant theirs at the same time
    monkeypatch.setattr(os, "getuid", lambda: nobodys)
    planted = Path(f"/var/tmp/orchestrate-{nobodys}")
    planted.symlink_to(tmp_path)
    try:
        with pytest.raises(NodeError) as caught:
            paths.open_root()
    finally:
        planted.unlink()
    assert "is not a folder" in caught.value.what


def test_another_users_folder_is_refused(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("giving a folder away needs root")
    root = tmp_path / "state"
    root.mkdir(mode=0o700)
    os.chown(root, 65534, 65534)
    assert "belongs to uid 65534" in refused(root).why


def test_a_remote_file_system_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert paths.filesystem("/proc/self") == "proc"
    for kind in ("nfs4", "fuse.sshfs"):
        monkeypatch.setattr(paths, "filesystem", lambda _, kind=kind: kind)
        assert f"is on {kind}" in refused(tmp_path / "state").what
    for kind in ("fuse.fuse-overlayfs", "xfs"):
        monkeypatch.setattr(paths, "filesystem", lambda _, kind=kind: kind)
        paths.open_root(str(tmp_path / "state"))
