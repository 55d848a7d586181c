"""What a person reads about each mistake in hosts.toml: the whole line, and no second one that follows from it."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator import config
from orchestrator.errors import ExitStatus, UsageError

ONE = '[[host]]\nssh = "gpu-01"\n'
TWO = ONE + '[[host]]\nssh = "gpu-02"\n'


def host(line: str) -> str:
    return ONE + line


def job(line: str) -> str:
    return ONE + "[job]\n" + line


ROWS: dict[str, tuple[str | bytes, *tuple[str, ...]]] = {
    # The file as a whole
    "empty": ("", "x"),
    "only comments": ("# nothing yet\n", "x"),
    "not UTF-8": (b'[[host]]\nssh = "caf\xe9"\n', "x"),
    "UTF-16": ("[[host]]\n".encode("utf-16"), "x"),
    "an open quote": ('[[host]]\nssh = "gpu-01\n', "x"),
    "no value": ("[[host]]\nssh =\n", "x"),
    "no quotes": ("[[host]]\nssh = gpu-01\n", "x"),
    "ends in a list": ('[[host]]\nssh = "a"\ndevices = [1,', "x"),
    "a key twice": ('[[host]]\nssh = "a"\nssh = "b"\n', "x"),
    "a table twice": (ONE + "[job]\n[job]\n", "x"),
    "very deep": ("a = " + "[" * 5000, "x"),
    "a very long number": ("a = " + "1" * 5000, "x"),
    # Tables
    "[host]": ('[host]\nssh = "a"\n', "x"),
    "host as text": ('host = "gpu-01"\n', "x"),
    "host as list": ('host = ["gpu-01"]\n', "x"),
    "[[hosts]]": ('[[hosts]]\nssh = "a"\n', "x"),
    "[default]": ("[default]\n" + ONE, "x"),
    "[[defaults]]": ("[[defaults]]\n" + ONE, "x"),
    "[[job]]": (ONE + "[[job]]\n", "x"),
    "job as text": ('job = "train.py"\n' + ONE, "x"),
    "[cluster]": (ONE + "[cluster]\n", "x"),
    "a key before any table": ("task_port = 3000\n" + ONE, "x"),
    "an unknown key before any table": ("zzz = 3000\n" + ONE, "x"),
    # Keys
    "a typo": (host("task_prot = 3000\n"), "x"),
    "a dash": (host("task-port = 3000\n"), "x"),
    "upper case": (host('User = "a"\n'), "x"),
    "from another tool": (host('hostname = "a"\n'), "x"),
    "far from everything": (host("zzz = 1\n"), "x"),
    "of another table": (host("grace = 1\n"), "x"),
    "of a host": (job("tasks = 1\n"), "x"),
    "name in defaults": ('[defaults]\nname = "a"\n' + ONE, "x"),
    # Names, ssh, address
    "nothing": ("[[host]]\n", "x"),
    "only a port": ("[[host]]\ntask_port = 3000\n", "x"),
    "name is a number": ("[[host]]\nname = 1\n", "x"),
    "name is empty": ('[[host]]\nname = ""\n', "x"),
    "name with blanks": ('[[host]]\nname = " a"\n', "x"),
    "name of two words": ('[[host]]\nname = "gpu 1"\naddress = "10.0.0.1"\n', "x"),
    "name with an escape": ('[[host]]\nname = "\\u001b[2J"\naddress = "10.0.0.1"\n', "x"),
    "name twice": ('[[host]]\nname = "a"\n[[host]]\nname = "a"\naddress = "10.0.0.2"\nssh = "b"\n', "x"),
    "ranges overlap": ('[[host]]\nname = "g[1-4]"\n[[host]]\nname = "g[3-6]"\ntask_port = 3000\n', "x"),
    "a range backwards": ('[[host]]\nname = "g[4-1]"\n', "x"),
    "a range of letters": ('[[host]]\nname = "g[a-c]"\n', "x"),
    "an empty range": ('[[host]]\nname = "g[]"\n', "x"),
    "a range padded oddly": ('[[host]]\nname = "g[01-8]"\n', "x"),
    "a range with a number twice": ('[[host]]\nname = "g[1-4,3]"\n', "x"),
    "a huge range": ('[[host]]\nname = "g[1-99999999]"\n', "x"),
    "a huge product": ('[[host]]\nname = "g[1-999]-[1-999]"\n', "x"),
    "an open range": ('[[host]]\nname = "g[1-4"\naddress = "10.0.0.1"\n', "x"),
    "ranges of two lengths": ('[[host]]\nname = "g[1-4]"\naddress = "10.0.0.[1-5]"\n', "x"),
    "one address for a range": ('[[host]]\nname = "g[1-4]"\naddress = "10.0.0.1"\n', "x"),
    "one name for a range": ('[[host]]\nname = "g"\nssh = "10.0.0.[1-4]"\n', "x"),
    "ssh with a wrong port": ('[[host]]\nssh = "gpu-01:99999"\n', "x"),
    "ssh with an empty port": ('[[host]]\nssh = "gpu-01:"\n', "x"),
    "ssh as url": ('[[host]]\nssh = "ssh://gpu-01"\n', "x"),
    "ssh with an option": ('[[host]]\nssh = "-oProxyCommand=reboot"\n', "x"),
    "ssh with options": ('[[host]]\nssh = "gpu-01 -p 22"\n', "x"),
    "ssh without a host": ('[[host]]\nssh = "train@"\n', "x"),
    "ssh without a user": ('[[host]]\nssh = "@gpu-01"\n', "x"),
    "ssh with IPv6 and a port, no brackets": ('[[host]]\nssh = "fd00::5:22"\n', "x"),
    "ssh with an open bracket": ('[[host]]\nssh = "[fd00::5"\n', "x"),
    "ssh and user": ('[[host]]\nssh = "a@gpu-01"\nuser = "b"\n', "x"),
    "ssh and port": ('[[host]]\nssh = "gpu-01:2200"\nport = 22\n', "x"),
    "an alias no one else knows": ('[[host]]\nssh = "my+gpu"\n', "x"),
    "local without an address": ('[[host]]\nssh = "local"\n', "x"),
    "address with a port": ('[[host]]\naddress = "10.0.0.1:10090"\n', "x"),
    "address with a user": ('[[host]]\naddress = "train@10.0.0.1"\n', "x"),
    "address as url": ('[[host]]\naddress = "http://10.0.0.1"\n', "x"),
    "address beyond 255": ('[[host]]\naddress = "172.17.0.256"\n', "x"),
    "address of three numbers": ('[[host]]\naddress = "172.17.6"\n', "x"),
    "address with zeros": ('[[host]]\naddress = "172.17.0.06"\n', "x"),
    "address no host name": ('[[host]]\naddress = "gpu_01!"\n', "x"),
    "address with an umlaut": ('[[host]]\naddress = "größe"\n', "x"),
    "address 0.0.0.0": ('[[host]]\naddress = "0.0.0.0"\n', "x"),
    "IPv6 without brackets before a port": ('[[host]]\naddress = "2001:db8::1:10090"\n', "x"),
    "IPv6 with brackets and a port": ('[[host]]\naddress = "[2001:db8::1]:10090"\n', "x"),
    "IPv6 too long": ('[[host]]\naddress = "1:2:3:4:5:6:7:8:9:a"\n', "x"),
    "IPv6 with a scope": ('[[host]]\naddress = "fe80::1%eth0"\n', "x"),
    "IPv4 in brackets": ('[[host]]\naddress = "[10.0.0.1]"\n', "x"),
    "loopback among others": ('[[host]]\nname = "me"\naddress = "127.0.0.1"\nssh = "local"\n' + ONE, "x"),
    # Ports
    "port as text": (host('port = "22"\n'), "x"),
    "port 0": (host("port = 0\n"), "x"),
    "port as a fraction": (host("port = 22.5\n"), "x"),
    "task_port of root": (host("task_port = 80\n"), "x"),
    "task_port too high": (host("task_port = 70000\n"), "x"),
    "task_port as a range": (host('task_port = "2222-2225"\n'), "x"),
    "ports beyond the last": (host("task_port = 65530\ntasks = 10\n"), "x"),
    "ports beyond the last, by defaults": ("[defaults]\ntask_port = 65535\ntasks = 2\n" + TWO, "x"),
    "the same port twice": (
        '[[host]]\nname = "a"\nssh = "gpu-01"\n[[host]]\nname = "b"\nssh = "gpu-01"\n',
        "x",
    ),
    "ports overlap": (
        '[[host]]\nname = "a"\nssh = "gpu"\ntasks = 4\n'
        '[[host]]\nname = "b"\nssh = "gpu"\ntask_port = 2224\ntasks = 4\n',
        "x",
    ),
    "the same port on loopback": (
        '[[host]]\nname = "a"\nssh = "local"\naddress = "127.0.0.1"\n'
        '[[host]]\nname = "b"\nssh = "local"\naddress = "127.0.0.2"\n',
        "x",
    ),
    "the same port on a range of loopbacks": ('[[host]]\naddress = "127.0.0.[1-4]"\n', "x"),
    "no name and the same address": (
        '[[host]]\naddress = "10.0.0.1"\n[[host]]\naddress = "10.0.0.1"\ntask_port = 3000\n',
        "x",
    ),
    # Programs and folders
    "python in a relative folder": (host('python = "venv/bin/python"\n'), "x"),
    "python with options": (host('python = "python3 -u"\n'), "x"),
    "python a folder": (host('python = "/usr/bin/"\n'), "x"),
    "agent_python an option": (host('agent_python = "-c"\n'), "x"),
    "workdir relative": (host('workdir = "orchestrate"\n'), "x"),
    "workdir a list": (host('workdir = ["/a"]\n'), "x"),
    "state relative": (host('state = "./state"\n'), "x"),
    "identity public": (host('identity = "~/.ssh/id_ed25519.pub"\n'), "x"),
    "user with a host": (host('user = "a@b"\n'), "x"),
    # Tasks, roles, devices
    "tasks 0": (host("tasks = 0\n"), "x"),
    "tasks as text": (host('tasks = "2"\n'), "x"),
    "tasks true": (host("tasks = true\n"), "x"),
    "a wrong role": (host('role = "cheif"\n'), "x"),
    "a role from elsewhere": (host('role = "parameter_server"\n'), "x"),
    "a role like nothing": (host('role = "zzz"\n'), "x"),
    "two chiefs": ('[defaults]\nrole = "chief"\n' + TWO, "x"),
    "a chief of two tasks": (host('role = "chief"\ntasks = 2\n'), "x"),
    "two evaluators": (TWO + 'role = "evaluator"\n[[host]]\nssh = "c"\nrole = "evaluator"\n', "x"),
    "only an evaluator": (host('role = "evaluator"\n'), "x"),
    "ps without a chief": (TWO + 'role = "ps"\n', "x"),
    "ps without a worker": (host('role = "ps"\n[[host]]\nssh = "b"\nrole = "chief"\n'), "x"),
    "a spare with a role": (TWO + 'spare = true\nrole = "ps"\n', "x"),
    "only spares": (host("spare = true\n"), "x"),
    "spare as text": (host('spare = "yes"\n'), "x"),
    "spare as a number": (host("spare = 2\n"), "x"),
    "devices as text": (host('devices = "0,1"\n'), "x"),
    "devices as a number": (host("devices = 2\n"), "x"),
    "a device twice": (host('devices = [0, "0"]\n'), "x"),
    "a device below zero": (host("devices = [-1]\n"), "x"),
    "a device true": (host("devices = [true]\n"), "x"),
    "devices that do not divide": (host("devices = [0, 1, 2]\ntasks = 2\n"), "x"),
    "devices of defaults that do not divide": ("[defaults]\ndevices = [0]\ntasks = 2\n" + TWO, "x"),
    "devices and CUDA_VISIBLE_DEVICES": (
        host('devices = [0]\nenv = { CUDA_VISIBLE_DEVICES = "0" }\n'),
        "x",
    ),
    # Environment
    "env as text": (host('env = "A=1"\n'), "x"),
    "env with a number": (host("env = { A = 1 }\n"), "x"),
    "env with a boolean": (job("env = { A = true }\n"), "x"),
    "env with a list": (host('env = { A = ["a"] }\n'), "x"),
    "env with two mistakes": (host('[host.env]\nA = 1.5\n"B C" = "x"\n'), "x", "x"),
    "env with NUL": (host('env = { A = "\\u0000" }\n'), "x"),
    "env with TF_CONFIG": (job('env = { TF_CONFIG = "{}" }\n'), "x"),
    "env with ORCHESTRATE_": (job('env = { ORCHESTRATE_RUN = "a" }\n'), "x"),
    "a secret in env": (job('secrets = ["TOKEN"]\nenv = { TOKEN = "abc" }\n'), "x"),
    "a secret in a host's env": (host('env = { TOKEN = "abc" }\n[job]\nsecrets = ["TOKEN"]\n'), "x"),
    "a secret in defaults": ('[defaults.env]\nTOKEN = "abc"\n' + job('secrets = ["TOKEN"]\n'), "x"),
    "a secret with its value": (job('secrets = ["TOKEN=abc"]\n'), "x"),
    "a secret forwarded": (job('secrets = ["A"]\nforward = ["A"]\n'), "x"),
    "forward and env": (job('forward = ["A"]\nenv = { A = "1" }\n'), "x"),
    "forward as text": (job('forward = "A"\n'), "x"),
    "forward twice": (job('forward = ["A", "A"]\n'), "x"),
    "forward a number": (job("forward = [1]\n"), "x"),
    "forward a pattern": (job('forward = ["WANDB_*"]\n'), "x"),
    "forward TF_CONFIG": (job('forward = ["TF_CONFIG"]\n'), "x"),
    # The rest of [job]
    "command with an open quote": (job("command = \"train.py --name 'a\"\n"), "x"),
    "command with a number": (job('command = ["train.py", 3]\n'), "x"),
    "command empty": (job('command = ""\n'), "x"),
    "command an empty list": (job("command = []\n"), "x"),
    "command a boolean": (job("command = true\n"), "x"),
    "command for a shell": (job('command = "cd src && python train.py"\n'), "x"),
    "command with an assignment": (job('command = "A=1 train.py"\n'), "x"),
    "setup a list": (job('setup = ["a"]\n'), "x"),
    "setup empty": (job('setup = " "\n'), "x"),
    "grace as text": (job('grace = "30s"\n'), "x"),
    "grace in words": (job('grace = "long"\n'), "x"),
    "grace below zero": (job("grace = -1\n"), "x"),
    "grace for ever": (job("grace = inf\n"), "x"),
    "grace not a number": (job("failure_grace = nan\n"), "x"),
    "lifeline a boolean": (job("lifeline = false\n"), "x"),
    "lifeline a date": (job("lifeline = 2024-01-01\n"), "x"),
    "ignore as text": (job('ignore = "*.ckpt"\n'), "x"),
    "ignore empty": (job('ignore = [""]\n'), "x"),
    "validate false": (job("validate = false\n"), "x"),
    "legacy_keras as text": (job('legacy_keras = "false"\n'), "x"),
}


@pytest.mark.parametrize("row", ROWS)
def test_each_mistake_is_one_line(row: str) -> None:
    text, *expected = ROWS[row]
    with pytest.raises(UsageError) as caught:
        config.parse(text)
    assert caught.value.why.split("\n") == expected
    assert caught.value.what.startswith(f"hosts.toml has {len(expected)} mistake")
