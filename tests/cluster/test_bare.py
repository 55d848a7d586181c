"""From machines with only sshd and Python, in a closed network, to a run in an environment with data."""

import os
import re
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orchestrator.envs import uv
from tests.cluster.bare import Bare, bare_machines, docker
from tests.cluster.conftest import ROOT, skip_without_docker
from tests.exclusive import exclusive
from tests.wheels import wheel

Type = Callable[..., str]

NAMES = ("node1", "node2", "node3")
LARGE = 12_000_000  # bytes of a wheel, and of the data: enough to be passed on in pieces
SCRIPT = ("sh", "-c", "python use.py")  # a Python script would require TensorFlow
SMALL_DISK = ("--tmpfs", "/small:size=90m,mode=1777")
# Imported before an environment is accepted: on node2 the first import never ends.
HANGS = """
import os, signal, socket
if socket.gethostname() == "node2" and not os.path.exists("/tmp/half-way"):
    open("/tmp/half-way", "w").close()
    signal.pause()
"""
USE = """
import hashlib, os, pathlib, small, sys
data = pathlib.Path(os.environ["ORCHESTRATE_DATA"], "numbers").read_bytes()
print("answer", small.answer, hashlib.sha256(data).hexdigest()[:16], sys.prefix)
"""


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bare]:
    skip_without_docker()
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    project = "-".join(filter(None, ("orchestrate-bare", f"{zlib.crc32(bytes(ROOT)):08x}", worker)))
    script = [str(ROOT / "scripts" / "cluster"), "image", "bare"]
    image = subprocess.run(script, check=True, stdout=subprocess.PIPE, text=True, timeout=500).stdout.strip()
    with (
        exclusive(project),
        bare_machines(project, image, tmp_path_factory.mktemp("bare"), NAMES, SMALL_DISK) as made,
    ):
        yield made


@pytest.fixture(scope="module")
def project(machines: Bare) -> Path:
    """A user's folder with a script, data, and a package index that only this machine can reach."""
    folder = machines.folder / "project"
    folder.mkdir()
    (folder / "use.py").write_text(USE)
    (machines.folder / "numbers").write_bytes(os.urandom(LARGE))
    (machines.folder / "wheels").mkdir()
    source = f"answer = 42\npadding = '{os.urandom(LARGE // 2).hex()}'\n"
    wheel(machines.folder / "wheels", "small", "1.0", source)
    return folder


@pytest.fixture(scope="module")
def orchestrate(machines: Bare, project: Path) -> Type:
    """Run the command, which must succeed, and return its output."""
    url = (machines.folder / "wheels").as_uri()
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "UV_"))}
    environment = {
        **kept,
        **{f"XDG_{kind}_HOME": str(machines.folder / kind) for kind in ("STATE", "CACHE", "CONFIG")},
        "UV_DEFAULT_INDEX": url,
        "PIP_INDEX_URL": url,
    }
    program = [sys.executable, "-c", "from orchestrator.cli.main import run; run()"]

    def run(*arguments: str, status: int = 0, meanwhile: Callable[[], None] = lambda: None) -> str:
        with subprocess.Popen(
            [*program, *arguments],
            text=True,
            cwd=project,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        ) as process:
            try:
                meanwhile()
                output, _ = process.communicate(timeout=200)
            finally:
                process.kill()
        assert process.returncode == status, output
        return output

    return run


def test_three_commands_are_enough_to_train(machines: Bare, project: Path, orchestrate: Type) -> None:
    output = orchestrate("init", *NAMES, "--ssh-config", str(machines.ssh_config), "--yes")
    assert "next: orchestrate setup" in output
    hosts = project / "hosts.toml"
    text = hosts.read_text()
    assert all(f'address = "{machines.address(name)}"' in text for name in NAMES)
    packages = '[env]\npackages = ["small"]\n\n[data]\npaths = ["../numbers"]\n'
    hosts.write_text(text.replace("[env]\n", packages, 1))

    before = machines.sent_by_us()
    output = orchestrate("setup")
    assert "3 hosts ready with the environment" in output
    assert machines.sent_by_us() - before < 1.5 * (LARGE + _size_of_uv()), "each piece leaves once"

    before = machines.sent_by_us()
    output = orchestrate("launch", "--no-validate", "--", *SCRIPT)
    answers = re.findall(r"answer 42 (\w+) \S+/envs/(\w+)$", output, re.MULTILINE)
    assert len(answers) == len(NAMES), output
    assert len(set(answers)) == 1
    assert machines.sent_by_us() - before < 1.5 * LARGE, "the others got theirs from a host"


def test_a_replaced_machine_is_brought_up_to_date(machines: Bare, orchestrate: Type) -> None:
    """It presents a different host key, which only a user may accept."""
    machines.replace("node3")
    machines.wait()
    output = orchestrate("launch", "--no-validate", "--", *SCRIPT, status=3)
    assert "node3" in output
    assert "ssh-keygen -R" in output
    known = str(machines.folder / "known_hosts")
    subprocess.run(["ssh-keygen", "-q", "-R", machines.address("node3"), "-f", known], check=True)
    login = ["ssh", "-F", str(machines.ssh_config), "-o", "StrictHostKeyChecking=accept-new", "node3", "true"]
    subprocess.run(login, check=True, capture_output=True)
    before = machines.sent_by_us()
    output = orchestrate("launch", "--no-validate", "--", *SCRIPT)
    assert machines.sent_by_us() - before < LARGE / 2, "uv, wheels and data came from the others"
    assert len(re.findall("environment created in", output)) == 1, output
    assert output.count("answer 42") == len(NAMES), output


def test_setup_reports_one_error_per_failing_host_and_completes_the_others(
    machines: Bare, project: Path, orchestrate: Type
) -> None:
    wheel(machines.folder / "wheels", "numpy", "1.0", HANGS)
    hosts = project / "hosts.toml"
    text = hosts.read_text().replace('["small"]', '["small", "numpy"]')
    hosts.write_text(text.replace('name = "node1"', 'name = "node1"\nworkdir = "/small/work"'))
    before = machines.sent_by_us()
    output = orchestrate("setup", status=3, meanwhile=lambda: _die_half_way(machines, "node2"))
    assert machines.sent_by_us() - before < LARGE / 2, "of the wheels only the one that is new, and its piece"
    assert "node3: environment created in" in output
    errors = re.findall(r"^error: (node\d)", output, re.MULTILINE)
    assert sorted(errors) == ["node1", "node2"], output
    assert "error: node1 reports: lacks disk space" in output
    assert "error: node2 was lost" in output

    docker("start", machines.container("node2"))
    machines.wait()
    hosts.write_text(text)
    output = orchestrate("setup")
    assert "3 hosts ready with the environment" in output
    assert ".making" not in machines.output_of("node2", "ls", "-A", "/home/train/orchestrate/envs")


def _die_half_way(machines: Bare, name: str) -> None:
    """It loses power while it imports the installed packages."""
    deadline = time.monotonic() + 120
    while machines.output_of(name, "sh", "-c", "ls /tmp/half-way 2>/dev/null || true") == "":
        assert time.monotonic() < deadline, "it has not come so far"
        time.sleep(0.1)
    docker("kill", machines.container(name))


def _size_of_uv() -> int:
    return uv.binary().stat().st_size
