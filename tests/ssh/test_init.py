"""`orchestrate init`: the real program against real SSH servers with unknown host keys."""

import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.config.load import load
from orchestrator.rehearsal import Cluster
from tests import command
from tests.hostile.middle import Middle
from tests.hostile.row import when
from tests.wheels import wheel

ROOT = Path(__file__).parents[2]
UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u202a-\u202e\u2066-\u2069]")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(3, name="gpu") as running:
        running.ssh_config.write_text(
            running.ssh_config.read_text().replace("StrictHostKeyChecking yes", "StrictHostKeyChecking ask")
        )
        (tmp_path / "project").mkdir()
        yield running


def init(cluster: Cluster, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return command.run(("init", "--ssh-config", str(cluster.ssh_config), *words), folder, os.environ)


def training_python(home: Path, framework: str = "tensorflow") -> None:
    """Create an environment that claims to have a framework."""
    made = home / ".venvs" / "train"
    venv.create(made, symlinks=True, with_pip=False)
    (packages,) = made.glob("lib/python3*/site-packages")
    (packages / f"{framework}-2.99.0.dist-info").mkdir()


def test_names_alone_yield_a_full_file_with_new_keys_and_preflight(cluster: Cluster, tmp_path: Path) -> None:
    cluster.known_hosts.write_text("")
    for number in (1, 2, 3):
        training_python(cluster.folder / f"home-{number}")
    folder = tmp_path / "project"
    done = init(cluster, folder, "--yes", "gpu-[01-03]")
    lines = done.stderr.splitlines()
    assert lines[0] == "3 hosts with a key that is in no known_hosts file:"
    assert [line.split()[:2] for line in lines[1:4]] == [[f"gpu-0{n}", "ssh-ed25519"] for n in (1, 2, 3)]
    assert lines[4] == "3 keys written to known_hosts, because of --yes"
    assert len(cluster.known_hosts.read_text().splitlines()) == 3
    inventory = load(folder / "hosts.toml")
    assert [(host.name, host.ssh, host.address) for host in inventory.hosts] == [
        (f"gpu-0{number}", f"gpu-0{number}", cluster.hosts[number - 1].address) for number in (1, 2, 3)
    ]
    assert {host.python for host in inventory.hosts} == {"~/.venvs/train/bin/python"}
    assert [host.task_port for host in inventory.hosts] == [2222, 2223, 2224]
    own = [f"/var/tmp/orchestrate-gpu-0{number}" for number in (2, 3)]
    assert [host.state for host in inventory.hosts] == [None, *own]
    assert "gpu-[01-03]: no GPU, TensorFlow 2.99.0 in ~/.venvs/train/bin/python, " in done.stdout
    assert "hosts.toml: 3 hosts\n" in done.stdout
    # A Python with a TensorFlow folder and no tf_keras: preflight ran, and reports that.
    assert done.returncode == 3
    assert "this cluster cannot train yet" in done.stdout


# The login's python3: our agent is started with -S, and lies.
LYING_PYTHON = '#!/bin/sh\ncase " $* " in *" -S "*) exec {liar} "$@" ;; esac\nexec {python} "$@"\n'
WORDS = r"""'\x1b]0;owned\x07\x1b[2J\x9b2J\u202e"\n\r[[host]]\nerror: x $(touch ' + CANARY + ')'"""
# A different machine ID, so that its addresses count.
LIE = when(
    "hello", "header['hello']['boot_id'] = 'another'\nfor _ in range(150): os.write(2, b'x' * 65536)"
) + when(
    "facts",
    f"words = {WORDS}\n"
    "result['addresses'] = [{'name': words, 'ip': ip} for ip in (words, '::%%', '300.1.2.3', '')]\n"
    "result['gpus'] = [{'index': 0, 'name': words}] * 9\n"
    "result['answers']['pythons'] = '2.1 ' + words",
)


def test_a_lying_host_adds_nothing_to_the_file(cluster: Cluster, tmp_path: Path) -> None:
    """Invalid addresses, hostile names, and more on stderr than a channel's window."""
    liar, canary = Middle(tmp_path / "liar", tmp_path / "canary"), tmp_path / "canary"
    liar.lie(LIE)
    home = cluster.folder / "home-2"
    (home / "python3").write_text(LYING_PYTHON.format(liar=liar.path, python=sys.executable))
    (home / "python3").chmod(0o755)
    (home / ".bashrc").write_text(f"PATH={home}:$PATH\n")
    done = init(cluster, tmp_path / "project", "gpu-[01-02]", "--no-preflight")
    output, written = done.stdout + done.stderr, (tmp_path / "project" / "hosts.toml").read_text()
    assert done.returncode == 0, output
    assert "9 x " in output  # it was queried, and lied
    assert not UNSAFE.search(output + written)
    assert not [line for line in output.splitlines() if line.startswith(("error:", "Traceback"))]
    assert not canary.exists()
    hosts = load(tmp_path / "project" / "hosts.toml").hosts
    assert [(host.name, host.address) for host in hosts] == [
        (host.name, host.address) for host in cluster.hosts[:2]
    ]


def test_an_environment_is_planned_where_a_host_has_none(cluster: Cluster, tmp_path: Path) -> None:
    training_python(cluster.folder / "home-1")
    done = init(cluster, tmp_path, "gpu-[01-02]", "--to", "two hosts.toml")
    assert done.returncode == 0
    assert "next: orchestrate setup --hosts 'two hosts.toml' creates their Python environment" in done.stderr
    inventory = load(tmp_path / "two hosts.toml")
    assert inventory.environment is not None
    assert [host.python for host in inventory.hosts] == ["python3", "python3"]


def test_init_never_overwrites_a_file(cluster: Cluster, tmp_path: Path) -> None:
    folder = tmp_path / "project"
    (folder / "hosts.toml").write_text("mine\n")
    done = init(cluster, folder, "gpu-01", "--no-preflight")
    assert done.returncode == 2
    assert "hosts.toml already exists" in done.stderr
    assert (folder / "hosts.toml").read_text() == "mine\n"
    assert [path.name for path in folder.iterdir()] == ["hosts.toml"]


def test_without_a_terminal_no_key_is_accepted(cluster: Cluster, tmp_path: Path) -> None:
    cluster.known_hosts.write_text("")
    folder = tmp_path / "project"
    done = init(cluster, folder, "gpu-01", "gpu-02")
    assert done.returncode == 3
    assert "presented an unknown host key" in done.stderr
    assert "cannot prompt without a terminal: `--yes` accepts these keys" in done.stderr
    assert cluster.known_hosts.read_text() == ""
    assert "# skipped: gpu-01 presented an unknown host key" in (folder / "hosts.toml").read_text()
    assert [host.address for host in load(folder / "hosts.toml").hosts] == [
        host.address for host in cluster.hosts[:2]
    ]


def test_a_changed_key_is_never_accepted(cluster: Cluster, tmp_path: Path) -> None:
    first, second, *_ = cluster.known_hosts.read_text().splitlines()
    place, _, key = first.partition(" ")
    wrong = f"{place} {second.partition(' ')[2]}\n"
    cluster.known_hosts.write_text(wrong)
    done = init(cluster, tmp_path / "project", "gpu-01", "gpu-02", "--yes")
    assert done.returncode == 3
    assert "gpu-01 presented an unexpected host key" in done.stderr
    known = cluster.known_hosts.read_text()
    assert known.startswith(wrong)
    assert key not in known


def test_a_user_is_asked_once_for_all_keys(cluster: Cluster, tmp_path: Path) -> None:
    cluster.known_hosts.write_text("")
    folder = tmp_path / "project"
    terminal, theirs = pty.openpty()
    words = ["init", "--ssh-config", str(cluster.ssh_config), "--no-preflight", "gpu-[01,03]"]
    process = subprocess.Popen(
        [sys.executable, "-m", "orchestrator", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    shown = until(terminal, "[y/N] ")
    assert shown.count("SHA256:") == 2
    os.write(terminal, b"y\n")
    until(terminal, "hosts.toml: 2 hosts")
    assert process.wait(30) == 0
    os.close(terminal)
    assert len(cluster.known_hosts.read_text().splitlines()) == 2
    assert [host.name for host in load(folder / "hosts.toml").hosts] == ["gpu-01", "gpu-03"]


def until(terminal: int, words: str, seconds: float = 60) -> str:
    shown, deadline = b"", time.monotonic() + seconds
    while words.encode() not in shown:
        assert select.select([terminal], [], [], max(0.0, deadline - time.monotonic()))[0], shown
        shown += os.read(terminal, 4096)  # which may end within a multibyte character
    return shown.decode(errors="replace")


def launch(cluster: Cluster, folder: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Launch with the cluster's ssh_config as the user's, and without a hosts file."""
    programs = folder.parent / "bin"
    programs.mkdir(exist_ok=True)
    (programs / "ssh").write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {cluster.ssh_config} "$@"\n')
    (programs / "ssh").chmod(0o755)
    state = str(folder.parent / "state")
    own = {"PATH": f"{programs}:{os.environ['PATH']}", "XDG_STATE_HOME": state, "XDG_CACHE_HOME": state}
    options = ("--hosts", "gpu-[01-02]", "--skip-preflight", "--no-validate")
    return command.run(("launch", *options, *words), folder, {**os.environ, **own, **env})


def test_a_launch_on_names_alone_creates_a_script_s_env(cluster: Cluster, tmp_path: Path) -> None:
    """From bare machines with unknown keys in one command, by a script header or the default [env]."""
    cluster.known_hosts.write_text("")
    wheels, folder = tmp_path / "wheels", tmp_path / "project"
    wheels.mkdir()
    names = ("tensorflow", "tf_keras", "tensorflow_datasets", "importlib_resources", "tensorboard", "small")
    modules = {"tensorflow_cpu": "tensorflow", "scikit_learn": "sklearn", **{name: name for name in names}}
    for name, module in modules.items():
        wheel(wheels, name, "2.99", "answer = 42\n", module)
    index = {"UV_DEFAULT_INDEX": wheels.as_uri(), "PIP_INDEX_URL": wheels.as_uri()}
    says = 'print("answer", answer, os.environ["TF_CONFIG"])\n'
    (folder / "own.py").write_text(
        f'# /// script\n# dependencies = ["small"]\n# ///\nimport os\nfrom small import answer\n{says}'
    )
    (folder / "tf.py").write_text(f"import os\nfrom tf_keras import answer\n{says}")

    refused = launch(cluster, folder, "--", "own.py")
    assert refused.returncode == 3
    assert "cannot prompt without a terminal: `--yes` accepts these keys" in refused.stderr
    made = launch(cluster, folder, "--yes", "--", "own.py", **index)
    assert made.returncode == 0, made.stderr
    assert "2 keys written to known_hosts, because of --yes" in made.stderr
    assert made.stdout.count("answer 42") == 2
    first, second, *_ = (host.address for host in cluster.hosts)
    assert made.stdout.count(f'"worker": ["{first}:2222", "{second}:2223"]') == 2  # of the same machine

    asked = "gpu-[01-02]: no common Python with TensorFlow; create an environment, as `setup` does?"
    unasked = launch(cluster, folder, "--", "tf.py", **index)
    assert f"{asked} no terminal: `--yes` confirms" in unasked.stderr
    assert unasked.returncode == 1
    made = launch(cluster, folder, "--yes", "--", "tf.py", **index)
    assert f"{asked} yes, because of --yes" in made.stderr
    assert made.returncode == 0, made.stderr
    assert made.stdout.count("answer 42") == 2
    again = launch(cluster, folder, "--", "tf.py", **index)
    assert asked not in again.stderr
    assert again.stdout.count("answer 42") == 2
    for number in (1, 2):
        training_python(cluster.folder / f"home-{number}")
    found = launch(cluster, folder, "--", "tf.py", **index)
    assert "gpu-[01-02]: TensorFlow 2.99.0 in ~/.venvs/train/bin/python" in found.stderr


def test_a_launch_on_names_alone_creates_the_environment_of_its_framework(
    cluster: Cluster, tmp_path: Path
) -> None:
    wheels, folder = tmp_path / "wheels", tmp_path / "project"
    wheels.mkdir()
    for name in ("torch", "numpy", "keras"):
        wheel(wheels, name, "2.99", "__version__ = '2.99'\n")
    index = {"UV_DEFAULT_INDEX": wheels.as_uri(), "PIP_INDEX_URL": wheels.as_uri()}
    backend = 'import os\nos.environ["KERAS_BACKEND"] = "torch"\n'
    (folder / "own.py").write_text(
        f"{backend}import torch\nimport keras\nprint('torch', torch.__version__)\n"
    )
    made = launch(cluster, folder, "--yes", "--", "own.py", **index)
    asked = "gpu-[01-02]: no common Python with PyTorch; create an environment, as `setup` does?"
    assert f"{asked} yes, because of --yes" in made.stderr
    assert made.returncode == 0, made.stderr
    assert made.stdout.count("torch 2.99") == 2
    for number in (1, 2):
        training_python(cluster.folder / f"home-{number}", "torch")
    found = launch(cluster, folder, "--", "own.py", **index)
    assert "gpu-[01-02]: PyTorch 2.99.0 in ~/.venvs/train/bin/python" in found.stderr
