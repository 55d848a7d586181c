"""`--notify` of a run that nobody watches."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.planning.seal import opened
from orchestrator.rehearsal.cluster import TaskPorts

ROOT = Path(__file__).parents[2]


@pytest.fixture
def port() -> Iterator[int]:
    """Of this test's task; the usual one may be that of another run on this machine."""
    held = TaskPorts(1)
    yield held.first[0]
    held.close()


def write_hosts(folder: Path, port: int) -> None:
    here = f'workdir = "{folder}/work"\nstate = "{folder}/node"\naddress = "127.0.0.1"\n'
    here += f"task_port = {port}\n"
    (folder / "hosts.toml").write_text(f'[[host]]\nname = "here"\nssh = "local"\n{here}')


def test_it_is_told_when_nobody_watches(tmp_path: Path, port: int) -> None:
    write_hosts(tmp_path, port)
    (tmp_path / "tell").write_text(
        f"#!/bin/sh\ncat > {tmp_path}/.told && mv {tmp_path}/.told {tmp_path}/told\n"
    )
    (tmp_path / "tell").chmod(0o755)
    options = ["--detach", "--skip-preflight", "--no-validate", "--name", "night", "--notify", "./tell"]
    launched = subprocess.run(
        [sys.executable, "-m", "orchestrator", "launch", *options, "--", "sh", "-c", "echo done"],
        cwd=tmp_path,
        env={**os.environ, "XDG_STATE_HOME": str(tmp_path / "state"), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    deadline = time.monotonic() + 60
    while not (tmp_path / "told").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    said = json.loads((tmp_path / "told").read_text())
    assert (said["run"], said["name"], said["outcome"]) == (launched.stdout.strip(), "night", "succeeded")
    sent = [path.read_bytes() for path in tmp_path.glob("node/runs/**/*") if path.is_file()]
    [plan] = tmp_path.glob("node/runs/*/run.json")
    sent.append(opened(plan.read_text(), None).plan)
    assert b'"night"' in sent[-1]
    assert not any(b"/tell" in data for data in sent)
