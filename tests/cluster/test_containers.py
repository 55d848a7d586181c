"""Runs in containers of real engines on hosts behind real SSH servers: start, end, and images."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from orchestrator.errors import ExitStatus
from orchestrator.rehearsal import Cluster
from tests.cluster.conftest import ROOT, skip_without_docker
from tests.exclusive import exclusive
from tests.ssh.runs.desk import HOSTILE, Desk, until

WAITING = (
    "import os, sys, time\n"
    "print('inside', open('/proc/1/cmdline').read().split(chr(0))[0], os.getuid(), flush=True)\n"
    "while not os.path.exists(sys.argv[1]):\n    time.sleep(0.02)\n"
)


@pytest.fixture(scope="module")
def image() -> str:
    """An image with python3 and no part of orchestrate."""
    skip_without_docker()
    with exclusive("container-image"):
        script = ROOT / "scripts" / "cluster"
        done = subprocess.run([script, "image", "bare"], check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture(scope="module", autouse=True)
def limits(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Settings of podman, whose default file limit exceeds that of a root without all capabilities."""
    file = tmp_path_factory.mktemp("podman") / "containers.conf"
    file.write_text('[containers]\ndefault_ulimits = ["nofile=1024:1024", "nproc=4096:4096"]\n')
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CONTAINERS_CONF", str(file))
        yield file


@pytest.fixture(params=["docker", "podman"])
def engine(request: pytest.FixtureRequest, image: str) -> str:
    """An engine that has the image."""
    name = str(request.param)
    if name == "podman":
        if shutil.which("podman") is None:
            pytest.skip("there is no podman")
        with exclusive("container-image"):
            if ask("podman", "image", "exists", image).returncode:
                subprocess.run(f"docker save {image} | podman load", shell=True, check=True)
        tried = ask("podman", "run", "--rm", image, "true")
        if tried.returncode:
            pytest.skip(f"podman runs no container here: {tried.stderr.strip()[-200:]}")
    return name


@pytest.fixture
def desk(tmp_path: Path, engine: str, image: str, limits: Path) -> Iterator[Desk]:
    options = {"SetEnv": f"CONTAINERS_CONF={limits}"}
    with Cluster(2, options=options) as cluster, closing(Desk(cluster, tmp_path / HOSTILE)) as made:
        job = '[job]\nframework = "none"'
        made.write_hosts(cluster.hosts, job, python="python3", container=image, container_engine=engine)
        yield made


def ask(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, check=False, capture_output=True, text=True)


def containers(engine: str, run: str) -> list[str]:
    """Return the names of a run's containers in any state."""
    form = ("--format", "{{.Names}}", "--filter", f"label=orchestrate.run={run}")
    return sorted(ask(engine, "ps", "--all", *form).stdout.split())


def test_a_run_executes_in_containers_and_leaves_none_behind(desk: Desk, engine: str) -> None:
    end = desk.folder / "work-1"
    desk.script("t.py", WAITING.replace("sys.argv[1]", "'enough'"))
    viewer, run = desk.begin("--", "t.py", fast=False)
    viewer.shows("2 tasks on 2 hosts")
    names = [f"orchestrate-{run}-{host.name}" for host in desk.cluster.hosts]
    until("both are inside", lambda: viewer.stdout.count(f"inside python3 {os.getuid()}") == 2)
    assert containers(engine, run) == names
    stacks = desk.start("stacks", run).ended()
    assert "t.py:4" in stacks.stdout
    for host in desk.cluster.hosts:
        (Path(host.workdir) / "runs" / run / "work" / "enough").touch()
    assert viewer.wait() == ExitStatus.OK, viewer.stderr
    assert containers(engine, run) == []
    desk.start("pull", run, "enough", "--to", str(end)).ended()
    assert (end / "enough").exists()


def test_a_killed_container_is_the_root_cause_and_the_next_attempt_gets_a_new_one(
    desk: Desk, engine: str
) -> None:
    desk.script("t.py", WAITING.replace("sys.argv[1]", "'enough'"))
    viewer = desk.launch("--max-restarts", "1", "--", "t.py")
    until("both are inside", lambda: viewer.stdout.count("inside python3") == 2)
    run, host = desk.run_id(), desk.cluster.hosts[1]
    ask(engine, "kill", f"orchestrate-{run}-{host.name}")
    until("they are inside again", lambda: viewer.stdout.count("inside python3") == 4)
    (failed,) = desk.named("AttemptFailed", run)
    assert failed["cause"].startswith(f"{host.name}: its container ended (killed, out of memory, or")
    assert failed["kind"] == "rebooted"
    assert "journalctl" in failed["hint"]
    desk.start("stop", run).ended()
    assert viewer.wait() == ExitStatus.INTERRUPTED
    assert containers(engine, run) == []


def test_no_container_outlives_a_killed_keeper(desk: Desk, engine: str) -> None:
    desk.script("t.py", WAITING.replace("sys.argv[1]", "'enough'"))
    run = desk.detached("--", "t.py")
    until("both are inside", lambda: len(desk.named("TaskStarted", run)) == 2)
    desk.lose_keeper(run)
    assert len(containers(engine, run)) == 2
    for host in desk.cluster.hosts:
        (Path(host.workdir) / "runs" / run / "work" / "enough").touch()
    until("the containers are gone", lambda: not containers(engine, run))
    tail = desk.start("tail", run).ended()
    assert tail.stdout.count("inside python3") == 2
    assert containers(engine, run) == []


def test_exec_runs_inside_or_outside_and_a_missing_image_is_reported(desk: Desk, engine: str) -> None:
    hosts = ("--hosts", str(desk.hosts))
    first = ("--", "python3", "-c", "print(open('/proc/1/cmdline').read()[:7])")
    inside = desk.start("exec", *hosts, *first).ended()
    assert "python3" in inside.stdout
    outside = desk.start("exec", "--outside", *hosts, *first).ended()
    assert "python3" not in outside.stdout
    desk.write_hosts(desk.cluster.hosts, container="orchestrate-none:1", container_engine=engine)
    preflight = desk.start("preflight", *hosts).ended(ExitStatus.CLUSTER)
    names = "rehearsal-[01-02]"
    assert f"error: {names} have no image orchestrate-none:1" in preflight.stderr
    assert f"`{engine} pull orchestrate-none:1`" in preflight.stderr


def test_setup_copies_a_locally_built_image(desk: Desk, engine: str, image: str) -> None:
    """One host uses podman, the other docker; the image was built on this machine."""
    if shutil.which("podman") is None:
        pytest.skip("there is no podman")
    name, other = f"orchestrate-{engine}-{os.getpid()}:1", "podman" if engine == "docker" else "docker"
    ask(engine, "tag", image, name)
    try:
        desk.write_hosts(desk.cluster.hosts, container=name)
        head, first, second = desk.hosts.read_text().split("[[host]]")
        engines = [f"container_engine = '{one}'\n" for one in (engine, other)]
        desk.hosts.write_text(f"{head}[[host]]{first}{engines[0]}[[host]]{second}{engines[1]}")
        setup = desk.start("setup", "--hosts", str(desk.hosts)).ended()
        assert f"rehearsal-02: copied {name} from this machine" in setup.stderr
        assert ask(other, "image", "inspect", name).returncode == 0
    finally:
        for one in (engine, other):
            ask(one, "rmi", name)
