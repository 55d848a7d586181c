"""Launches on this machine without preflight and validation."""

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import pytest

from orchestrator.store.key import opened
from tests.local.here import inventory
from tests.polling import poll
from tests.processes import called
from tests.verbs import call

ROOT = Path(__file__).parents[2]
Launch: TypeAlias = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launch]:
    """Launch one task."""

    def run(*words: str, verb: str = "launch") -> subprocess.CompletedProcess[str]:
        options = ["--skip-preflight", "--no-validate"] if verb == "launch" else []
        argv = [sys.executable, "-m", "orchestrator", verb, *options, *words]
        places = {"XDG_STATE_HOME": str(tmp_path / "state"), "PYTHONPATH": f"{tmp_path}:{ROOT}"}
        return called(argv, cwd=tmp_path, env=os.environ | places, timeout=60)

    with inventory(tmp_path, "here") as hosts:
        (tmp_path / "hosts.toml").write_text(hosts)
        yield run


def test_tasks_that_never_started_are_not_reported_as_started(tmp_path: Path, launch: Launch) -> None:
    (tmp_path / "tool").write_text("#!/no/such/interpreter\n")
    (tmp_path / "tool").chmod(0o755)
    ended = launch("--", "./tool")
    assert ended.returncode == 1
    assert "worker/0 here: was not started (./tool could not be started" in ended.stderr
    assert "started, pid" not in ended.stderr


def test_an_unreadable_local_file_is_not_blamed_on_a_host(tmp_path: Path, launch: Launch) -> None:
    """Such as the identity file: a launch ends with status 5, like every other verb."""
    (tmp_path / "sitecustomize.py").write_text(
        "import orchestrator.command as command\n"
        "def deny(*_): raise PermissionError(13, 'Permission denied', 'id_ed25519')\n"
        "command.PipeLink.__init__ = deny\n"
    )
    ended = launch("--", "true")
    assert ended.returncode == 5, ended.stderr
    assert "cannot be reached from this machine" in ended.stderr
    assert launch("--", "true", verb="exec").returncode == 5


def test_an_edit_after_a_detached_launch_affects_only_the_next_launch(tmp_path: Path, launch: Launch) -> None:
    """In a loop of `sed` and `launch --detach` each run used to train with the next one's value."""
    (tmp_path / "sitecustomize.py").write_text(
        "import time, orchestrator.sync.contents as contents\n"
        "read = contents._read\n"
        "contents._read = lambda *given: time.sleep(1) or read(*given)\n"
    )
    (tmp_path / "rate").write_text("first")
    run = launch("--detach", "--", "cat", "rate").stdout.strip()
    (tmp_path / "rate").write_text("second")
    assert launch(run, verb="tail").stdout == "worker/0 here | first\n"


def test_the_notify_command_runs_without_a_viewer(tmp_path: Path, launch: Launch) -> None:
    """Hosts are not involved."""
    (tmp_path / "tell").write_text(
        f"#!/bin/sh\ncat > {tmp_path}/.told && mv {tmp_path}/.told {tmp_path}/told\n"
    )
    (tmp_path / "tell").chmod(0o755)
    options = ("--detach", "--name", "night", "--notify", "./tell")
    launched = launch(*options, "--", "sh", "-c", "echo done")
    assert poll((tmp_path / "told").exists, 60)
    said = json.loads((tmp_path / "told").read_text())
    assert (said["run"], said["name"], said["outcome"]) == (launched.stdout.strip(), "night", "succeeded")
    sent = [path.read_bytes() for path in tmp_path.glob("here/node/runs/**/*") if path.is_file()]
    [plan] = tmp_path.glob("here/node/runs/*/run.json")
    sent.append(opened(plan.read_text(), None).plan)
    assert b'"night"' in sent[-1]
    assert not any(b"/tell" in data for data in sent)


def test_the_page_of_a_launch_shows_curves_code_and_log(tmp_path: Path, launch: Launch) -> None:
    loop = "for step in range(5): print(f'step {step}, loss: {1 / (step + 1)}', flush=True); time.sleep(0.1)"
    (tmp_path / "train.py").write_text(f"import time\n{loop}\nprint('<i>done')\n")
    for words in (("init", "-q"), ("add", "train.py"), ("commit", "-qm", "begin")):
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], cwd=tmp_path, check=True)
    with (tmp_path / "train.py").open("a") as file:
        file.write("print('changed')\n")
    ended = launch("--", "python3", "train.py")
    assert ended.returncode == 0, ended.stderr
    assert launch("-o", "page.html", verb="report").returncode == 0
    page = (tmp_path / "page.html").read_text()
    for part in ("succeeded after", "<path ", "+print(&#39;changed&#39;)", "&lt;i&gt;done", "git <code>"):
        assert part in page, part


def test_pytorch_tasks_use_the_network_interface_of_their_host(tmp_path: Path, launch: Launch) -> None:
    names = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
    hosts = (tmp_path / "hosts.toml").read_text()
    for framework, own, seen in (("torch", "", "lo lo lo"), ("torch", "x", "x lo lo"), ("jax", "", "")):
        job = f'[job]\nframework = "{framework}"\n' + f'env = {{ {names[0]} = "{own}" }}\n' * bool(own)
        (tmp_path / "hosts.toml").write_text(f"{job}{hosts}")
        ended = launch("--", "sh", "-c", f"echo seen: {' '.join('$' + name for name in names)}")
        assert ended.returncode == 0, ended.stderr
        assert f"seen: {seen}\n" in ended.stdout.replace("seen:\n", "seen: \n")


# --- A refused launch is not the newest run ---


def test_a_refused_launch_is_not_the_newest_run(tmp_path: Path) -> None:
    with inventory(tmp_path, "gpu-01") as hosts:
        (tmp_path / "hosts.toml").write_text(hosts)
        launch = ("launch", "--no-validate", "--name")
        command = ("--", "sh", "-c", "echo trained")
        done = call((*launch, "trained", "--skip-preflight", *command), tmp_path, tmp_path / "state")
        assert done.status == 0, done.err
        port = int(re.findall(r"task_port = (\d+)", hosts)[0])
        with socket.create_server(("", port)):
            refused = call((*launch, "refused", *command), tmp_path, tmp_path / "state")
        assert refused.status == 3, refused.err
        listing = call(("tail",), tmp_path, tmp_path / "elsewhere")
        assert listing.status == 0, listing.err
        assert "trained" in listing.out
