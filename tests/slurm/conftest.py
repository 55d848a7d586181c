"""Slurm for these tests: started once, by the script that users run, and removed."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.exclusive import exclusive
from tests.processes import called
from tests.slurm.cluster import ROOT, Slurm


def missing() -> str:
    """Return why Slurm cannot run here, "" if it can."""
    if os.geteuid() != 0:
        return "slurmd and namespaces need root"
    path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    programs = ("slurmctld", "slurmd", "munged", "srun", "ip", "unshare")
    lacks = [name for name in programs if not shutil.which(name, path=path)]
    return f"there is no {', '.join(lacks)}: scripts/slurm install" if lacks else ""


@pytest.fixture(scope="session")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Start four idle nodes; return the path of their slurm.conf."""
    if why := missing():
        if os.environ.get("CI"):
            pytest.fail(f"Slurm is part of CI: {why}")
        pytest.skip(why)
    folder = tmp_path_factory.mktemp("slurm") / "cluster"
    environment = {**os.environ, "ORCHESTRATE_SLURM_DIR": str(folder)}
    script = [str(ROOT / "scripts" / "slurm")]
    try:
        with exclusive("slurm"):  # two at once would choose the same free network
            done = called([*script, "up"], env=environment, timeout=90)
        assert done.returncode == 0, done.stderr
        yield folder / "slurm.conf"
    finally:
        subprocess.run([*script, "down"], check=True, env=environment, capture_output=True, timeout=60)


@pytest.fixture
def slurm(nodes: Path, tmp_path: Path) -> Iterator[Slurm]:
    made = Slurm(nodes, tmp_path)
    try:
        yield made
    finally:
        made.close()
