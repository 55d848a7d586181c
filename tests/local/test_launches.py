"""Launches on hosts that are this machine, without preflight and validation."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orchestrator.rehearsal.cluster import TaskPorts

ROOT = Path(__file__).parents[2]


def entry(folder: Path, name: str, port: int) -> str:
    here = f'workdir = "{folder}/work"\nstate = "{folder}/{name}"\naddress = "127.0.0.1"\n'
    return f'[[host]]\nname = "{name}"\nssh = "local"\n{here}task_port = {port}\n'


@pytest.fixture
def ports() -> Iterator[list[int]]:
    """Task ports that nobody else on this machine takes."""
    held = TaskPorts(2)
    yield held.first
    held.close()


@pytest.fixture
def launch(tmp_path: Path, ports: list[int]) -> Callable[..., subprocess.CompletedProcess[str]]:
    """A launch, of one task where the test makes no other inventory."""
    (tmp_path / "hosts.toml").write_text(entry(tmp_path, "here", ports[0]))

    def run(*words: str, verb: str = "launch") -> subprocess.CompletedProcess[str]:
        options = ["--skip-preflight", "--no-validate"] if verb == "launch" else []
        return subprocess.run(
            [sys.executable, "-m", "orchestrator", verb, *options, *words],
            cwd=tmp_path,
            env={**os.environ, "XDG_STATE_HOME": str(tmp_path / "state"), "PYTHONPATH": f"{tmp_path}:{ROOT}"},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return run


def test_what_was_not_started_is_not_said_to_be_started(
    tmp_path: Path, launch: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    (tmp_path / "tool").write_text("#!/no/such/interpreter\n")
    (tmp_path / "tool").chmod(0o755)
    ended = launch("--", "./tool")
    assert ended.returncode == 1
    assert "worker/0 here: was not started (./tool could not be started" in ended.stderr
    assert "started, pid" not in ended.stderr


def test_what_was_started_is_said_with_its_pid(
    launch: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    ended = launch("--", "sh", "-c", "echo $$")
    assert ended.returncode == 0, ended.stderr
    assert f"worker/0 here: started, pid {ended.stdout.split()[-1]}\n" in ended.stderr


def test_a_run_that_holds_the_ports_is_named(
    tmp_path: Path, ports: list[int], launch: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    entries = [entry(tmp_path, f"n{number}", port) for number, port in enumerate(ports)]
    (tmp_path / "hosts.toml").write_text("".join(entries))
    run = launch("--detach", "--", "sleep", "1000").stdout.strip()
    try:
        refused = launch("--", "hostname")
        assert refused.returncode == 3
        assert f"n1 has task port {ports[1]} taken by run {run}\n" in refused.stderr
        told = launch(verb="preflight").stdout
        assert f"n0: port: {ports[0]} taken\n" in told
        assert f"run {run} (" in told
    finally:
        assert launch("--now", run, verb="stop").returncode in (0, 130)


def test_a_file_that_may_not_be_read_here_is_no_fault_of_a_host(
    tmp_path: Path, launch: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    """Such as the identity: status 5 of a launch, as of every other verb."""
    (tmp_path / "sitecustomize.py").write_text(
        "import orchestrator.command as command\n"
        "def deny(*_): raise PermissionError(13, 'Permission denied', 'id_ed25519')\n"
        "command.PipeLink.__init__ = deny\n"
    )
    ended = launch("--", "true")
    assert ended.returncode == 5, ended.stderr
    assert "cannot be talked to from here" in ended.stderr
    assert launch("--", "true", verb="exec").returncode == 5
