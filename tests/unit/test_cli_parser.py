"""Command lines: what they are read as, and the one error that each mistake is answered with."""

from __future__ import annotations

import shlex

import pytest

from orchestrator.cli.args.parser import parse
from orchestrator.errors import ExitStatus, UsageError
from orchestrator.model import Role, TaskId
from tests.golden import matches_golden

MISTAKES = (
    "",
    "lunch -- x.py",
    "--vresion",
    "--hosts x runs",
    "-- train.py --lr 1",
    "train.py --lr 1",
    "mpirun -np 4 fit.py",
    "preflight gpu-01",
    "launch train.py --epochs 3",
    "launch --epochs 3",
    "launch --detatch",
    "launch --name my run -- train.py",
    "stop --xyzzy=3",
    "tail one two",
    "launch --",
    "status -- ls",
    "launch -- '' train.py",
    "stop ''",
    "launch --name ' '",
    "launch --name 'two\nlines'",
    "clean --older-than 7",
    "launch --lifeline soon",
    "launch --env FOO",
    "tail --task worker1",
    "launch --hang-timeout nan",
    "launch --max-restarts -1",
    "launch --min-hosts 0",
    "rehearse -n 99",
    "tensorboard --port 70000",
)


def mistake(line: str) -> str:
    with pytest.raises(UsageError) as caught:
        parse(shlex.split(line))
    error = caught.value
    assert error.status is ExitStatus.USAGE
    return f"$ orchestrate {line}\n{error.what}\n  why: {error.why}\n  try: {error.hint}\n"


def test_mistakes() -> None:
    matches_golden("cli/mistakes.txt", "\n".join(map(mistake, MISTAKES)))


def test_an_empty_word_is_a_value_behind_an_equals_sign_and_in_the_command() -> None:
    assert parse(["launch", "--", "train.py", ""]).command == ("train.py", "")
    assert parse(["launch", "--env=A=", "--env", "B="]).env == [("A", ""), ("B", "")]


def test_what_follows_two_dashes_is_the_command_whatever_it_looks_like() -> None:
    arguments = parse(["launch", "--env", "A=b=c", "--", "run", "--detach", "--", "-np", "x y"])
    assert (arguments.command, arguments.detach) == (("run", "--detach", "--", "-np", "x y"), False)
    assert arguments.env == [("A", "b=c")]


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ("tail night -n all", "run", "night"),
        ("tail -n all", "n", float("inf")),
        ("tail --task worker/1", "task", [TaskId(Role.WORKER, 1)]),
        ("launch --name größer", "name", "größer"),
        ("launch --max-restarts 0", "max_restarts", 0),
        ("clean", "older_than", 30 * 86_400.0),
        ("clean --older-than 0", "older_than", 0.0),
        ("clean --older-than 12h", "older_than", 43_200.0),
        ("launch --lifeline 90", "lifeline", 90.0),
        ("launch --lifeline 10m", "lifeline", 600.0),
        ("launch", "lifeline", None),
        ("launch --hang-timeout 2.5", "hang_timeout", 2.5),
        ("launch --hang-timeout 10m", "hang_timeout", 600.0),
    ],
)
def test_values(line: str, name: str, value: object) -> None:
    assert getattr(parse(line.split()), name) == value
