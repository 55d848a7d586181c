"""Mistakes in hosts.toml: each is one line, with its place, and none only follows from another."""

# ruff: noqa: E501 - a line is what the user writes

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator import config
from orchestrator.errors import ExitStatus, UsageError
from tests.golden import matches_golden

ONE = '[[host]]\nssh = "gpu-01"\n'
TWO = ONE + '[[host]]\nssh = "gpu-02"\n'

# fmt: off
# Under [[host]], after ssh = "gpu-01"
IN_A_HOST = (
    "task_prot = 3000",
    "task-port = 3000",
    "grace = 1",
    "task_port = 80",
    "task_port = 65530\ntasks = 10",
    'python = "venv/bin/python"',
    'python = "python3 -u"',
    'python = "/usr/bin/"',
    'agent_python = "-c"',
    'workdir = "orchestrate"',
    'workdir = "/"',
    'workdir = "$HOME/o"',
    'workdir = ""',
    'workdir = "~/../x"',
    'workdir = "~"',
    'workdir = ["/a"]',
    'identity = "~/.ssh/id_ed25519.pub"',
    'user = "a@b"',
    "tasks = 0",
    'role = "cheif"',
    'role = "chief"\ntasks = 2',
    'role = "evaluator"',
    'role = "ps"\n[[host]]\nssh = "b"\nrole = "chief"',
    'spare = "yes"',
    'devices = "0,1"',
    'devices = [0, "0"]',
    "devices = [-1]",
    "devices = [0, 1, 2]\ntasks = 2",
    "env = { A = 1 }",
    'env = { A = "\\u0000" }',
    'env = { TOKEN = "abc" }\n[job]\nsecrets = ["TOKEN"]',
)
IN_THE_JOB = (
    "tasks = 1",
    "env = { A = true }",
    'env = { TF_CONFIG = "{}" }',
    'env = { ORCHESTRATE_RUN = "a" }',
    'secrets = ["TOKEN=abc"]',
    'forward = "A"',
    'forward = ["A", "A"]',
    'forward = ["WANDB_*"]',
    'command = "train.py --name \'a"',
    'command = ["train.py", 3]',
    'command = ""',
    "command = true",
    'command = "cd src && python train.py"',
    'command = "train.py && echo ok"',
    'command = "train.py --out $SCRATCH/x"',
    'command = "train.py --data ~/data"',
    'setup = " "',
    'grace = "30s"',
    "grace = -1",
    'ignore = "*.ckpt"',
    'ignore = [""]',
    "validate = false",
    'on_hang = "restrat"',
    'legacy_keras = "false"',
)
# The only line under [[host]]
OF_A_TARGET = (
    'name = " a"',
    'name = "g[01-8]"',
    'name = "g[1-4,3]"',
    'ssh = "gpu-01:99999"',
    'ssh = "ssh://gpu-01"',
    'ssh = "-oProxyCommand=reboot"',
    'ssh = "gpu-01 -p 22"',
    'ssh = "train@"',
    'ssh = "fd00::5:22"',
    'ssh = "[fd00::5"',
    'address = "10.0.0.1:10090"',
    'address = "http://10.0.0.1"',
    'address = "172.17.0.256"',
    'address = "gpu_01!"',
    'address = "0.0.0.0"',
    'address = "[2001:db8::1]:10090"',
    'address = "fe80::1%eth0"',
)
# Whole files
IN_A_FILE = (
    "",
    b'[[host]]\nssh = "caf\xe9"\n',
    b"\xff\xfe[\x00[\x00h\x00o\x00s\x00t\x00]\x00]\x00\n\x00",
    '[[host]]\nssh = "gpu-01\n',
    "[[host]]\nssh = “gpu-01”\n",
    ONE + "spare = True\n",
    '[[host]]\nssh = "gpu-01,gpu-02"\n',
    "[[host]]\nssh = gpu-01\n",
    '[[host]]\nssh = "a"\ndevices = [1,',
    '[[host]]\nssh = "a"\nssh = "b"\n',
    '[host]\nssh = "a"\n',
    'host = "gpu-01"\n',
    '[[hosts]]\nssh = "a"\n',
    "[default]\n" + ONE,
    "[[defaults]]\n" + ONE,
    'job = "train.py"\n' + ONE,
    ONE + "[cluster]\n",
    "task_port = 3000\n" + ONE,
    '[defaults]\nname = "a"\n' + ONE,
    '[env]\nNCCL_DEBUG = "INFO"\n' + ONE,
    '[env]\nPYTHON = "3.11"\n' + ONE,
    '[env]\nindex = "https://me:hunter2@packages.example/simple"\n' + ONE,
    "[[host]]\n",
    "[[host]]\ntask_port = 3000\n",
    "[[host]]\nname = 1\n",
    '[[host]]\nname = "gpu 1"\naddress = "10.0.0.1"\n',
    '[[host]]\nname = "\\u001b[2J"\naddress = "10.0.0.1"\n',
    '[[host]]\nname = "a"\n[[host]]\nname = "a"\naddress = "10.0.0.2"\nssh = "b"\n',
    '[[host]]\nname = "g[1-4]"\n[[host]]\nname = "g[3-6]"\ntask_port = 3000\n',
    '[[host]]\nname = "g[1-4"\naddress = "10.0.0.1"\n',
    '[[host]]\nname = "g[1-4]"\naddress = "10.0.0.[1-5]"\n',
    '[[host]]\nname = "g[1-4]"\naddress = "10.0.0.1"\n',
    '[[host]]\nname = "g"\nssh = "10.0.0.[1-4]"\n',
    '[[host]]\nssh = "my+gpu"\n',
    '[[host]]\nssh = "local"\n',
    '[[host]]\nname = "me"\naddress = "127.0.0.1"\nssh = "local"\n' + ONE,
    '[defaults]\nworkdir = "/data/o"\nstate = "/data//o"\n' + ONE,
    "[defaults]\ntask_port = 65535\ntasks = 2\n" + TWO,
    '[[host]]\nname = "a"\nssh = "gpu-01"\n[[host]]\nname = "b"\nssh = "gpu-01"\n',
    '[[host]]\nname = "a"\nssh = "gpu"\ntasks = 4\n[[host]]\nname = "b"\nssh = "gpu"\ntask_port = 2224\ntasks = 4\n',
    '[[host]]\nname = "a"\nssh = "local"\naddress = "127.0.0.1"\n[[host]]\nname = "b"\nssh = "local"\naddress = "127.0.0.2"\n',
    '[[host]]\naddress = "127.0.0.[1-4]"\n',
    '[[host]]\naddress = "10.0.0.1"\n[[host]]\naddress = "10.0.0.1"\ntask_port = 3000\n',
    '[defaults]\nrole = "chief"\n' + TWO,
    TWO + 'role = "evaluator"\n[[host]]\nssh = "c"\nrole = "evaluator"\n',
    TWO + 'role = "ps"\n',
    TWO + 'spare = true\nrole = "ps"\n',
    ONE + "spare = true\n",
    "[defaults]\ndevices = [0]\ntasks = 2\n" + TWO,
    ONE + 'devices = [0]\n[job.env]\nCUDA_VISIBLE_DEVICES = "0"\n',
    ONE + 'devices = [0]\nenv = { CUDA_VISIBLE_DEVICES = "0" }\n',
    ONE + '[host.env]\nA = 1.5\n"B C" = "x"\n',
    ONE + '[job]\nsecrets = ["TOKEN"]\nenv = { TOKEN = "abc" }\n',
    '[defaults.env]\nTOKEN = "abc"\n[[host]]\nssh = "gpu-01"\n[job]\nsecrets = ["TOKEN"]\n',
    ONE + '[job]\nsecrets = ["A"]\nforward = ["A"]\n',
    ONE + '[job]\nforward = ["A"]\nenv = { A = "1" }\n',
    "a = " + "[" * 5000,
    "a = " + "1" * 5000,
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
        config.parse(text)
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
        ("file", "", IN_A_FILE),
    ],
)
def test_mistakes(name: str, before: str, texts: tuple[str | bytes, ...]) -> None:
    def row(text: str | bytes) -> str:
        whole = text if isinstance(text, bytes) else before + text
        return f"{text[:300]!r}\n    " + mistakes(whole).replace("\n", "\n    ") + "\n"

    matches_golden(f"config/{name}.txt", "".join(map(row, texts)))


