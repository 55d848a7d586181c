"""What a mistake on the command line is answered with: one error that names what was probably meant."""

from __future__ import annotations

import shlex

import pytest

from orchestrator.cli.args import spelling
from orchestrator.cli.args.parser import build, parse
from orchestrator.errors import UsageError
from orchestrator.model import Role, TaskId

VERBS = tuple(build()[1])


@pytest.mark.parametrize(
    ("line", "what", "hint"),
    [
        ("", "orchestrate needs a verb", "`orchestrate --help`"),
        ("lunch -- x.py", "'lunch' is not a verb of orchestrate", "`orchestrate launch -- x.py`"),
        (
            "lint train.py",
            "'lint' is not a verb of orchestrate",
            "`orchestrate launch --dry-run -- train.py` shows what is found, and contacts no host",
        ),
        (
            "preflight gpu-01 gpu-[02-03],",
            "orchestrate preflight has no use for 'gpu-01'",
            "`orchestrate preflight --only 'gpu-01,gpu-[02-03]'`",
        ),
        (
            "setup --debug node1",
            "orchestrate setup has no use for 'node1'",
            "`orchestrate setup --debug --only node1`",
        ),
        (
            "preflight hosts.toml",
            "orchestrate preflight has no use for 'hosts.toml'",
            "`orchestrate preflight --hosts hosts.toml`",
        ),
        (
            "preflight now",
            "orchestrate preflight has no use for 'now'",
            "`orchestrate preflight --help`",
        ),
        ("frobnicate", "'frobnicate' is not a verb of orchestrate", "`orchestrate --help`"),
        ("--vresion", "--vresion stands before a verb", "write --version"),
        ("--hosts x launch", "--hosts stands before a verb", "`orchestrate launch --hosts x`"),
        ("--hosts x", "--hosts stands before a verb", "`orchestrate VERB --hosts ...`"),
        (
            "--dry-run launch -- train.py",
            "--dry-run stands before a verb",
            "`orchestrate launch --dry-run -- train.py`",
        ),
        (
            "train.py --lr 1",
            "'train.py' is not a verb of orchestrate",
            "`orchestrate launch -- train.py --lr 1`",
        ),
        ("-- train.py", "orchestrate needs a verb", "`orchestrate launch -- train.py`"),
        (
            "hosts.toml preflight",
            "'hosts.toml' is not a verb of orchestrate",
            "`orchestrate preflight --hosts hosts.toml`",
        ),
        (
            "launch train.py --dry-run",
            "put the command after --: 'train.py'",
            "`orchestrate launch --dry-run -- train.py`",
        ),
        (
            "launch --dry-run --lr .1 fit.py",
            "orchestrate launch has no option --lr",
            "`orchestrate launch --dry-run -- fit.py --lr .1`",
        ),
        ("launch -- -- train.py", "-- stands twice", "`orchestrate launch -- train.py`"),
        (
            "launch --only gpu-01 gpu-02 gpu-03 -- train.py",
            "orchestrate launch has no use for 'gpu-02'",
            "write --only gpu-01,gpu-02,gpu-03",
        ),
        (
            "exec --exclude gpu-01, gpu-[03-04] -- uptime",
            "orchestrate exec has no use for 'gpu-[03-04]'",
            "write --exclude 'gpu-01,gpu-[03-04]'",
        ),
        (
            "launch --only=gpu-01 gpu-02 -- train.py",
            "orchestrate launch has no use for 'gpu-02'",
            "write --only gpu-01,gpu-02",
        ),
        (
            "launch --env A=1 B=2 -- train.py",
            "orchestrate launch has no use for 'B=2'",
            "write --env B=2",
        ),
        (
            "launch hosts.toml -- train.py",
            "orchestrate launch has no use for 'hosts.toml'",
            "`orchestrate launch --hosts hosts.toml -- train.py`",
        ),
        (
            "launch --detach hosts.toml train.py",
            "orchestrate launch has no use for 'hosts.toml'",
            "`orchestrate launch --detach --hosts hosts.toml -- train.py`",
        ),
        ("launch - train.py", "orchestrate launch has no use for '-'", "`orchestrate launch -- train.py`"),
        (
            "launch \u2014 train.py --lr 1",
            "orchestrate launch has no use for '\u2014'",
            "`orchestrate launch -- train.py --lr 1`",
        ),
        (
            "launch \u2013dry-run -- train.py",
            "orchestrate launch has no use for '\u2013dry-run'",
            "write --dry-run",
        ),
        (
            "launch --name my run -- train.py",
            "orchestrate launch has no use for 'run'",
            "`orchestrate launch --name my -- train.py`; a value with spaces needs quotes",
        ),
        ("launch --detatch", "orchestrate launch has no option --detatch", "write --detach"),
        ("stop --xyzzy=3", "orchestrate stop has no option --xyzzy=3", "`orchestrate stop --help`"),
        ("launch --nam x", "orchestrate launch has no option --nam", "write --name"),
        (
            "launch train.py --epochs 3",
            "put the command after --: 'train.py'",
            "`orchestrate launch -- train.py --epochs 3`",
        ),
        (
            "launch --epochs 3",
            "orchestrate launch has no option --epochs",
            "`orchestrate launch -- --epochs 3`",
        ),
        (
            "launch --epoch=3",
            "orchestrate launch has no option --epoch=3",
            "`orchestrate launch -- --epochs=3`",
        ),
        (
            "rehearse --dataset=digits --epochs 3",
            "orchestrate rehearse has no option --dataset=digits",
            "`orchestrate rehearse -- --dataset=digits --epochs 3`",
        ),
        (
            "launch --lr .1 fit.py",
            "orchestrate launch has no option --lr",
            "`orchestrate launch -- fit.py --lr .1`",
        ),
        (
            "launch --lr .1 -- python fit.py",
            "orchestrate launch has no option --lr",
            "`orchestrate launch -- python fit.py --lr .1`",
        ),
        ("launch --learn 3", "orchestrate launch has no option --learn", "`orchestrate launch --help`"),
        ("exec --lr 3", "orchestrate exec has no option --lr", "`orchestrate exec --help`"),
        ("tail one two", "orchestrate tail has no use for 'two'", "`orchestrate tail --help`"),
        ("launch --", "nothing follows --", "leave -- out to train worker_entry's MNIST"),
        ("status -- ls", "orchestrate status takes no command after --", ""),
        (
            "clean --older-than 7",
            "orchestrate clean: argument --older-than: '7' is not an age (an age is written 12h or 7d)",
            "`orchestrate clean --help`",
        ),
        (
            "clean --keep-size 20X",
            "orchestrate clean: argument --keep-size: '20X' is not a size (a size is written 500M or 20G)",
            "`orchestrate clean --help`",
        ),
        (
            "launch --lifeline soon",
            "orchestrate launch: argument --lifeline: 'soon' is not a time (a time is written 600 or 10m)",
            "`orchestrate launch --help`",
        ),
        (
            "launch --env FOO",
            "orchestrate launch: argument --env: 'FOO' is not K=V (to pass your own on: K=$K)",
            "`orchestrate launch --help`",
        ),
        (
            "tail --task worker1",
            "orchestrate tail: argument --task: 'worker1' is not a task (a task is written worker/1)",
            "`orchestrate tail --help`",
        ),
        (
            "tail --task 3",
            "orchestrate tail: argument --task: '3' is not a task (a task is written worker/3)",
            "`orchestrate tail --help`",
        ),
        (
            "launch --task ps/0,ps/1",
            "orchestrate launch: argument --task: 'ps/0,ps/1' is not a task (one task; it may be repeated)",
            "`orchestrate launch --help`",
        ),
        (
            "launch --hang-timeout ten",
            "orchestrate launch: argument --hang-timeout: 'ten' is not a time (a time is written 600 or 10m)",
            "`orchestrate launch --help`",
        ),
        (
            "launch --hang-timeout nan",
            "orchestrate launch: argument --hang-timeout: 'nan' is not a time (a time is written 600 or 10m)",
            "`orchestrate launch --help`",
        ),
        (
            "launch --min-hosts 0",
            "orchestrate launch: argument --min-hosts: '0' is not a whole number from 1 on",
            "`orchestrate launch --help`",
        ),
        (
            "preflight --html -",
            "orchestrate preflight: argument --html: the page needs a file (--html cluster.html)",
            "`orchestrate preflight --help`",
        ),
        (
            "rehearse -n 99",
            "orchestrate rehearse: argument -n: '99' is not a number from 1 to 64",
            "`orchestrate rehearse --help`",
        ),
    ],
)
def test_mistakes(line: str, what: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(line.split())
    assert (caught.value.what, caught.value.hint) == (what, hint)


@pytest.mark.parametrize(
    "line", [["stop", ""], ["preflight", "--hosts", ""], ["launch", "--name=", "--", "x"], ["pull", "r", ""]]
)
def test_a_variable_that_is_not_set_is_no_argument(line: list[str]) -> None:
    with pytest.raises(UsageError, match=f"an argument of orchestrate {line[0]} is empty"):
        parse(line)


@pytest.mark.parametrize("text", [" ", "a\x1b[2Jb", "two\nlines", "x" * 101])
def test_what_is_no_name(text: str) -> None:
    with pytest.raises(UsageError, match="is not a name"):
        parse(["launch", "--name", text])
    assert parse(["launch", "--name", "lr 0.1, größer"]).name == "lr 0.1, größer"


@pytest.mark.parametrize(
    "line",
    [
        "launch train.py --dry-run",
        "train.py --lr 1",
        "--dry-run launch -- train.py",
        "launch -- -- train.py",
        "launch - train.py",
        "launch hosts.toml -- train.py",
        "hosts.toml preflight",
    ],
)
def test_the_line_that_is_given_can_be_typed(line: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(line.split())
    right = parse(shlex.split(caught.value.hint.split("`")[1])[1:])
    assert right.verb in {"launch", "preflight"}
    assert getattr(right, "dry_run", False) == ("--dry-run" in line)


@pytest.mark.parametrize(
    ("verb", "word", "command"),
    [
        ("exec", "uptime | wc", "sh -c 'uptime | wc'"),
        ("launch", "python train.py --lr 1", "python train.py --lr 1"),
    ],
)
def test_a_whole_line_in_quotes_is_given_as_a_command(verb: str, word: str, command: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse([verb, word])
    assert caught.value.hint == f"`orchestrate {verb} -- {command}`"


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("launch --only gpu-01 gpu-02 -- a.py", "write --only gpu-01,gpu-02"),
        ("launch --exclude head gpu-02,", "write --exclude head,gpu-02"),
        ("laucnh --only gpu-01 -- fit.py 2", "`orchestrate launch --only gpu-01 -- fit.py 2`"),
        (
            "launch --only gpu-01 fit.py --epochs 2",
            "`orchestrate launch --only gpu-01 -- fit.py --epochs 2`",
        ),
        ("exec gpu-01 hostname -s", "`orchestrate exec --only gpu-01 -- hostname -s`"),
        ("exec gpu-01,gpu-02 -- df", "`orchestrate exec --only gpu-01,gpu-02 -- df`"),
        ("launch gpu-[01-02] head1 -- a.py", "`orchestrate launch --only 'gpu-[01-02],head1' -- a.py`"),
        ("exec python3 -V", "`orchestrate exec -- python3 -V`"),
        ("exec pip3 list", "`orchestrate exec -- pip3 list`"),
        ("lanch fit.py 2", "`orchestrate launch -- fit.py 2`"),
        ("python fit.py 2", "`orchestrate launch -- python fit.py 2`"),
        ("srun fit.py 2", "`orchestrate launch -- fit.py 2`"),
        ("mpirun -np 4 fit.py", "`orchestrate launch -- train.py`"),
        ("--verbose", "`orchestrate VERB --verbose ...`"),
        ("top", "`orchestrate status --watch`"),
        ("run", "`orchestrate launch -- train.py`"),
        ("trainn", "`orchestrate --help`"),
        ("exec --only gpu-[01-02] hostname -s", "`orchestrate exec --only 'gpu-[01-02]' -- hostname -s`"),
        ("launch --hosts a.toml python3 x.py", "`orchestrate launch --hosts a.toml -- python3 x.py`"),
    ],
)
def test_the_rest_of_the_line_stands_in_the_fix(line: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(line.split())
    assert caught.value.hint == hint


def test_a_command_whose_program_is_an_empty_word() -> None:
    with pytest.raises(UsageError, match="begins with an empty word"):
        parse(["launch", "--", "", "train.py"])
    assert parse(["launch", "--", "train.py", ""]).command == ("train.py", "")
    assert parse(["launch", "--env=A=", "--env", "B="]).env == [("A", ""), ("B", "")]


def test_what_follows_two_dashes_is_the_command_whatever_it_looks_like() -> None:
    arguments = parse(["launch", "--env", "A=b=c", "--", "run", "--detach", "--", "x y"])
    assert (arguments.command, arguments.detach) == (("run", "--detach", "--", "x y"), False)
    assert arguments.env == [("A", "b=c")]


def test_a_task_and_all_lines() -> None:
    arguments = parse(["tail", "night", "--task", "worker/1", "-n", "all"])
    assert (arguments.run, arguments.task, arguments.n) == ("night", [TaskId(Role.WORKER, 1)], float("inf"))


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ("clean", "older_than", 30 * 86_400.0),
        ("clean --older-than 0", "older_than", 0.0),
        ("clean --older-than 12h", "older_than", 43_200.0),
        ("clean --keep-size 20G", "keep_size", 20 * 10**9),
        ("clean --keep-size 500MB", "keep_size", 500 * 10**6),
        ("launch --lifeline 90", "lifeline", 90.0),
        ("launch --lifeline 10m", "lifeline", 600.0),
        ("launch", "lifeline", None),
        ("launch --hang-timeout 2.5", "hang_timeout", 2.5),
        ("launch --hang-timeout 10m", "hang_timeout", 600.0),
    ],
)
def test_times_and_sizes(line: str, name: str, value: float | None) -> None:
    assert getattr(parse(line.split()), name) == value


