"""What a person reads about each mistake in hosts.toml: that line, and no other that only follows from it."""

# ruff: noqa: E501 - a line is what the user reads

from __future__ import annotations

import time
from pathlib import Path

import pytest

from orchestrator import config
from orchestrator.errors import ExitStatus, UsageError

ONE = '[[host]]\nssh = "gpu-01"\n'
TWO = ONE + '[[host]]\nssh = "gpu-02"\n'


# fmt: off
# Under [[host]], after ssh = "gpu-01": each is said of line 3
IN_A_HOST = (
    ("task_prot = 3000", "task_prot: is not a key; did you mean task_port?"),
    ("task-port = 3000", "task-port: is not a key; did you mean task_port?"),
    ('User = "a"', "User: is not a key; did you mean user?"),
    ('hostname = "a"', "hostname: is not a key; did you mean ssh?"),
    ("zzz = 1", "zzz: is not a key; the keys are name, ssh, address, user, port, identity, ssh_config, python, agent_python, workdir, state, task_port, tasks, role, devices, spare and env"),
    ("grace = 1", "grace: belongs under [job]"),
    ('port = "22"', 'port: must be a whole number, not "22"; write 22, without quotes'),
    ("port = 0", "port: must be from 1 to 65535, not 0"),
    ("port = 22.5", "port: must be a whole number, not 22.5"),
    ("task_port = 80", "task_port: must be from 1024 to 65535, not 80: lower ports belong to root"),
    ("task_port = 70000", "task_port: must be from 1024 to 65535, not 70000"),
    ('task_port = "2222-2225"', 'task_port: must be a whole number, not "2222-2225"'),
    ("task_port = 65530\ntasks = 10", "task_port: the ports of 10 tasks would end at 65539, beyond 65535"),
    ('python = "venv/bin/python"', 'python: must be a name on the PATH, a full path or start with ~/, not "venv/bin/python"'),
    ('python = "python3 -u"', 'python: must be one program without arguments, not "python3 -u"'),
    ('python = "/usr/bin/"', 'python: must be a program, not a folder: "/usr/bin/"'),
    ('agent_python = "-c"', 'agent_python: must be a program, not an option: "-c"'),
    ('workdir = "orchestrate"', 'workdir: must be a full path or start with ~/, not "orchestrate"; write "~/orchestrate"'),
    ('workdir = "/"', 'workdir: must be a folder of its own, not "/"; write "~/orchestrate"'),
    ('workdir = "//"', 'workdir: must be a folder of its own, not "/"; write "~/orchestrate"'),
    ('workdir = "/tmp/."', 'workdir: must be a folder of its own, not "/tmp/."; write "/tmp/orchestrate"'),
    ('workdir = "/etc"', 'workdir: must not be in a folder of the system, as "/etc" is; write "~/orchestrate"'),
    ('workdir = "/proc/x"', 'workdir: must not be in a folder of the system, as "/proc/x" is; write "~/orchestrate"'),
    ('workdir = "$HOME/o"', 'workdir: holds $, and no shell reads it: "$HOME/o"; write "~/o"'),
    ('state = "/scratch/$USER"', 'state: holds $, and no shell reads it: "/scratch/$USER"; write out what it stands for'),
    ('workdir = "."', 'workdir: must be a full path or start with ~/, not "."; write "~/orchestrate"'),
    ('workdir = ""', "workdir: is empty; leave the key out to get the default"),
    ('workdir = "~/../x"', 'workdir: must not lead through .., as "~/../x" does'),
    ('workdir = "~"', 'workdir: must be a folder of its own, not "~"; write "~/orchestrate"'),
    ('workdir = "~ada/"', 'workdir: must be a folder of its own, not "~ada"; write "~ada/orchestrate"'),
    ('state = "/"', 'state: must be a folder of its own, not "/"; write "/var/tmp/orchestrate"'),
    ('state = "/etc/o"', 'state: must not be in a folder of the system, as "/etc/o" is; write "/var/tmp/orchestrate"'),
    ('state = "~/./orchestrate"', 'state: is the workdir too, and logs go before what tasks write; write "~/orchestrate/state"'),
    ('workdir = ["/a"]', "workdir: must be a text in quotes, not a list"),
    ('state = "./state"', 'state: must be a full path or start with ~/, not "./state"; write "~/state"'),
    ('identity = "~/.ssh/id_ed25519.pub"', 'identity: "~/.ssh/id_ed25519.pub" is the public half of a key; name the private one: "~/.ssh/id_ed25519"'),
    ('user = "a@b"', 'user: is not a login name: "a@b"'),
    ("tasks = 0", "tasks: must be from 1 to 1024, not 0: to keep a host out of runs, write spare = true"),
    ('tasks = "2"', 'tasks: must be a whole number, not "2"; write 2, without quotes'),
    ("tasks = true", "tasks: must be a whole number, not true"),
    ('role = "cheif"', 'role: must be chief, worker, ps or evaluator, not "cheif"; did you mean chief?'),
    ('role = "parameter_server"', 'role: must be chief, worker, ps or evaluator, not "parameter_server"; did you mean ps?'),
    ('role = "zzz"', 'role: must be chief, worker, ps or evaluator, not "zzz"'),
    ('role = "chief"\ntasks = 2', "role: makes 2 tasks the chief; there can be only one"),
    ('role = "evaluator"', "role: an evaluator alone has nothing to evaluate; add a host that trains"),
    ('role = "ps"\n[[host]]\nssh = "b"\nrole = "chief"', "role: ps needs a worker: with ParameterServerStrategy the workers compute, the chief does not; add a host without a role"),
    ('spare = "yes"', 'spare: must be true or false, without quotes, not "yes"; write true'),
    ("spare = 2", "spare: must be true or false, not 2"),
    ('devices = "0,1"', "devices: must be a list such as [0, 1], not a text"),
    ("devices = 2", "devices: must be a list such as [0, 1], not a number"),
    ('devices = [0, "0"]', "devices: names GPU 0 twice"),
    ("devices = [-1]", "devices: -1 is not a GPU; write its number or its UUID (nvidia-smi -L)"),
    ("devices = [true]", "devices: true is not a GPU; write its number or its UUID (nvidia-smi -L)"),
    ("devices = [0, 1, 2]\ntasks = 2", "devices: 3 GPUs cannot be shared out evenly to 2 tasks"),
    ('env = "A=1"', 'env: must be a table such as { NAME = "value" }, not a text'),
    ("env = { A = 1 }", "env.A: must be a text, not a number; write its value in quotes"),
    ('env = { A = ["a"] }', "env.A: must be a text in quotes, not a list"),
    ('env = { A = "\\u0000" }', "env.A: holds a NUL character, which no environment can carry"),
    ('env = { TOKEN = "abc" }\n[job]\nsecrets = ["TOKEN"]', "env.TOKEN: is listed in `secrets`; remove the value here, it is read from your environment"),
)

