"""The scripts that new contributors run first."""

import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import called

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "scripts"

THERE = ("bash", "cat", "cut", "dirname", "env", "git", "python3", "sed", "ssh")  # no ping, no rsync


def run(name: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return called([SCRIPTS / name], env=os.environ | environment, stdin=subprocess.DEVNULL, timeout=60)


@pytest.mark.parametrize("script", ["setup", "test", "quickstart", "check"])
def test_without_root_the_install_command_is_printed(script: str, tmp_path: Path) -> None:
    for name in THERE:
        (tmp_path / name).symlink_to(shutil.which(name) or f"no {name} here")
    for name, text in (("id", "echo 1000"), ("apt-get", "exit 100")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    done = run(script, PATH=str(tmp_path))
    assert done.returncode == 3
    assert done.stdout == "sudo apt-get update && sudo apt-get install -y rsync iputils-ping\n"


@pytest.mark.skipif(Path(sys.prefix) != ROOT / ".venv", reason="scripts/setup did not make this environment")
def test_a_finished_setup_is_fast_and_quiet() -> None:
    before = _computed()
    done = run("setup")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert _computed() - before < 5  # 0.2 s


def _computed() -> float:
    """Return the CPU seconds used by our child processes."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_a_python_downloaded_by_uv_is_used_where_no_other_fits(tmp_path: Path) -> None:
    python = tmp_path / "pythons" / "cpython-3.13-linux-x86_64-gnu" / "bin" / "python3"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\n")  # satisfies every limit, and is the only Python that satisfies this one
    python.chmod(0o755)
    source = ["bash", "-c", ". scripts/lib.sh; base_python 3.11"]
    environ = os.environ | {"ORCHESTRATE_ENVS": str(tmp_path)}
    assert subprocess.check_output(source, cwd=ROOT, env=environ, text=True).strip() == str(python)
