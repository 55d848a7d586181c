"""What hosts.toml means when nothing is wrong with it."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from orchestrator.config import load as config
from orchestrator.config.tables import HOST_KEYS, JOB_KEYS
from orchestrator.model import Data, Host
from tests.golden import matches_golden

EVERYTHING = """
[defaults]
user = "train"
port = 2200
identity = "~/.ssh/cluster"
via = "openssh"
ssh_config = "/etc/lab/ssh_config"
python = "~/venv/bin/python"
agent_python = "python3.9"
workdir = "/data/train/"
state = "/var/tmp/train"
task_port = 3000
tasks = 2
role = "worker"
devices = [0, "GPU-4f2c"]
env = { A = "defaults", B = "defaults" }

[[host]]
name = "one"
ssh = "bastion-one"
address = "10.0.0.1"
env = { A = "host" }

[[host]]
name = "two"
address = "10.0.0.2"
role = "chief"
tasks = 1
devices = []
port = 22

[[host]]
name = "three"
address = "10.0.0.3"
spare = true

[job]
command = 'train.py --name "a b"'
setup = "module load cuda\\nulimit -n 4096"
env = { EMPTY = "", UNICODE = "é\\n$(x)" }
secrets = ["TOKEN"]
grace = 10
failure_grace = 0.5
lifeline = 60
ignore = ["*.ckpt"]
validate = "pytest -x 'a b'"
hang_timeout = 600
on_hang = "stop"
stacks = false
legacy_keras = false
"""


A, B, C = (f'\n[[host]]\nname = "{name}"\n' for name in "abc")


def hosts(text: str) -> tuple[Host, ...]:
    return config.parse(text).hosts


def test_every_key() -> None:
    meant = msgspec.to_builtins(config.parse(EVERYTHING, "lab.toml"))
    matches_golden("config/every_key.json", json.dumps(meant, indent=1, ensure_ascii=False) + "\n")


@pytest.mark.parametrize(
    ("keys", "name", "ssh", "address"),
    [
        ('ssh = "gpu-01"', "gpu-01", "gpu-01", "gpu-01"),
        ('name = "a"\naddress = "10.0.0.1"', "a", "10.0.0.1", "10.0.0.1"),
        ('ssh = "alias"\naddress = "10.0.0.1"', "10.0.0.1", "alias", "10.0.0.1"),
        ('address = "2001:DB8::10"', "2001:db8::10", "2001:db8::10", "2001:db8::10"),
    ],
)
def test_name_ssh_and_address_stand_in_for_each_other(keys: str, name: str, ssh: str, address: str) -> None:
    (host,) = hosts(f"[[host]]\n{keys}")
    assert (host.name, host.ssh, host.address) == (name, ssh, address)


def test_ssh_targets_win_over_defaults() -> None:
    rows = {
        "gpu": ("gpu", "a", 1),
        "train@lab.org@gpu:2200": ("gpu", "train@lab.org", 2200),
        "train@[fd00::5]:2200": ("fd00::5", "train", 2200),
        "fd00::5": ("fd00::5", "a", 1),
    }
    for given, expected in rows.items():
        (host,) = hosts(f'[defaults]\nuser = "a"\nport = 1\n[[host]]\nssh = "{given}"')
        assert (host.ssh, host.user, host.port) == expected


def test_ranges_run_in_step() -> None:
    found = hosts(
        '[[host]]\nname = "gpu-[01-02,9]"\nssh = "train@gpu-[01-02,9].lab:2200"\naddress = "10.0.0.[1-3]"'
    )
    assert [(host.name, host.ssh, host.address, host.user, host.port) for host in found] == [
        ("gpu-01", "gpu-01.lab", "10.0.0.1", "train", 2200),
        ("gpu-02", "gpu-02.lab", "10.0.0.2", "train", 2200),
        ("gpu-9", "gpu-9.lab", "10.0.0.3", "train", 2200),
    ]


@pytest.mark.parametrize(
    "text",
    [
        '[[host]]\naddress = "fd00::[1-4]"',
        A + 'address = "127.0.0.1"' + B + 'address = "::1"\ntask_port = 3000',
        A + 'role = "ps"' + B + C + 'role = "chief"',
        '[defaults]\nrole = "ps"\n' + A + 'role = "chief"' + B + 'role = "worker"' + C + "spare = true",
        "job.command = \"bash -c 'train.py $X && echo ok'\"\n" + A,
    ],
)
def test_unusual_but_right(text: str) -> None:
    assert hosts(text)


def test_files_of_this_machine_are_found_from_the_inventory(tmp_path: Path) -> None:
    path = tmp_path / "hosts.toml"
    data = '\n[data]\npaths = ["x/y/", "~/z", "/q"]\nkeras = ["m.npz"]\ntfds_dir = "t"\n'
    path.write_text(A + 'identity = "keys/a"\nssh_config = "/etc/x"' + B + 'identity = "~/b"' + data)
    inventory = config.load(path)
    files = [(host.identity, host.ssh_config) for host in inventory.hosts]
    assert files == [(f"{tmp_path}/keys/a", "/etc/x"), ("~/b", None)]
    assert inventory.data == Data(
        paths=(f"{tmp_path}/x/y", "~/z", "/q"), keras=(f"{tmp_path}/m.npz",), tfds_dir=f"{tmp_path}/t"
    )


def test_the_example_is_right_also_with_every_comment_removed() -> None:
    text = (Path(__file__).parents[2] / "hosts.example.toml").read_text()
    assert len(hosts(text)) == 4
    shown = {line.split("=")[0].strip(" #") for line in text.split("\n") if "=" in line}
    assert shown >= {*HOST_KEYS, *JOB_KEYS}