# Under [job]: each is said of line 4
IN_THE_JOB = (
    ("tasks = 1", "tasks: belongs under [defaults] or [[host]]"),
    ("env = { A = true }", "env.A: must be a text, not true or false; write its value in quotes"),
    ('env = { TF_CONFIG = "{}" }', "env.TF_CONFIG: is written by orchestrate, for each task; it cannot be set by hand"),
    ('env = { ORCHESTRATE_RUN = "a" }', "env.ORCHESTRATE_RUN: is one of orchestrate's own names (ORCHESTRATE_...)"),
    ('secrets = ["TOKEN=abc"]', 'secrets: "TOKEN" is given a value; list only the name'),
    ('forward = "A"', 'forward: must be a list; write ["A"]'),
    ('forward = ["A", "A"]', "forward: names A twice"),
    ("forward = [1]", "forward: must be a list of texts in quotes, but 1 is a number"),
    ('forward = ["WANDB_*"]', 'forward: "WANDB_*" is not a name for a variable (letters, digits and _, and no digit first)'),
    ('forward = ["TF_CONFIG"]', 'forward: "TF_CONFIG" is written by orchestrate, for each task; it cannot be set by hand'),
    ('command = "train.py --name \'a"', 'command: cannot be split into words: a quote is not closed in "train.py --name \'a"'),
    ('command = ["train.py", 3]', 'command: must be a list of texts; write "3" in quotes'),
    ('command = ""', "command: is empty; leave the key out to run worker_entry"),
    ("command = []", "command: is empty; leave the key out to run worker_entry"),
    ("command = true", 'command: must be a text or a list such as ["train.py", "--epochs", "3"], not true or false'),
    ('command = "cd src && python train.py"', 'command: starts with "cd", which only a shell knows; use `setup` or `env`'),
    ('command = "A=1 train.py"', 'command: starts with "A=1", which only a shell knows; use `setup` or `env`'),
    ('command = "train.py && echo ok"', "command: holds \"&&\", but no shell reads it; use `setup`, or bash -c '...'"),
    ('command = "train.py --out $SCRATCH/x"', "command: holds \"$SCRATCH/x\", but no shell fills it in; write it out, or bash -c '...'"),
    ('command = "train.py --data ~/data"', "command: holds \"~/data\", but no shell fills it in; write it out, or bash -c '...'"),
    ('setup = ["a"]', "setup: must be a text in quotes, not a list"),
    ('setup = " "', "setup: is empty; leave the key out if there is nothing to run"),
    ('grace = "30s"', 'grace: must be a number of seconds, not "30s"; write 30'),
    ('grace = "long"', 'grace: must be a number of seconds, not "long"'),
    ("grace = -1", "grace: must be from 0 to 31536000 seconds, not -1"),
    ("grace = inf", "grace: must be from 0 to 31536000 seconds, not inf"),
    ("failure_grace = nan", "failure_grace: must be from 0 to 31536000 seconds, not nan"),
    ("lifeline = false", "lifeline: must be a number of seconds, not false"),
    ("lifeline = 2024-01-01", "lifeline: must be a number of seconds, not 2024-01-01"),
    ('ignore = "*.ckpt"', 'ignore: must be a list; write ["*.ckpt"]'),
    ('ignore = [""]', "ignore: holds an empty text"),
    ("validate = false", "validate: must be a command line; to launch without validation use --validate never"),
    ('on_hang = "kill"', 'on_hang: must be report, stop or restart, not "kill"'),
    ('on_hang = "restrat"', 'on_hang: must be report, stop or restart, not "restrat"; did you mean restart?'),
    ('hang_timeout = "10 min"', 'hang_timeout: must be a number of seconds, not "10 min"; write 600'),
    ('hang_timeout = "2h"', 'hang_timeout: must be a number of seconds, not "2h"; write 7200'),
    ('legacy_keras = "false"', 'legacy_keras: must be true or false, without quotes, not "false"; write false'),
)