@pytest.mark.parametrize(
    ("line", "ours"),
    [
        ("help", "--help"),
        ("help launch", "launch --help"),
        ("help logs", "tail --help"),
        ("version", "--version"),
        ("-V", "--version"),
        ("-v", "--version"),
        ("logs -f night", "tail night"),
        ("tail --follow", "tail"),
        ("logs --lines=5", "tail -n=5"),
        ("launch -d", "launch --detach"),
        ("rehearse -np 3", "rehearse -n 3"),
        ("launch -e A=1", "launch --env A=1"),
        ("launch --job-name=night", "launch --name=night"),
        ("tail -100 night", "tail -n 100 night"),
        ("logs --tail=5", "tail -n=5"),
        ("runs -3", "runs -n 3"),
        ("launch -help", "launch --help"),
        ("init -i inventory.ini", "init --hostfile inventory.ini"),
        ("init -hostfile nodes", "init --hostfile nodes"),
        ("status -w", "status --watch"),
        ("exec -b -a -w gpu-01", "exec --only gpu-01"),
        ("ls", "runs"),
        ("clean -y --work", "clean --yes --work"),
        ("clean -n", "clean --dry-run"),
        ("launch --only a", "launch --only a"),
    ],
)
def test_words_of_other_tools_that_can_mean_one_thing(line: str, ours: str) -> None:
    assert spelling.ours(line.split(), VERBS) == ours.split()


