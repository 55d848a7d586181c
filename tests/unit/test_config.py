"""The meaning of hosts.toml, and the message for each mistake in it."""

import json
import os
from pathlib import Path

import msgspec
import pytest

from orchestrator.checks.cluster import state_for
from orchestrator.config import load as config
from orchestrator.config import values
from orchestrator.config.load import load, parse
from orchestrator.config.tables import HOST_KEYS, JOB_KEYS
from orchestrator.errors import ExitStatus, UsageError
from orchestrator.model import Data, Host
from orchestrator.verbs.environment import absent
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
container = "tensorflow/tensorflow:2.20.0"
container_args = ["-v", "/data:/data:ro"]
container_engine = "podman"
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
keep_warm = 90
legacy_keras = false
"""


A, B, C = (f'\n[[host]]\nname = "{name}"\n' for name in "abc")


def hosts(text: str) -> tuple[Host, ...]:
    return config.parse(text).hosts


def test_every_key() -> None:
    meant = msgspec.to_builtins(config.parse(EVERYTHING, "lab.toml"))
    matches_golden("config/every_key.json", json.dumps(meant, indent=1, ensure_ascii=False) + "\n")


OF_ROLES = """[defaults]\ncontainer = "all:1"
[role.ps]\ncontainer = "ps:1"\ncontainer_engine = "docker"
[[host]]\naddress = "a"\nrole = "chief"
[[host]]\naddress = "b"\nrole = "ps"
[[host]]\naddress = "c"\nrole = "ps"\ncontainer = "own:1"
[[host]]\naddress = "d"\ncontainer = ""
[[host]]\naddress = "e"\nrole = "ps"\ncontainer = ""
[[host]]\naddress = "f"\nrole = "ps"\ncontainer = "all:1"
"""
DEFAULTS = '[defaults]\nuser = "a"\nport = 1\n[[host]]\nssh = '
# Unusual but valid.
HOSTS = (
    '[[host]]\nssh = "gpu-01"',
    '[[host]]\nname = "a"\naddress = "10.0.0.1"',
    '[[host]]\nssh = "alias"\naddress = "10.0.0.1"',
    '[[host]]\naddress = "2001:DB8::10"',
    f'{DEFAULTS}"gpu"',
    f'{DEFAULTS}"train@lab.org@gpu:2200"',
    f'{DEFAULTS}"train@[fd00::5]:2200"',
    f'{DEFAULTS}"fd00::5"',
    '[[host]]\nname = "gpu-[01-02,9]"\nssh = "train@gpu-[01-02,9].lab:2200"\naddress = "10.0.0.[1-3]"',
    '[[host]]\naddress = "fd00::[1-4]"',
    A + 'address = "127.0.0.1"' + B + 'address = "::1"\ntask_port = 3000',
    A + 'role = "ps"' + B + C + 'role = "chief"',
    '[defaults]\nrole = "ps"\n' + A + 'role = "chief"' + B + 'role = "worker"' + C + "spare = true",
    "job.command = \"bash -c 'train.py $X && echo ok'\"\n" + A,
    OF_ROLES,
)


def test_host_entries_are_read() -> None:
    """Each host's name, and its differences from a host without settings."""
    text = ""
    for given in HOSTS:
        text += f"{given.strip()}\n"
        for host in hosts(given):
            usual = msgspec.structs.asdict(Host(host.name, "", ""))
            fields = [
                f"{key} {value}" for key, value in msgspec.structs.asdict(host).items() if value != usual[key]
            ]
            text += f"  {host.name}: {', '.join(fields)}\n"
    matches_golden("config/hosts.txt", text)


def test_local_files_are_relative_to_the_inventory(tmp_path: Path) -> None:
    path = tmp_path / "hosts.toml"
    data = '\n[data]\npaths = ["x/y/", "~/z", "/q"]\nkeras = ["m.npz"]\ntfds_dir = "t"\n'
    path.write_text(A + 'identity = "keys/a"\nssh_config = "/etc/x"' + B + 'identity = "~/b"' + data)
    inventory = config.load(path)
    files = [(host.identity, host.ssh_config) for host in inventory.hosts]
    assert files == [(f"{tmp_path}/keys/a", "/etc/x"), ("~/b", None)]
    assert inventory.data == Data(
        paths=(f"{tmp_path}/x/y", "~/z", "/q"), keras=(f"{tmp_path}/m.npz",), tfds_dir=f"{tmp_path}/t"
    )


def test_the_example_is_valid_even_with_every_line_uncommented() -> None:
    text = (Path(__file__).parents[2] / "hosts.example.toml").read_text()
    assert len(hosts(text)) == 4
    shown = {line.split("=")[0].strip(" #") for line in text.split("\n") if "=" in line}
    assert shown >= {*HOST_KEYS, *JOB_KEYS}