# The only line under [[host]]
OF_A_TARGET = (
    ('name = " a"', 'name: has spaces around it: " a"'),
    ('name = "g[4-1]"', "name: [4-1] counts down; write [1-4]"),
    ('name = "g[a-c]"', "name: [a-c] is not a range; write [01-08] or [1,3,5-7]"),
    ('name = "g[]"', "name: [] is not a range; write [01-08] or [1,3,5-7]"),
    ('name = "g[01-8]"', "name: [01-8] pads its two ends differently; write [01-08] or [1-8]"),
    ('name = "g[1-4,3]"', "name: [1-4,3] names 3 twice"),
    ('name = "g[1-99999999]"', "name: [1-99999999] stands for more than 4096 hosts"),
    ('name = "g[1-999]-[1-999]"', "name: stands for 998001 hosts; at most 4096 are allowed"),
    ('ssh = "gpu-01:99999"', 'ssh: has a wrong port after the colon (1 to 65535): "gpu-01:99999"'),
    ('ssh = "gpu-01:"', 'ssh: has a wrong port after the colon (1 to 65535): "gpu-01:"'),
    ('ssh = "ssh://gpu-01"', 'ssh: must be written as for ssh, without "ssh://"'),
    ('ssh = "-oProxyCommand=reboot"', 'ssh: must not start with a dash: "-oProxyCommand=reboot"'),
    ('ssh = "gpu-01 -p 22"', 'ssh: must be one word as for ssh, not "gpu-01 -p 22"; options belong in ~/.ssh/config'),
    ('ssh = "train@"', 'ssh: names no host: "train@"'),
    ('ssh = "@gpu-01"', 'ssh: has no user before the @: "@gpu-01"'),
    ('ssh = "fd00::5:22"', "ssh: needs brackets around its IPv6 address, to tell it from the port: [fd00::5:22] or [fd00::5]:22"),
    ('ssh = "[fd00::5"', 'ssh: has a [ without a ]: "[fd00::5"'),
    ('address = "10.0.0.1:10090"', 'address: must be without a port, not "10.0.0.1:10090"; write task_port = 10090'),
    ('address = "train@10.0.0.1"', 'address: must be a host without a user, not "train@10.0.0.1"; the user belongs in `ssh` or `user`'),
    ('address = "http://10.0.0.1"', 'address: must be an address or a host name alone, not "http://10.0.0.1"'),
    ('address = "172.17.0.256"', 'address: is not an IPv4 address: "172.17.0.256" (four numbers from 0 to 255, no leading zeros)'),
    ('address = "172.17.6"', 'address: is not an IPv4 address: "172.17.6" (four numbers from 0 to 255, no leading zeros)'),
    ('address = "172.17.0.06"', 'address: is not an IPv4 address: "172.17.0.06" (four numbers from 0 to 255, no leading zeros)'),
    ('address = "gpu_01!"', 'address: is not a host name: "gpu_01!" (letters, digits, - and . between them)'),
    ('address = "größe"', 'address: is not a host name: "größe" (letters, digits, - and . between them)'),
    ('address = "0.0.0.0"', 'address: must be an address other tasks can connect to, not "0.0.0.0"'),
    ('address = "2001:db8::1:10090"', "address: needs brackets around its IPv6 address, to tell it from the port: [2001:db8::1]:10090"),
    ('address = "[2001:db8::1]:10090"', 'address: must be without a port, not "[2001:db8::1]:10090"; write task_port = 10090'),
    ('address = "1:2:3:4:5:6:7:8:9:a"', 'address: is not an IPv6 address: "1:2:3:4:5:6:7:8:9:a"'),
    ('address = "fe80::1%eth0"', 'address: must be without %eth0, which means something on one machine only: "fe80::1%eth0"'),
    ('address = "[10.0.0.1]"', "address: [10.0.0.1] is not a range; write [01-08] or [1,3,5-7]"),
)

