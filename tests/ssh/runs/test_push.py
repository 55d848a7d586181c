"""`orchestrate push`, and launches that need data: real SSH servers, and hosts that share data."""

import json
import random
import signal
from pathlib import Path
from typing import Any

import pytest

from orchestrator.store import RunFolder
from tests.exclusive import exclusive
from tests.ssh.runs.desk import Desk, until

MEGABYTES = 12
READ = """
import hashlib, os, pathlib
root = pathlib.Path(os.environ["ORCHESTRATE_DATA"])
for path in sorted(root.rglob("*")):
    if path.is_file():
        print("READ", path.relative_to(root), hashlib.sha256(path.read_bytes()).hexdigest())
"""


@pytest.fixture
def data(four: Desk) -> Path:
    folder = four.folder / "my data"
    (folder / "sub").mkdir(parents=True)
    (folder / "images").write_bytes(random.Random(1).randbytes(MEGABYTES << 20))
    (folder / "sub" / "labels").write_text("0 1 2\n")
    return folder


def write(desk: Desk, data: Path) -> None:
    desk.write_hosts(desk.cluster.hosts, job=f"[data]\npaths = [{json.dumps(str(data))}]")


def push(desk: Desk, *words: str, **environ: str) -> dict[str, dict[str, Any]]:
    """Push, and return the output for each host that then has the data."""
    viewer = desk.start(
        "push", "--json", "--hosts", str(desk.hosts), *words, **caches(desk), **environ
    ).ended()
    events = [json.loads(line) for line in viewer.stdout.splitlines()]
    return {event["host"]: event for event in events if event["event"] == "DataPlaced"}


def caches(desk: Desk) -> dict[str, str]:
    return {"XDG_CACHE_HOME": str(desk.folder / "cache")}


def folder_of(placed: dict[str, Any]) -> Path:
    return Path(placed["path"]) / "files" / "my data"


def same(one: Path, other: Path) -> bool:
    names = [path.relative_to(one) for path in one.rglob("*") if path.is_file()]
    return bool(names) and all((one / name).read_bytes() == (other / name).read_bytes() for name in names)


def test_data_is_sent_once_and_passed_from_host_to_host(four: Desk, data: Path) -> None:
    write(four, data)
    first = push(four)
    total = next(iter(first.values()))["total"]
    assert all(same(data, folder_of(one)) for one in first.values())
    assert sum(one["sent"] for one in first.values()) == total
    assert all(one["sent"] + one["peers"] == total for one in first.values())
    assert all(one["reused"] for one in push(four).values())

    # One host lacks it, and one has a damaged copy: the others repair both.
    lost, damaged, *_ = first
    with exclusive("clean"):
        four.start(
            "exec", "--only", lost, "--hosts", str(four.hosts), "--", "rm", "-r", first[lost]["path"]
        ).wait()
    (folder_of(first[damaged]) / "sub" / "labels").write_text("7 7 7\n")
    again = push(four)
    assert [name for name, one in again.items() if not one["reused"]] == [lost, damaged]
    assert sum(one["sent"] for one in again.values()) == 0
    assert (again[lost]["peers"], again[damaged]["peers"] < total) == (total, True)
    assert all(same(data, folder_of(one)) for one in again.values())

    # Only new contents are sent.
    (data / "sub" / "labels").write_text("3 4 5\n")
    changed = push(four)
    assert 0 < sum(one["sent"] for one in changed.values()) < total / 2
    assert all(same(data, folder_of(one)) for one in changed.values())


def test_a_launch_sends_missing_data_and_gives_tasks_its_path(four: Desk, data: Path) -> None:
    write(four, data)
    script = four.script("read.py", READ)
    viewer = four.launch("--", script, XDG_CACHE_HOME=caches(four)["XDG_CACHE_HOME"]).ended()
    assert viewer.stdout.count("READ my data/images") == viewer.stdout.count("READ my data/sub/labels") == 4
    assert len({line.partition("READ ")[2] for line in viewer.stdout.splitlines() if "READ" in line}) == 2
    phases = [event["phase"] for event in four.named("PhaseEnded")]
    assert phases.index("connect") < phases.index("data") < phases.index("stage")
    digest = four.named("DataPlaced")[0]["digest"]
    for host in four.cluster.hosts:  # `clean` finds the run's data there
        assert digest in (Path(host.workdir) / "runs" / four.run_id() / "trees").read_text()
    plan = RunFolder(four.state / "orchestrate" / "runs", four.run_folder().name).read_plan()  # type: ignore[arg-type]
    assert plan.data_digest == digest


def test_a_launch_without_its_data_changes_nothing(four: Desk, data: Path) -> None:
    write(four, data / "nowhere")
    viewer = four.launch("--", four.script("read.py", READ)).ended(2)
    assert "which does not exist" in viewer.stderr
    assert not (four.state / "orchestrate" / "runs").exists()


def test_a_path_can_be_sent_without_an_inventory_entry(four: Desk, data: Path) -> None:
    placed = push(four, str(data / "sub"), "--only", four.cluster.hosts[1].name)
    assert list(placed) == [four.cluster.hosts[1].name]
    assert (Path(placed[four.cluster.hosts[1].name]["path"]) / "files" / "sub" / "labels").is_file()


def test_push_through_a_bastion_to_hosts_that_reach_each_other(four: Desk, data: Path) -> None:
    """All but the first are behind it, and reach each other; this machine reaches none of their ports."""
    bastion, *others = four.cluster.hosts
    config = four.cluster.ssh_config
    jumps = "".join(f"Host {host.ssh}\n  ProxyJump {bastion.ssh}\n" for host in others)
    config.write_text(jumps + config.read_text())
    four.write_hosts(others, job=f"[data]\npaths = [{json.dumps(str(data))}]")
    placed = push(four)
    assert len(placed) == 3
    assert sum(one["sent"] for one in placed.values()) == next(iter(placed.values()))["total"]
    assert all(same(data, folder_of(one)) for one in placed.values())


def test_isolated_hosts_receive_data_from_the_controller(four: Desk, data: Path) -> None:
    four.write_hosts(
        four.cluster.hosts, job=f"[data]\npaths = [{json.dumps(str(data))}]", address="nobody.invalid"
    )
    placed = push(four)
    assert len(placed) == 4
    assert all(one["peers"] == 0 and same(data, folder_of(one)) for one in placed.values())


def test_a_push_after_a_killed_one_sends_only_the_rest(four: Desk, data: Path) -> None:
    write(four, data)
    viewer = four.start("push", "--limit", "3M", "--hosts", str(four.hosts), **caches(four))
    folders = [Path(host.workdir) / "data" for host in four.cluster.hosts]
    until("some pieces have come", lambda: sum(map(written, folders)) >= 3 << 20)
    viewer.signal(signal.SIGKILL)
    viewer.wait()
    placed = push(four)
    total = next(iter(placed.values()))["total"]
    assert sum(one["sent"] for one in placed.values()) < total
    assert all(same(data, folder_of(one)) for one in placed.values())


def written(folder: Path) -> int:
    """Return the bytes on disk of an unfinished transfer, whose files have holes for missing data."""
    files = [path for path in folder.glob(".incoming-*/**/*") if path.is_file()]
    return sum(path.stat().st_blocks * 512 for path in files)
