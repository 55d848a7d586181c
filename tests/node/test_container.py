"""Entering a container, with fake container engines."""

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from orchestrator.command import PipeLink
from orchestrator.errors import HostError
from orchestrator.fleet import containers
from orchestrator.fleet.containers import ContainerLink, Entered, Inside
from orchestrator.model import LOCAL, Engine, Host
from orchestrator.transport import Channel
from orchestrator.verbs.images import _Place
from tests.golden import matches_golden
from tests.polling import poll

# Commands "inside" run here. A file holds the image's id, or the reason that there is no image.
ENGINE = """#!/bin/sh
echo "$0 $*" >> "$STAND_IN/calls"
case "$1 $2" in
"--version "*) echo "${0##*/} version 1" ;;
"info --format") echo "[name=seccomp,profile=default]" ;;
"image inspect") cat "$STAND_IN/image" 2>/dev/null || { cat "$STAND_IN/no-image" >&2; exit 1; } ;;
"container inspect") cat "$STAND_IN/running" ;;
"run --detach")
    if [ -e "$STAND_IN/wrong" ]; then cat "$STAND_IN/wrong" >&2; exit 125; fi
    echo running > "$STAND_IN/running" ;;
"exec --interactive") shift 3; exec "$@" ;;
"instance list") cat "$STAND_IN/running" 2>/dev/null; true ;;
"instance start") for last; do :; done; echo "$last" > "$STAND_IN/running" ;;
"instance stop") rm "$STAND_IN/running" ;;
"exec --cleanenv") shift 5; exec "$@" ;;
"exec instance://"*) while [ ! -e "$STAND_IN/nothing-alive" ]; do sleep 0.05; done ;;
"rm --force") rm -f "$STAND_IN/running" ;;
esac
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "image").write_text("sha256:0123 amd64 []\n")
    return tmp_path


@pytest.fixture
def host(folder: Path) -> Host:
    host = Host("gpu-1", LOCAL, "127.0.0.1", container="train:1", agent_python=sys.executable)
    return replace(host, workdir=str(folder / "work"), state=str(folder / "state"))


@pytest.fixture
def link(folder: Path) -> Iterator[PipeLink]:
    (folder / "bin").mkdir()
    for name in ("sh", "bash", "cat", "echo", "rm", "sleep", "true", "python3"):
        (folder / "bin" / name).symlink_to(shutil.which(name) or "")
    path = f"{folder}:{folder}/bin"  # no engine from this machine
    opened = PipeLink("gpu-1", environ={**os.environ, "PATH": path, "STAND_IN": str(folder)})
    yield opened
    opened.close()


def install(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).write_text(ENGINE)
        (folder / name).chmod(0o755)


def text_of(channel: Channel) -> bytes:
    return b"".join(iter(lambda: channel.recv(65536), b""))


def calls(folder: Path, name: str) -> list[str]:
    lines = (folder / "calls").read_text().splitlines()
    return [line.partition(" ")[2] for line in lines if line.partition(" ")[0] == str(folder / name)]


@pytest.mark.parametrize("engine", ["podman", "docker", "apptainer"])
def test_a_container_is_started_once_and_entered_each_time(
    folder: Path, link: PipeLink, host: Host, engine: str
) -> None:
    install(folder, engine)
    if engine == "apptainer":
        (folder / "work" / "images").mkdir(parents=True)
        (folder / "work" / "images" / "train_1.sif").touch()
    inside = ContainerLink(link, replace(host, container_args=("-v", "/data:/data")), Inside("run-1"))
    for _ in range(2):
        channel = inside.open(["sh", "-c", "echo inside; cat"])
        channel.send(b"a word")
        channel.send_eof()
        assert text_of(channel) == b"inside\na word"
        assert channel.wait(10) == 0
    verb = "instance start" if engine == "apptainer" else "run --detach"
    (start,) = [line for line in calls(folder, engine) if line.startswith(verb)]
    assert "orchestrate-run-1-gpu-1" in start
    assert "-v /data:/data" in start
    assert f"{folder}/state" in start
    if engine == "apptainer":
        (folder / "nothing-alive").touch()
        assert poll(lambda: not (folder / "running").exists(), 10)
    else:
        assert "--network host" in start
        assert "--shm-size" in start
        assert ("--user " in start) == (engine == "docker")
        assert ("--userns=keep-id" in start) == (engine == "podman" and os.getuid() != 0)
        inside.leave()
        assert not (folder / "running").exists()


def test_without_a_start_only_a_running_one_is_entered(folder: Path, link: PipeLink, host: Host) -> None:
    install(folder, "podman", "docker")
    channel = ContainerLink(link, host, Inside("run-1", start=False)).open(["echo", "outside"])
    assert text_of(channel) == b"outside\n"
    (folder / "running").write_text("running\n")
    channel = ContainerLink(link, host, Inside("run-1", start=False)).open(["echo", "inside"])
    assert text_of(channel) == b"inside\n"
    assert calls(folder, "podman")[-1].startswith("exec --interactive orchestrate-run-1-gpu-1 echo inside")


def test_the_engine_that_has_the_image_is_used(folder: Path, link: PipeLink, host: Host) -> None:
    install(folder, "podman", "docker")
    (folder / "podman").write_text(ENGINE.replace("$STAND_IN/image", "$STAND_IN/none"))
    assert containers.step(link, host, "look")[1].engine == "docker"
    (folder / "image").rename(folder / "no-image")
    (folder / "no-image").write_text("Error: No such image: train:1")
    assert containers.step(link, host, "look")[1].engine == "podman"
    assert containers.step(link, replace(host, container_engine=Engine.DOCKER), "look")[1].engine == "docker"


# Messages of engines, from docker 20.10 and 28.2, podman 4.3, and their documentation.
DENIED = (
    "permission denied while trying to connect to the Docker daemon socket at unix:///var/run/docker.sock: "
    'Get "http://%2Fvar%2Frun%2Fdocker.sock/v1.50/images/x/json": dial unix /var/run/docker.sock: '
    "connect: permission denied"
)
GPUS = 'docker: Error response from daemon: could not select device driver "" with capabilities: [[gpu]]'
PYTHON = 'OCI runtime create failed: exec: "python3": executable file not found in $PATH: unknown'
USAGE = "unknown flag: --bogus\n\nUsage:  docker run [OPTIONS] IMAGE\n\nRun 'docker run --help' for more"
# (engine, file that triggers it, message)
REFUSALS = [
    ("docker", "no-image", DENIED),
    ("docker", "no-image", "Cannot connect to the Docker daemon at unix:///x. Is the docker daemon running?"),
    ("docker", "no-image", "Error: No such image: train:1"),
    ("podman", "no-image", "Error: train:1: image not known"),
    ("docker", "wrong", GPUS),
    ("podman", "wrong", "Error: setting up CDI devices: unresolvable CDI devices nvidia.com/gpu=all"),
    ("docker", "wrong", PYTHON),
    ("podman", "wrong", "Error: cannot set up namespace using newuidmap: exit status 1"),
    ("podman", "wrong", "exec /usr/bin/python3: exec format error"),
    ("docker", "wrong", USAGE),
]


def test_a_refusal_suggests_a_fix(folder: Path, link: PipeLink, host: Host) -> None:
    text = ""
    install(folder, "docker", "podman")
    (folder / "image").rename(folder / "there")
    for engine, file, words in REFUSALS:
        (folder / "image").write_bytes((folder / "there").read_bytes() if file == "wrong" else b"")
        if file == "no-image":
            (folder / "image").unlink()
        (folder / file).write_text(words)
        with pytest.raises(HostError) as raised:
            ContainerLink(link, replace(host, container_engine=Engine(engine)), Inside("run-1")).open(
                ["true"]
            )
        (folder / file).unlink()
        error = raised.value
        assert "--help" not in error.why
        text += f"{words.splitlines()[0]}\n  {error.what}\n  why: {error.why}\n  try: {error.hint}\n"
    matches_golden("node/containers.txt", text)


def test_a_missing_engine_or_folder_is_reported(folder: Path, link: PipeLink, host: Host) -> None:
    with pytest.raises(HostError, match="has no apptainer") as raised:
        containers.step(link, replace(host, container_engine=Engine.APPTAINER), "look")
    assert "apt install" in raised.value.hint
    install(folder, "podman")
    (folder / "work").write_text("a file")
    with pytest.raises(HostError, match="reports: cannot write") as raised:
        ContainerLink(link, host, Inside("run-1")).open(["true"])
    assert "set `workdir`" in raised.value.hint


def test_an_image_is_copied_between_engines_of_one_kind(link: PipeLink, host: Host) -> None:
    engines = ("podman", "docker", "apptainer", "singularity")
    podman, docker, apptainer, singularity = (
        _Place(host, link, Entered(engine=engine, image="1 any")) for engine in engines
    )
    assert podman.gives(docker)
    assert apptainer.gives(singularity)
    assert not docker.gives(singularity)


def test_entering_is_retried_when_the_container_has_just_ended(link: PipeLink, host: Host) -> None:
    inside = ContainerLink(link, host, Inside("run-1"))
    for words in (
        b"Error response from daemon: Container 30 is not running",
        b"Error: No such container: orchestrate-run-1-gpu-1",
        b"Error: can only create exec sessions on running containers: container state improper",
    ):
        error = inside.explain(1, words)
        assert error is not None
        assert error.kind == "hung-up"
    error = inside.explain(1, b"orchestrate: the agent needs Python 3.8 or newer; /usr/bin/python3 is 3.6.8")
    assert error is not None
    assert "train:1" in error.what
    assert inside.explain(1, b"bash: something") is None
