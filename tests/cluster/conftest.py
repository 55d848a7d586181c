"""The container cluster for these tests: started once, by the script that users run, and removed."""

import os
import shutil
import subprocess
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.cluster.machines import Cluster, described
from tests.exclusive import exclusive
from tests.processes import called

ROOT = Path(__file__).parents[2]
UP_SECONDS = 60  # promised by scripts/cluster once its image exists


def missing_docker() -> str:
    """Return why no cluster can be created here, "" if one can."""
    if shutil.which("docker") is None:
        return "there is no docker"
    answer = called(["docker", "info"], timeout=30)
    if answer.returncode and not (os.geteuid() == 0 and shutil.which("dockerd")):
        return f"docker does not answer: {answer.stderr.strip()[-200:]}"
    return ""


def cluster_script(verb: str, environment: Mapping[str, str], timeout: float) -> None:
    script, environ = [str(ROOT / "scripts" / "cluster"), verb], os.environ | environment
    done = called(script, env=environ, timeout=timeout, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, f"scripts/cluster {verb} ended with {done.returncode}:\n{done.stderr}"


def skip_without_docker() -> None:
    if why := missing_docker():
        if os.environ.get("CI"):
            pytest.fail(f"the container cluster is part of CI: {why}")
        pytest.skip(why)


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    skip_without_docker()
    folder = tmp_path_factory.mktemp("cluster")
    # One name per clone and worker, so that the next run finds and removes leftovers of a killed one.
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    project = "-".join(filter(None, ("orchestrate-test", f"{zlib.crc32(bytes(ROOT)):08x}", worker)))
    environment = {"ORCHESTRATE_CLUSTER": project, "ORCHESTRATE_CLUSTER_DIR": str(folder)}
    with exclusive(project):
        cluster_script("image", environment, 500)
        cluster_script("down", environment, 60)
        try:
            with exclusive("clusters"):  # two at once would choose the same free network
                cluster_script("up", environment, UP_SECONDS)
            yield described(folder, project)
        finally:
            cluster_script("down", environment, 60)