def test_a_folder_may_have_a_dollar_in_its_name() -> None:
    (host,) = config.parse(ONE + 'workdir = "/data/a user\'s $(folder)"\n').hosts
    assert host.workdir == "/data/a user's $(folder)"


@pytest.mark.parametrize(
    "name", ["localhost", "LocalHost", "ip6-localhost", "node1.localhost", "127.8.8.8", "::1"]
)
def test_every_name_of_the_loopback_is_known(name: str) -> None:
    with pytest.raises(UsageError) as caught:
        config.parse(f'[[host]]\nname = "me"\nssh = "gpu-02"\naddress = "{name}"\n' + ONE)
    assert f"{name} means every machine itself" in caught.value.why


def test_what_is_missing_is_not_asked_for_while_something_could_not_be_read() -> None:
    text = ONE + 'role = "ps"\n[[host]]\nname = "boss"\nrole = "cheif"\n'
    with pytest.raises(UsageError) as caught:
        config.parse(text)
    assert caught.value.why.count("\n") == 0


def test_a_secret_in_a_broken_line_is_not_shown() -> None:
    assert "hunter2" not in mistakes('[job.env]\nTOKEN = "hunter2\n')


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    missing, folder, other = tmp_path / "missing.toml", tmp_path / "folder", tmp_path / "other"
    for made in (folder, other):
        made.mkdir()
    (folder / "hosts.toml").touch()
    rows = {
        missing: (f"there is no {missing}", "", "write two lines, [[host]] and ssh ="),
        folder: (f"{folder} is a folder", "", f"`--hosts {folder}/hosts.toml`"),
        other: (f"{other} is a folder", "", "name a file with --hosts"),
        missing / "x\0": (f"cannot read {missing}/x\0", "its name holds a NUL character", ""),
    }
    for path, (what, why, hint) in rows.items():
        with pytest.raises(UsageError) as caught:
            config.load(path)
        assert (caught.value.what, caught.value.why) == (what, why)
        assert caught.value.hint.startswith(hint)


def test_an_inventory_has_a_bound(tmp_path: Path) -> None:
    path = tmp_path / "hosts.toml"
    path.write_bytes(b"#" * (2 << 20))
    with pytest.raises(UsageError, match="cannot read") as refused:
        config.load(path)
    assert refused.value.why == "it has 2.1 MB, and may have 1.0 MB"