# Whole files
IN_A_FILE = (
    ("", 'there is no [[host]]; write one for every machine, and in it ssh = "gpu-01"'),
    ("# nothing yet\n", 'there is no [[host]]; write one for every machine, and in it ssh = "gpu-01"'),
    (b'[[host]]\nssh = "caf\xe9"\n', "line 2: byte 0xe9 is not UTF-8; save the file as UTF-8"),
    ("[[host]]\n".encode("utf-16"), "the file is UTF-16; save it as UTF-8"),
    ('[[host]]\nssh = "gpu-01\n', "line 2, column 14, ssh: a quote is not closed on this line"),
    ("[[host]]\nssh = \u201cgpu-01\u201d\n", 'line 2, column 7, ssh: \u201c is not a quote that TOML knows; write " in its place'),
    ("[[host]]\nssh\u00a0= 1\n", "line 2, column 4, ssh: an invisible character stands here (U+00A0); remove it"),
    ("; hosts\n", "line 1, column 1: here should be a key or a [table]; a comment starts with #"),
    ("host:\n  - gpu-01\n", "line 1, column 5: a key needs = and a value after it"),
    ('[[host]]\npython = "C:\\q"\n', "line 2, column 15, python: a text in double quotes cannot hold a single \\; write '...' or \\\\"),
    ('[[host]]\nworkdir = "C:\\users"\n', "line 2, column 16, workdir: a text in double quotes cannot hold a single \\; write '...' or \\\\"),
    (ONE + "spare = True\n", "line 3, column 9, spare: True is written true in TOML"),
    (ONE + "[job]\nlegacy_keras = no\n", "line 4, column 16, legacy_keras: no is written false in TOML"),
    (ONE + "[job]\nsetup = None\n", "line 4, column 9, setup: None is not a value of TOML; leave the key out"),
    ('[[host]]\nssh = "gpu-01,gpu-02"\n', 'line 2, [[host]] #1 (gpu-01,gpu-02), ssh: names several hosts: "gpu-01,gpu-02"; write a [[host]] for each, or a range'),
    ("[[host]]\nssh =\n", "line 2, column 6, ssh: there is no value that can be read; a text needs quotes"),
    ("[[host]]\nssh = gpu-01\n", "line 2, column 7, ssh: there is no value that can be read; a text needs quotes"),
    ('[[host]]\nssh = "a"\ndevices = [1,', "end of file: the file ends in the middle of a value"),
    ('[[host]]\nssh = "a"\nssh = "b"\n', "line 3, column 10, ssh: is given a second time in the same table"),
    (ONE + "[job]\n[job]\n", "line 4, column 5, [job]: is declared a second time"),
    ("a = " + "[" * 5000, "lists or tables are nested too deep"),
    ("a = " + "1" * 5000, "a number has too many digits"),
    ('[host]\nssh = "a"\n', "line 1, host: must be written with double brackets: [[host]]"),
    ('host = "gpu-01"\n', "line 1, host: must be tables, [[host]], not a text"),
    ('host = ["gpu-01"]\n', "line 1, host: must be tables, [[host]], not a list"),
    ('[[hosts]]\nssh = "a"\n', "line 1, hosts: is not a table; did you mean [[host]]?"),
    ("[default]\n" + ONE, "line 1, default: is not a table; did you mean [defaults]?"),
    ("[[defaults]]\n" + ONE, "line 1, defaults: can come only once; write [defaults]"),
    (ONE + "[[job]]\n", "line 3, job: can come only once; write [job]"),
    ('job = "train.py"\n' + ONE, "line 1, job: must be a table, [job]"),
    (ONE + "[cluster]\n", "line 3, cluster: is not a table; the tables are [defaults], [[host]], [job], [env] and [data]"),
    ("task_port = 3000\n" + ONE, "line 1, task_port: stands before any table; it belongs under [defaults] or [[host]]"),
    ("zzz = 3000\n" + ONE, "line 1, zzz: is not a table; the tables are [defaults], [[host]], [job], [env] and [data]"),
    ('[defaults]\nname = "a"\n' + ONE, "line 2, [defaults], name: is different for every host; it belongs under [[host]]"),
    ('[env]\nNCCL_DEBUG = "INFO"\n' + ONE, "line 2, [env], NCCL_DEBUG: is not a key; a variable of the tasks stands under [job.env]"),
    ("[job]\nOMP_NUM_THREADS = 1\n" + ONE, "line 2, [job], OMP_NUM_THREADS: is not a key; a variable of the tasks stands under [job.env]"),
    ('[env]\nPYTHON = "3.11"\n' + ONE, "line 2, [env], PYTHON: is not a key; did you mean python?"),
    ('[env]\nindex = "https://me:hunter2@packages.example/simple"\n' + ONE, "line 2, [env], index: holds a login, which others could read; leave it out, and give it to every machine in ~/.netrc, its uv.toml or UV_DEFAULT_INDEX"),
    ("[[host]]\n", "line 1, [[host]] #1: has no name, ssh or address; one of them is needed"),
    ("[[host]]\ntask_port = 3000\n", "line 1, [[host]] #1: has no name, ssh or address; one of them is needed"),
    ("[[host]]\nname = 1\n", 'line 2, [[host]] #1, name: must be a text in quotes, not a number; write "1"'),
    ('[[host]]\nname = ""\n', "line 2, [[host]] #1, name: is empty; leave the key out to get the default"),
    ('[[host]]\nname = "gpu 1"\naddress = "10.0.0.1"\n', 'line 2, [[host]] #1 (gpu 1), name: may have letters, digits, . _ and - only, and start with a letter or digit, not "gpu 1"'),
    ('[[host]]\nname = "\\u001b[2J"\naddress = "10.0.0.1"\n', 'line 2, [[host]] #1 (10.0.0.1), name: holds a character that cannot be printed: "\\u001b[2J"'),
    ('[[host]]\nname = "a"\n[[host]]\nname = "a"\naddress = "10.0.0.2"\nssh = "b"\n', "line 4, [[host]] #2 (a), name: a is in [[host]] #1 (a) too; every host needs a name of its own"),
    ('[[host]]\nname = "g[1-4]"\n[[host]]\nname = "g[3-6]"\ntask_port = 3000\n', "line 4, [[host]] #2 (g[3-6]), name: g[3-4] is in [[host]] #1 (g[1-4]) too; every host needs a name of its own"),
    ('[[host]]\nname = "g[1-4"\naddress = "10.0.0.1"\n', 'line 2, [[host]] #1 (g[1-4), name: has a [ without a ]: "g[1-4"'),
    ('[[host]]\nname = "g[1-4]"\naddress = "10.0.0.[1-5]"\n', "line 2, [[host]] #1 (g[1-4]), name: stands for 4 hosts, but address for 5 hosts; give both the same range"),
    ('[[host]]\nname = "g[1-4]"\naddress = "10.0.0.1"\n', "line 3, [[host]] #1 (g[1-4]), address: stands for 1 host, but name for 4 hosts; give both the same range"),
    ('[[host]]\nname = "g"\nssh = "10.0.0.[1-4]"\n', "line 2, [[host]] #1 (g), name: stands for 1 host, but ssh for 4 hosts; give both the same range"),
    ('[[host]]\nssh = "a@gpu-01"\nuser = "b"\n', 'line 3, [[host]] #1 (a@gpu-01), user: is "b", but ssh says "a"; keep one of the two'),
    ('[[host]]\nssh = "gpu-01:2200"\nport = 22\n', "line 3, [[host]] #1 (gpu-01:2200), port: is 22, but ssh says 2200; keep one of the two"),
    ('[[host]]\nssh = "my+gpu"\n', 'line 1, [[host]] #1 (my+gpu), address: is needed, since "my+gpu" is not a host name other tasks could use'),
    ('[[host]]\nssh = "local"\n', 'line 1, [[host]] #1 (local), address: is needed with ssh = "local"; "127.0.0.1" will do when every host is this machine'),
    ('[[host]]\nname = "me"\naddress = "127.0.0.1"\nssh = "local"\n' + ONE, "line 3, [[host]] #1 (me), address: 127.0.0.1 means every machine itself, so gpu-01 cannot reach this host there"),
    ('[defaults]\nworkdir = "/data/o"\nstate = "/data//o"\n' + ONE, 'line 3, [defaults], state: is the workdir too, and logs go before what tasks write; write "/data/o/state"'),
    ("[defaults]\ntask_port = 65535\ntasks = 2\n" + TWO, "line 2, [defaults], task_port: the ports of 2 tasks would end at 65536, beyond 65535"),
    ('[[host]]\nname = "a"\nssh = "gpu-01"\n[[host]]\nname = "b"\nssh = "gpu-01"\n', "line 4, [[host]] #2 (b), task_port: port 2222 is taken on that machine by [[host]] #1 (a); give this host another task_port, or write the machine once with tasks = 2"),
    ('[[host]]\nname = "a"\nssh = "gpu"\ntasks = 4\n[[host]]\nname = "b"\nssh = "gpu"\ntask_port = 2224\ntasks = 4\n', "line 8, [[host]] #2 (b), task_port: ports 2224-2225 are taken on that machine by [[host]] #1 (a); give this host another task_port, or write the machine once with tasks = 2"),
    ('[[host]]\nname = "a"\nssh = "local"\naddress = "127.0.0.1"\n[[host]]\nname = "b"\nssh = "local"\naddress = "127.0.0.2"\n', "line 5, [[host]] #2 (b), task_port: port 2222 is taken on that machine by [[host]] #1 (a); give this host another task_port, or write the machine once with tasks = 2"),
    ('[[host]]\naddress = "127.0.0.[1-4]"\n', "line 1, [[host]] #1 (127.0.0.[1-4]), task_port: port 2222 is taken on that machine by another host of this range; give this host another task_port, or write the machine once with tasks = 2"),
    ('[[host]]\naddress = "10.0.0.1"\n[[host]]\naddress = "10.0.0.1"\ntask_port = 3000\n', "line 3, [[host]] #2 (10.0.0.1), name: would be 10.0.0.1, as in [[host]] #1 (10.0.0.1); give one of them another name"),
    ('[defaults]\nrole = "chief"\n' + TWO, "line 5, [[host]] #2 (gpu-02), role: is a second chief, beside [[host]] #1 (gpu-01); there can be only one"),
    (TWO + 'role = "evaluator"\n[[host]]\nssh = "c"\nrole = "evaluator"\n', "line 8, [[host]] #3 (c), role: is a second evaluator, beside [[host]] #2 (gpu-02); there can be only one"),
    (TWO + 'role = "ps"\n', 'line 5, [[host]] #2 (gpu-02), role: ps needs a chief: ParameterServerStrategy runs the program there and drives the workers from it; give one host role = "chief"'),
    (TWO + 'spare = true\nrole = "ps"\n', "line 6, [[host]] #2 (gpu-02), role: a spare takes the role of the host it replaces; leave role out"),
    (ONE + "spare = true\n", "every host is a spare; at least one must run a task"),
    ("[defaults]\ndevices = [0]\ntasks = 2\n" + TWO, "line 2, [defaults], devices: 1 GPU cannot be shared out evenly to 2 tasks"),
    (ONE + 'devices = [0]\n[job.env]\nCUDA_VISIBLE_DEVICES = "0"\n', "line 5, [job], env.CUDA_VISIBLE_DEVICES: is what `devices` of a host sets; keep one of the two"),
    (ONE + 'devices = [0]\nenv = { CUDA_VISIBLE_DEVICES = "0" }\n', "line 4, [[host]] #1 (gpu-01), env.CUDA_VISIBLE_DEVICES: is what `devices` sets; keep one of the two"),
    (ONE + '[host.env]\nA = 1.5\n"B C" = "x"\n', "line 4, [[host]] #1 (gpu-01), env.A: must be a text, not a number; write its value in quotes", "line 5, [[host]] #1 (gpu-01), env.B C: is not a name for a variable (letters, digits and _, and no digit first)"),
    (ONE + '[job]\nsecrets = ["TOKEN"]\nenv = { TOKEN = "abc" }\n', "line 5, [job], env.TOKEN: is listed in `secrets`; remove the value here, it is read from your environment"),
    ('[defaults.env]\nTOKEN = "abc"\n' + ONE + '[job]\nsecrets = ["TOKEN"]\n', "line 2, [defaults], env.TOKEN: is listed in `secrets`; remove the value here, it is read from your environment"),
    (ONE + '[job]\nsecrets = ["A"]\nforward = ["A"]\n', "line 5, [job], forward: A is listed in `secrets` too; keep it there only"),
    (ONE + '[job]\nforward = ["A"]\nenv = { A = "1" }\n', "line 5, [job], env.A: is listed in `forward` too; keep one of the two"),
)
# fmt: on


