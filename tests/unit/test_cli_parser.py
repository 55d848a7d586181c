"""Command lines: what they are read as, the one error that answers each mistake, and what a Tab offers."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest

from orchestrator.cli.args.parser import parse
from orchestrator.errors import ExitStatus, UsageError
from orchestrator.model import Role, TaskId
from orchestrator.names import RunId
from orchestrator.store import RunFolder
from tests import command
from tests.golden import matches_golden
from tests.unit import plans

MISTAKES = (
    "",
    "lunch -- x.py",
    "--vresion",
    "-- train.py --lr 1",
    "train.py --lr 1",
    "preflight gpu-01",
    "launch train.py --epochs 3",
    "launch --detatch",
    "launch --name my run -- train.py",
    "stop --xyzzy=3",
    "launch --",
    "status -- ls",
    "launch -- '' train.py",
    "launch --name ' '",
    "clean --older-than 7",
    "launch --hang-timeout soon",
    "launch --env FOO",
    "tail --task worker1",
    "launch --hang-timeout nan",
    "launch --max-restarts -1",
    "rehearse -n 99",
)


def mistake(line: str) -> str:
    with pytest.raises(UsageError) as caught:
        parse(shlex.split(line))
    error = caught.value
    assert error.status is ExitStatus.USAGE
    return f"$ orchestrate {line}\n{error.what}\n  why: {error.why}\n  try: {error.hint}\n"


def test_mistakes() -> None:
    matches_golden("cli/mistakes.txt", "\n".join(map(mistake, MISTAKES)))


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ("tail night -n all", "run", "night"),
        ("tail -n all", "n", None),
        ("tail --task worker/1", "task", [TaskId(Role.WORKER, 1)]),
        ("launch --name größer", "name", "größer"),
        ("launch --max-restarts 0", "max_restarts", 0),
        ("clean", "older_than", 30 * 86_400.0),
        ("clean --older-than 12h", "older_than", 43_200.0),
        ("launch --hang-timeout 2.5", "hang_timeout", 2.5),
        ("launch --hang-timeout 10m", "hang_timeout", 600.0),
        ("launch --env=A= --env B= --env C=b=c -- x", "env", [("A", ""), ("B", ""), ("C", "b=c")]),
        ("launch -- run --detach -- '' 'x y'", "command", ("run", "--detach", "--", "", "x y")),
        ("launch -- run --detach", "detach", False),
    ],
)
def test_values(line: str, name: str, value: object) -> None:
    assert getattr(parse(shlex.split(line)), name) == value


RUN = "20260102-030405-abcd"


@pytest.mark.parametrize(
    ("typed", "offered", "others"),
    [
        ("orchestrate ta", "tail", "status"),
        ("orchestrate launch --max", "--max-restarts", "--min-hosts"),
        ("orchestrate launch --validate ", "changed", "--json"),
        ("orchestrate tail ", RUN, "--task"),
    ],
)
def test_what_is_offered(typed: str, offered: str, others: str, tmp_path: Path) -> None:
    plan = plans.make(plans.host("gpu-01"), plans.host("gpu-02"))
    RunFolder(tmp_path / "orchestrate" / "runs", RunId(RUN)).create(plan)
    asked = {"_ARGCOMPLETE": "1", "_ARGCOMPLETE_STDOUT_FILENAME": str(tmp_path / "out")}
    line = {"COMP_LINE": typed, "COMP_POINT": str(len(typed)), "XDG_STATE_HOME": str(tmp_path)}
    assert command.run((), tmp_path, {**os.environ, **asked, **line}).returncode == 0
    words = {word.strip() for word in (tmp_path / "out").read_text().split("\x0b")}
    assert offered in words
    assert others not in words