@pytest.mark.parametrize(
    ("line", "what", "hint"),
    [
        (
            "ps",
            "'ps' is not a verb of orchestrate",
            "`orchestrate runs` or `orchestrate status [RUN]`",
        ),
        (
            "kill night",
            "'kill' is not a verb of orchestrate",
            "`orchestrate stop [RUN]` lets tasks save, `orchestrate stop --now [RUN]` does not",
        ),
        ("help frobnicate", "'frobnicate' is not a verb of orchestrate", "`orchestrate --help`"),
        (
            "launch -np 4",
            "orchestrate launch has no option -np",
            "write tasks = 4 under [defaults]: so many on each host; --only chooses hosts",
        ),
        (
            "launch --nproc_per_node=8",
            "orchestrate launch has no option --nproc_per_node=8",
            "write tasks = 8 under [defaults]: so many on each host; --only chooses hosts",
        ),
        (
            "launch -H a:1",
            "orchestrate launch has no option -H",
            "`orchestrate init gpu-01 gpu-02` writes one; --only gpu-01,gpu-02 chooses among its hosts",
        ),
        (
            "launch --gpus 2",
            "orchestrate launch has no option --gpus",
            "write devices = [0, 1] under [[host]] (default: all)",
        ),
        (
            "launch --ntasks=4 -- train.py",
            "orchestrate launch has no option --ntasks=4",
            "write tasks = 4 under [defaults]: so many on each host; --only chooses hosts",
        ),
        (
            "launch -x NCCL_DEBUG=INFO -- train.py",
            "orchestrate launch has no option -x",
            "write --env NCCL_DEBUG=INFO",
        ),
        (
            "launch -x PATH -- train.py",
            "orchestrate launch has no option -x",
            'write --env PATH="$PATH"',
        ),
        ("launch --export=ALL", "orchestrate launch has no option --export=ALL", "write --env NAME=VALUE"),
        (
            "launch --standalone --nnodes=1 train.py",
            "orchestrate launch has no option --standalone",
            "leave it out; task_port in hosts.toml chooses the port",
        ),
        (
            "launch --partition gpu -- train.py",
            "orchestrate launch has no option --partition",
            "leave it out",
        ),
        (
            "exec -it gpu-01 -- bash",
            "orchestrate exec has no option -it",
            "`ssh` to one host gives a terminal",
        ),
        (
            "launch -hostfile nodes -np 4 train.py",
            "orchestrate launch has no option -hostfile",
            "`orchestrate init --hostfile FILE` makes one of it",
        ),
        ("init -H a:2,b:2", "orchestrate init has no option -H", "`orchestrate init gpu-01 gpu-02`"),
        ("exec -f 8 -- hostname", "orchestrate exec has no option -f", "leave it out"),
        (
            "exec -g all -- hostname",
            "orchestrate exec has no option -g",
            "--only 'gpu-[01-03],head' names hosts",
        ),
        (
            "exec -l root -- hostname",
            "orchestrate exec has no option -l",
            'write user = "me" under [defaults] or [[host]]',
        ),
        ("rehearse --hosts 4", "orchestrate rehearse has no option --hosts", "write -n 4: so many"),
        ("rehearse -N3", "orchestrate rehearse has no option -N3", "write -n 3: so many"),
        ("rehearse --only a", "orchestrate rehearse has no option --only", "write -n 2: so many"),
        ("stop --all", "orchestrate stop has no option --all", "`orchestrate runs` lists them"),
        ("clean -f", "orchestrate clean has no option -f", "write --yes, and nobody is asked"),
        ("clean --force", "orchestrate clean has no option --force", "write --yes, and nobody is asked"),
        ("tail -d", "orchestrate tail has no option -d", "`orchestrate launch --detach`"),
        ("launch -v", "orchestrate launch has no option -v", "leave it out; --debug shows tracebacks"),
        ("launch -q", "orchestrate launch has no option -q", "add 2>/dev/null, which leaves their lines"),
        ("launch -V", "orchestrate launch has no option -V", "`orchestrate --version`"),
        ("init --hosts a,b", "orchestrate init has no option --hosts", "`orchestrate init gpu-01 gpu-02`"),
        (
            "launch --python ~/tf/bin/python -- train.py",
            "orchestrate launch has no option --python",
            'write python = "~/.venvs/train/bin/python" under [defaults] or [[host]]',
        ),
        ("launch --background", "orchestrate launch has no option --background", "write --detach"),
        ("launch --skip-validate", "orchestrate launch has no option --skip-validate", "write --no-validate"),
        ("stop --force", "orchestrate stop has no option --force", "`orchestrate stop --now`"),
    ],
)
def test_words_of_other_tools_that_are_spelled_otherwise(line: str, what: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(line.split())
    assert (caught.value.what, caught.value.hint) == (what, hint)


def test_words_of_other_tools_behind_two_dashes_are_the_command() -> None:
    assert parse(["launch", "--", "x", "-np", "4", "-v"]).command == ("x", "-np", "4", "-v")