# --- Mistakes in hosts.toml: one line each, with its location, and no follow-up errors ---

ONE = '[[host]]\nssh = "gpu-01"\n'
TWO = ONE + '[[host]]\nssh = "gpu-02"\n'

# fmt: off
# Under [[host]], after ssh = "gpu-01"
IN_A_HOST = (
    "task_prot = 3000",
    "grace = 1",
    "task_port = 80",
    "task_port = 65530\ntasks = 10",
    'python = "venv/bin/python"',
    'workdir = "/"',
    'workdir = "$HOME/o"',
    'state = "/var/tmp/orchestrate-fd00::2"',
    'workdir = ""',
    'user = "a b"',
    "tasks = 0",
    'role = "cheif"',
    'role = "chief"\ntasks = 2',
    'role = "evaluator"',
    'role = "ps"\n[[host]]\nssh = "b"\nrole = "chief"',
    'spare = "yes"',
    'devices = "0,1"',
    'devices = [0, "0"]',
    "devices = [0, 1, 2]\ntasks = 2",
    "env = { A = 1 }",
    'env = { TOKEN = "abc" }\n[job]\nsecrets = ["TOKEN"]',
    "task_port = 99999",
    'tasks = "2"',
    "spare = 1",
    'role = "master"',
    'role = "parameter_server"',
    'role = "Parameter-Server"',
    'role = "slave"',
    "gpus = 4",
    "slots = 4",
    'pip = ["numpy"]',
    'password = "hunter2"',
    'host = "gpu-02"',
    'Hostname = "gpu-02"',
    'bastion = "gate"',
    'identity-file = "~/.ssh/id"',
)
IN_THE_JOB = (
    "tasks = 1",
    "env = { A = true }",
    'env = { TF_CONFIG = "{}" }',
    'env = { ORCHESTRATE_RUN = "a" }',
    'secrets = ["TOKEN=abc"]',
    'command = "train.py --name \'a"',
    "command = true",
    'command = "cd src && python train.py"',
    'command = "train.py --out $SCRATCH/x"',
    'grace = "30s"',
    'on_hang = "restrat"',
    'legacy_keras = "false"',
    "grace = -1",
    "max_restarts = 1\nmin_hosts = 9",
    'framework = "pytorch"',
    "gpus = 4",
    'cmd = "train.py"',
    'pip = ["numpy"]',
)
# The only line under [[host]]
OF_A_TARGET = (
    'name = " a"',
    'name = "g[01-8]"',
    'ssh = "gpu-01:99999"',
    'ssh = "-oProxyCommand=reboot"',
    'ssh = "gpu-{1..4}"',
    'ssh = "fd00::5:22"',
    'address = "10.0.0.1:10090"',
    'address = "172.17.0.256"',
    'address = "gpu_01!"',
    'name = "gpu-[4-1]"',
    'name = "gpu-[04-01,7]"',
    'ssh = "ssh://gpu-01"',
    'ssh = "ssh://ada@gpu-01:2200/"',
)
IN_THE_DATA = (
    'sets = ["Mnist"]',
    'sets = ["mnist", "mnist"]',
    'paths = ["a/x", "b/x"]',
    'paths = [".."]',
    'paths = ["/"]',
    'path = ["x"]',
)
IN_THE_ENVIRONMENT = (
    'package = ["a"]',
    "python = 3.11",
    'index = "packages.example"',
    '[defaults]\npython = "/opt/python"',
)
# Whole files
IN_A_FILE = (
    "",
    b'[[host]]\nssh = "caf\xe9"\n',
    "[[host]]\nssh = “gpu-01”\n",
    ONE + "spare = True\n",
    "[[host]]\nssh = gpu-01\n",
    '[host]\nssh = "a"\n',
    'host = "gpu-01"\n',
    '[[hosts]]\nssh = "a"\n',
    "[[defaults]]\n" + ONE,
    "task_port = 3000\n" + ONE,
    '[defaults]\nname = "a"\n' + ONE,
    '[env]\nNCCL_DEBUG = "INFO"\n' + ONE,
    '[env]\nindex = "https://me:hunter2@packages.example/simple"\n' + ONE,
    "[[host]]\n",
    '[[host]]\nname = "\\u001b[2J"\naddress = "10.0.0.1"\n',
    '[[host]]\nname = "a"\n[[host]]\nname = "a"\naddress = "10.0.0.2"\nssh = "b"\n',
    '[[host]]\nname = "g[1-4]"\n[[host]]\nname = "g[3-6]"\ntask_port = 3000\n',
    '[[host]]\nname = "g[1-4]"\naddress = "10.0.0.[1-5]"\n',
    '[[host]]\nname = "g"\nssh = "10.0.0.[1-4]"\n',
    '[[host]]\nssh = "local"\n',
    '[defaults]\nworkdir = "/data/o"\nstate = "/data//o"\n' + ONE,
    '[[host]]\naddress = "10.0.0.1"\n[[host]]\naddress = "10.0.0.1"\ntask_port = 3000\n',
    '[defaults]\nrole = "chief"\n' + TWO,
    TWO + 'role = "evaluator"\n[[host]]\nssh = "c"\nrole = "evaluator"\n',
    TWO + 'role = "ps"\n',
    ONE + "spare = true\n",
    ONE + 'devices = [0]\n[job.env]\nCUDA_VISIBLE_DEVICES = "0"\n',
    ONE + '[host.env]\nA = 1.5\n"B C" = "x"\n',
    ONE + '[job]\nsecrets = ["TOKEN"]\nenv = { TOKEN = "abc" }\n',
    '[defaults.env]\nTOKEN = "abc"\n[[host]]\nssh = "gpu-01"\n[job]\nsecrets = ["TOKEN"]\n',
    "a = " + "[" * 5000,
    ONE + "port = " + "9" * 5000,
    '[job.env]\nTOKEN = "hunter2\n',
    ONE.encode("utf-16"),
    "[[host]]\nssh = \u2018gpu-01\u2019\n",
    '[[host]]\nssh = "gpu-01"\n[job]\ncommand = “train.py --name it”\n',
    '{"host": [{"ssh": "gpu-01"}]}\n',
    '[[nodes]]\nssh = "gpu-01"\n',
    '[[machine]]\nssh = "gpu-01"\n',
    '[[host]]\nssh: "gpu-01"\n',
    "gpus = 4\n" + ONE,
    """
[job]
comand = "train.py"
grace = "30s"
[[host]]
name = "gpu-01"
prot = 22
[defaults]
role = "cheif"
[[host]]
name = "gpu-02"
address = "172.17.0.300"
env.OMP_NUM_THREADS = 4
[extra]
""",
)
# fmt: on


