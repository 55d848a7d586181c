"""Unusable hosts, from the command line: one block for all with the same failure, and status 3."""

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TypeAlias

import pytest
from msgspec.structs import replace

from orchestrator.errors import ExitStatus
from orchestrator.rehearsal import Cluster
from tests.folders import mounted
from tests.ssh.runs.desk import HOSTILE, Desk

JOB = '[job]\ncommand = ["true"]\n'

Spoil: TypeAlias = Callable[[Desk, ExitStack], object]


def change(path: Path, stack: ExitStack, edit: Callable[[str], str]) -> None:
    """Change the inventory until the end of the test."""
    before = path.read_text()
    stack.callback(path.write_text, before)
    path.write_text(edit(before))


def unknown_key(desk: Desk, stack: ExitStack) -> None:
    change(desk.cluster.known_hosts, stack, lambda _: "")


def every(desk: Desk, **changes: str) -> None:
    """Write all hosts with these fields, and a job that needs no TensorFlow."""
    desk.write_hosts([replace(host, **changes) for host in desk.cluster.hosts], job=JOB)


def wrong_user(desk: Desk, _: ExitStack) -> None:
    every(desk, user="nobody-of-that-name")


def no_python(desk: Desk, _: ExitStack) -> None:
    every(desk, agent_python="/no/such/python")


def says(text: str, status: int) -> Spoil:
    """Return an agent_python that prints what another Python would; no such old one is available here."""

    def spoil(desk: Desk, _: ExitStack) -> None:
        python = desk.program("python that refuses", f"#!/bin/sh\necho '{text}' >&2\nexit {status}\n")
        every(desk, agent_python=str(python))

    return spoil


def state_of_somebody_else(desk: Desk, _: ExitStack) -> None:
    open_to_all = desk.folder / "open"
    open_to_all.mkdir(mode=0o777)
    open_to_all.chmod(0o777)
    every(desk, state=str(open_to_all))


REFUSED: Mapping[str, tuple[Spoil, list[str]]] = {
    "unknown host key": (unknown_key, ["presented an unknown host key", "accept-new"]),
    "wrong user": (wrong_user, ["rehearsal-[01-02] refused the login", 'for user "nobody-of-that-name"']),
    "no python": (no_python, ["rehearsal-[01-02] have no /no/such/python", "agent_python"]),
    "old python": (
        says("orchestrate: the agent needs Python 3.8 or newer; /usr/bin/python3 is 3.6.8", 1),
        ["of 3.8 or newer", "agent_python"],
    ),
    "open state folder": (state_of_somebody_else, ["is open to other users", "the host advises: chmod 700"]),
}


@pytest.fixture
def desk(cluster: Cluster, tmp_path: Path) -> Iterator[Desk]:
    yield from desks(cluster, tmp_path)


def desks(cluster: Cluster, tmp_path: Path) -> Iterator[Desk]:
    with closing(Desk(cluster, tmp_path / HOSTILE)) as made:
        made.write_hosts(cluster.hosts, job=JOB)
        yield made


def are_refused(desk: Desk, *says: str) -> None:
    """Check that both verbs print one block and return status 3; a launch also reports it in its events."""
    preflight = desk.start("preflight", "--hosts", str(desk.hosts))
    launch = desk.launch()
    for viewer in (preflight, launch):
        assert viewer.wait() == ExitStatus.CLUSTER, viewer.stderr
        output = viewer.stdout + viewer.stderr
        for text in says:
            assert text in output, output
        assert output.count("error:") == 1, output
        assert "try:" in output
        assert "Traceback" not in output
        assert " bug" not in output
    (ended,) = desk.named("RunEnded")
    assert ended["outcome"] == "cluster"
    desk.is_traceback_free(desk.run_id())


@pytest.mark.parametrize(("spoil", "says"), REFUSED.values(), ids=REFUSED)
def test_unusable_hosts_are_refused(desk: Desk, spoil: Spoil, says: list[str]) -> None:
    with ExitStack() as stack:
        spoil(desk, stack)
        are_refused(desk, *says)
        desk.hosts_are_quiet(desk.run_id())


# --- logins ---


@contextmanager
def cluster_with(tmp_path: Path, **options: str) -> Iterator[Desk]:
    with Cluster(2, options=options) as cluster:
        yield from desks(cluster, tmp_path)


FORCED = {
    "a command of its own": ("echo this account may not log in; exit 1", "this account may not log in"),
    "for ever": ("sleep 600", "no reply from the agent within 2 s"),
}


@pytest.mark.parametrize(("command", "says"), FORCED.values(), ids=FORCED)
def test_logins_that_do_not_run_our_agent_are_refused(tmp_path: Path, command: str, says: str) -> None:
    with cluster_with(tmp_path, ForceCommand=command) as desk:
        if command == "sleep 600":
            desk.timings = {"hello": 2.0}
        are_refused(desk, "rehearsal-[01-02] did not start orchestrate's agent after the login", says)


def test_a_host_without_rsync_still_receives_the_code(tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("sh", "bash", "cat", "env"):
        (programs / name).symlink_to(str(shutil.which(name)))
    with cluster_with(tmp_path, SetEnv=f"HOME={tmp_path} PATH={programs}") as desk:
        desk.script("data", "x" * 3_000_000)  # more than is streamed anyway
        for word in ("first", "second"):  # the second time, a previous tree exists
            viewer = desk.launch("--", "cat", desk.script("said", word)).ended()
            assert viewer.stdout.count(word) == 2


# --- disks ---


def test_two_entries_for_one_machine_need_two_state_folders(desk: Desk) -> None:
    one = str(desk.folder / "one state")
    every(desk, state=one)
    launch = desk.launch("--", "true").ended(ExitStatus.CLUSTER)
    first, second = (host.name for host in desk.cluster.hosts)
    assert f"{second} shares the state folder of {first}" in launch.stderr
    preflight = desk.start("preflight", "--hosts", str(desk.hosts)).ended(ExitStatus.CLUSTER)
    assert f'write state = "/var/tmp/orchestrate-{second}"' in " ".join(preflight.stdout.split())
    head, last = desk.hosts.read_text().rsplit(f'state = "{one}"', 1)
    desk.hosts.write_text(f'{head}state = "{desk.folder / "another"}"{last}')
    desk.launch("--", "true").ended()


@pytest.mark.parametrize(
    ("trouble", "launch_says", "preflight_says"),
    [
        ("read-only", "Read-only file system", "cannot be written"),
        ("full", "lacks disk space: it needs 0.1 MB", "disk"),
    ],
)
def test_an_unwritable_workdir_is_refused(
    desk: Desk, trouble: str, launch_says: str, preflight_says: str
) -> None:
    options = {"read-only": "ro", "full": "size=64k,nr_inodes=100"}[trouble]
    with mounted(desk.folder / "disk", options) as disk:
        every(desk, workdir=str(disk / "work"))
        desk.script("data", "x" * 100_000)
        launch = desk.launch("--", "true").ended(ExitStatus.CLUSTER)
        assert launch_says in launch.stderr
        assert launch.stderr.count("error:") == 1, launch.stderr
        desk.is_traceback_free(desk.run_id())
        preflight = desk.start("preflight", "--hosts", str(desk.hosts)).ended(ExitStatus.CLUSTER)
        assert preflight_says in preflight.stdout, preflight.stdout
