"""What a mistake on the command line is answered with: one error that names what was probably meant."""

from __future__ import annotations

import pytest

from orchestrator.cli.parser import parse
from orchestrator.errors import UsageError
from orchestrator.model import Role, TaskId


@pytest.mark.parametrize(
    ("line", "what", "hint"),
    [
        ("", "orchestrate needs a verb", "orchestrate --help"),
        ("lunch -- x.py", "'lunch' is no verb of orchestrate", "orchestrate launch"),
        ("frobnicate", "'frobnicate' is no verb of orchestrate", "orchestrate --help"),
        ("--vresion", "--vresion stands before a verb", "did you mean --version?"),
        ("--hosts x launch", "--hosts stands before a verb", "orchestrate VERB --hosts ..."),
        ("launch --detatch", "orchestrate launch has no option --detatch", "did you mean --detach?"),
        ("stop --xyzzy=3", "orchestrate stop has no option --xyzzy=3", "orchestrate stop --help"),
        ("launch --nam x", "orchestrate launch has no option --nam", "did you mean --name?"),
        (
            "launch train.py --epochs 3",
            "'train.py' stands before --",
            "orchestrate launch -- train.py --epochs 3",
        ),
        ("tail one two", "orchestrate tail has no use for 'two'", "orchestrate tail --help"),
        ("launch --", "nothing stands after --", "leave -- out to train worker_entry's MNIST"),
        ("status -- ls", "orchestrate status takes no command after --", ""),
        (
            "clean --older-than 7",
            "orchestrate clean: argument --older-than: '7' is no age (an age is written 12h or 7d)",
            "orchestrate clean --help",
        ),
        (
            "clean --keep-size 20X",
            "orchestrate clean: argument --keep-size: '20X' is no size (a size is written 500M or 20G)",
            "orchestrate clean --help",
        ),
        (
            "launch --lifeline soon",
            "orchestrate launch: argument --lifeline: 'soon' is no time (a time is written 600 or 10m)",
            "orchestrate launch --help",
        ),
        (
            "launch --env FOO",
            "orchestrate launch: argument --env: 'FOO' is not K=V",
            "orchestrate launch --help",
        ),
        (
            "tail --task worker1",
            "orchestrate tail: argument --task: 'worker1' is no task (a task is written worker/1)",
            "orchestrate tail --help",
        ),
        (
            "launch --hang-timeout ten",
            "orchestrate launch: argument --hang-timeout: 'ten' is no time (a time is written 600 or 10m)",
            "orchestrate launch --help",
        ),
        (
            "launch --hang-timeout nan",
            "orchestrate launch: argument --hang-timeout: 'nan' is no time (a time is written 600 or 10m)",
            "orchestrate launch --help",
        ),
        (
            "launch --min-hosts 0",
            "orchestrate launch: argument --min-hosts: '0' is not a whole number from 1 on",
            "orchestrate launch --help",
        ),
        (
            "rehearse -n 99",
            "orchestrate rehearse: argument -n: '99' is not a number from 1 to 64",
            "orchestrate rehearse --help",
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
    with pytest.raises(UsageError, match="is no name"):
        parse(["launch", "--name", text])
    assert parse(["launch", "--name", "lr 0.1, größer"]).name == "lr 0.1, größer"


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