def mistakes(text: str | bytes, source: str = "hosts.toml") -> list[str]:
    with pytest.raises(UsageError) as caught:
        config.parse(text, source)
    assert caught.value.status is ExitStatus.USAGE
    lines = caught.value.why.split("\n")
    assert caught.value.what == f"{source} has {len(lines)} mistake{'s' * (len(lines) > 1)}"
    return lines


@pytest.mark.parametrize(("text", "mistake"), IN_A_HOST)
def test_in_a_host(text: str, mistake: str) -> None:
    assert mistakes(ONE + text) == [f"line 3, [[host]] #1 (gpu-01), {mistake}"]


def test_a_folder_may_have_a_dollar_in_its_name() -> None:
    (host,) = config.parse(ONE + 'workdir = "/data/a user\'s $(folder)"\n').hosts
    assert host.workdir == "/data/a user's $(folder)"


@pytest.mark.parametrize(("text", "mistake"), IN_THE_JOB)
def test_in_the_job(text: str, mistake: str) -> None:
    assert mistakes(f"{ONE}[job]\n{text}") == [f"line 4, [job], {mistake}"]


@pytest.mark.parametrize(("text", "mistake"), OF_A_TARGET)
def test_of_a_target(text: str, mistake: str) -> None:
    value = text.split('"')[1]
    assert mistakes(f"[[host]]\n{text}") == [f"line 2, [[host]] #1 ({value}), {mistake}"]


