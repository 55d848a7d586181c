"""Mistakes in hosts.toml: each is one line, with its place, and none only follows from another."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orchestrator.config.load import load, parse
from orchestrator.errors import ExitStatus, UsageError
from tests.golden import matches_golden

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
    'workdir = ""',
    'user = "a@b"',
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
    ONE.encode("utf-16"),
    ONE.encode("utf-16-le"),
    "[[host]]\nssh = \u2018gpu-01\u2019\n",
    '[[host]]\nssh = "gpu-01"\n[job]\ncommand = “train.py --name it”\n',
    "hosts:\n  - ssh: gpu-01\n",
    "---\nhost:\n",
    '{"host": [{"ssh": "gpu-01"}]}\n',
    '[{"ssh": "gpu-01"}]\n',
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
def test_mistakes(name: str, before: str, texts: tuple[str | bytes, ...]) -> None:
    def row(text: str | bytes) -> str:
        whole = text if isinstance(text, bytes) else before + text
        return f"{text[:300]!r}\n    " + mistakes(whole).replace("\n", "\n    ") + "\n"

    matches_golden(f"config/{name}.txt", "".join(map(row, texts)))


def test_a_secret_in_a_broken_line_is_not_shown() -> None:
    assert "hunter2" not in mistakes('[job.env]\nTOKEN = "hunter2\n')


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    missing, folder, fifo, zero, large = (
        tmp_path / name for name in ("missing.toml", "folder", "fifo", "zero", "large")
    )
    folder.mkdir()
    os.mkfifo(fifo)
    zero.symlink_to("/dev/zero")
    large.write_bytes(b"#" * (2 << 20))
    rows = {
        missing: "No such file or directory",
        **dict.fromkeys((folder, fifo, zero), "it is no regular file"),
        large: "it has 2.1 MB, and may have 1.0 MB",
        missing / "x\0": "its name holds a NUL character",
    }
    for path, why in rows.items():
        with pytest.raises(UsageError) as caught:
            load(path)
        assert (caught.value.what, caught.value.why) == (f"cannot read {path}", why)
