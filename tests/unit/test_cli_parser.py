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


def test_what_follows_two_dashes_is_the_command_whatever_it_looks_like() -> None:
    arguments = parse(["launch", "--env", "A=b=c", "--", "run", "--detach", "--", "x y"])
    assert (arguments.command, arguments.detach) == (("run", "--detach", "--", "x y"), False)
    assert arguments.env == [("A", "b=c")]


def test_a_task_and_all_lines() -> None:
    arguments = parse(["tail", "night", "--task", "worker/1", "-n", "all"])
    assert (arguments.run, arguments.task, arguments.n) == ("night", [TaskId(Role.WORKER, 1)], float("inf"))