@pytest.mark.parametrize("row", IN_A_FILE, ids=lambda row: row[0][:40])
def test_in_a_file(row: tuple[str | bytes, *tuple[str, ...]]) -> None:
    text, *expected = row
    assert mistakes(text) == expected


def test_all_mistakes_of_a_file_come_together_in_its_order() -> None:
    text = """
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
"""
    with pytest.raises(UsageError) as caught:
        config.parse(text, "lab/hosts.toml")
    assert caught.value.what == "lab/hosts.toml has 7 mistakes"
    assert caught.value.why.split("\n") == [
        "line 3, [job], comand: is not a key; did you mean command?",
        'line 4, [job], grace: must be a number of seconds, not "30s"; write 30',
        "line 8, [[host]] #1 (gpu-01), prot: is not a key; did you mean port?",
        'line 11, [defaults], role: must be chief, worker, ps or evaluator, not "cheif"; did you mean chief?',
        'line 15, [[host]] #2 (gpu-02), address: is not an IPv4 address: "172.17.0.300" (four numbers from 0 to 255, no leading zeros)',
        "line 16, [[host]] #2 (gpu-02), env.OMP_NUM_THREADS: must be a text, not a number; write its value in quotes",
        "line 18, extra: is not a table; the tables are [defaults], [[host]], [job], [env] and [data]",
    ]