def mistakes(text: str | bytes) -> str:
    with pytest.raises(UsageError) as caught:
        parse(text)
    error = caught.value
    assert error.status is ExitStatus.USAGE
    lines = error.why.split("\n")
    assert error.what == f"hosts.toml has {len(lines)} mistake{'s' * (len(lines) > 1)}"
    return error.why


@pytest.mark.parametrize(
    ("name", "before", "texts"),
    [
        ("host", ONE, IN_A_HOST),
        ("job", ONE + "[job]\n", IN_THE_JOB),
        ("target", "[[host]]\n", OF_A_TARGET),
        ("data", ONE + "[data]\n", IN_THE_DATA),
        ("env", ONE + "[env]\n", IN_THE_ENVIRONMENT),
        ("file", "", IN_A_FILE),
    ],
)
def test_mistakes_are_reported(name: str, before: str, texts: tuple[str | bytes, ...]) -> None:
    def row(text: str | bytes) -> str:
        whole = text if isinstance(text, bytes) else before + text
        return f"{text[:300]!r}\n    " + mistakes(whole).replace("\n", "\n    ") + "\n"

    matches_golden(f"config/{name}.txt", "".join(map(row, texts)))


def test_data_may_be_a_folder_or_a_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    assert absent(str(tmp_path / "fifo")) == "is neither a folder nor a file"
    assert not absent(str(tmp_path))


def test_unreadable_files_are_reported(tmp_path: Path) -> None:
    missing, folder, fifo, zero, large = (
        tmp_path / name for name in ("missing.toml", "folder", "fifo", "zero", "large")
    )
    folder.mkdir()
    os.mkfifo(fifo)
    zero.symlink_to("/dev/zero")
    large.write_bytes(b"#" * (2 << 20))
    rows = {
        missing: "No such file or directory",
        **dict.fromkeys((folder, fifo, zero), "it is not a regular file"),
        large: "it has 2.1 MB, and may have 1.0 MB",
        missing / "x\0": "its name holds a NUL character",
    }
    for path, why in rows.items():
        with pytest.raises(UsageError) as caught:
            load(path)
        assert (caught.value.what, caught.value.why) == (f"cannot read {path}", why)


def test_the_state_folder_suggested_for_an_ipv6_address_is_accepted() -> None:
    """With a colon in its path, PYTHONPATH led elsewhere, and tasks ran without our `sitecustomize`."""
    assert values.workdir(state_for("fd00::2")) == "/var/tmp/orchestrate-fd00--2"


def test_the_name_of_an_account_in_a_domain_may_contain_an_at_sign() -> None:
    assert values.user("ada@example.org") == "ada@example.org"
