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

from orchestrator.rehearsal.taskports import TaskPorts

ROOT = Path(__file__).parents[2]


@pytest.fixture
def port() -> Iterator[int]:
    """Of this test's task; the usual one may be that of another run on this machine."""
    held = TaskPorts(1)
    yield held.first[0]
    held.close()


def test_it_is_told_when_nobody_watches(tmp_path: Path, port: int) -> None:
    here = f'workdir = "{tmp_path}/work"\nstate = "{tmp_path}/node"\naddress = "127.0.0.1"\n'
    here += f"task_port = {port}\n"
    (tmp_path / "hosts.toml").write_text(f'[[host]]\nname = "here"\nssh = "local"\n{here}')
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
    assert any(b'"night"' in data for data in sent)  # the plan
    assert not any(b"/tell" in data for data in sent)