@pytest.mark.parametrize(
    ("host", "fix"),
    [
        ('ssh = "train@gpu-02"', 'write `address = "gpu-02"`'),
        ('ssh = "local"', 'write `address = "..."` with the address of this machine that the others reach'),
        ('ssh = "localhost:2200"', 'write `address = "..."` with the address of me that the others reach'),
    ],
)
def test_instead_of_a_loopback_address_there_is_a_line_to_write(host: str, fix: str) -> None:
    entry = f'[[host]]\nname = "me"\naddress = "127.0.0.1"\n{host}\n'
    with pytest.raises(UsageError) as caught:
        config.parse(entry + ONE)
    assert caught.value.hint.startswith(fix)
    with pytest.raises(UsageError) as caught:
        config.parse(entry + ONE + "prot = 22\n")
    assert f"there; {fix}" in caught.value.why  # one hint is not enough for several mistakes
    assert caught.value.hint == "`orchestrate init --example` shows every key"  # a wheel has no file of it


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
    with pytest.raises(UsageError) as caught:
        config.parse('[job.env]\nTOKEN = "hunter2\n')
    assert caught.value.why == "line 2, column 17, TOKEN: a quote is not closed on this line"


@pytest.mark.parametrize(
    "text",
    [
        "gpu-01\n# a comment\ngpu-02\n",
        "gpu-01 slots=4\ngpu-02 slots=4\n",
        "[gpus]\ngpu-[01:04] ansible_user=me\n[gpus:vars]\nansible_port = 22\n",
        "all:\n  hosts:\n    gpu-01:\n",
    ],
)
def test_a_list_of_hosts_of_another_tool(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        config.parse(text, "../my nodes")
    assert caught.value.what == "../my nodes is not a hosts.toml"
    assert caught.value.hint == "`orchestrate init --hostfile '../my nodes'` makes a hosts.toml of it"
    with pytest.raises(UsageError) as caught:
        config.parse(text)
    hint = "`mv hosts.toml hosts.txt`, then `orchestrate init --hostfile hosts.txt`"
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    "text", ["[[host]]\nssh = gpu-01\n", "ssh = \n", "[host\nssh = 1\n", "ssh gpu-01 a\n"]
)
def test_broken_toml_is_no_list_of_hosts(text: str) -> None:
    with pytest.raises(UsageError, match="has 1 mistake"):
        config.parse(text)


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


@pytest.mark.parametrize("key", ["{}", "[{}]", "x = {{ {} = 1 }}", "[[host]]\n{} = 1"])
def test_a_key_of_very_many_parts_is_refused_at_once(key: str) -> None:
    """The parser would take 42 s for it, of a core: other work on the machine does not count."""
    began = time.process_time()
    with pytest.raises(UsageError) as refused:
        config.parse(key.format(".".join(["a"] * 50_000)) + " = 1")
    assert "more than 100 parts" in refused.value.why
    assert time.process_time() - began < 10


def test_an_inventory_has_a_bound(tmp_path: Path) -> None:
    path = tmp_path / "hosts.toml"
    path.write_bytes(b"#" * (2 << 20))
    with pytest.raises(UsageError, match="cannot read") as refused:
        config.load(path)
    assert refused.value.why == "it has 2.1 MB, and may have 1.0 MB"
