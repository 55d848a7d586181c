"""Command lines: their parsed values, the single error for each mistake, and completions."""

import os
import shlex
from pathlib import Path

import pytest
from msgspec.structs import replace

from orchestrator.cli.args.parser import parse
from orchestrator.cli.main import main
from orchestrator.errors import ExitStatus, UsageError
from orchestrator.events import Outcome, RunEnded, Stamped
from orchestrator.model import Role, TaskId
from orchestrator.names import RunId
from orchestrator.store import RunFolder
from orchestrator.store.bus import EventLog
from tests import command
from tests.golden import matches_golden
from tests.unit import plans

MISTAKES = (
    "ps",
    "list",
    "logs night",
    "kill night",
    "ssh gpu-01",
    "help ps",
    "run train.py",
    "--hosts F runs",
    "--only gpu-01 preflight",
    "--debug --hosts F launch -- train.py",
    "python train.py",
    "launch 'python train.py'",
    "report -o /no/such/folder/x.html",
    "report -o /",
    "export slurm -o /no/such/x.sh",
    "launch CUDA_VISIBLE_DEVICES=0 train.py",
    "launch 'python train.py | tee log'",
    "lunch -- x.py",
    "--vresion",
    "-- train.py --lr 1",
    "train.py --lr 1",
    "preflight gpu-01",
    "push data --xyzzy data",
    "launch train.py --epochs 3",
    "launch --detatch",
    "launch --name my run -- train.py",
    "stop --xyzzy=3",
    "launch --",
    "status -- ls",
    "launch -- '' train.py",
    "clean --older-than 7",
    "launch --hang-timeout soon",
    "launch --env FOO",
    "tail --task worker1",
    "launch --hang-timeout nan",
    "launch --max-restarts -1",
    "launch --max-restarts 99999999999",
    "rehearse -n 99",
)


def mistake(line: str) -> str:
    with pytest.raises(UsageError) as caught:
        parse(shlex.split(line))
    error = caught.value
    assert error.status is ExitStatus.USAGE
    return f"$ orchestrate {line}\n{error.what}\n  why: {error.why}\n  try: {error.hint}\n"


def test_mistakes_are_reported() -> None:
    matches_golden("cli/mistakes.txt", "\n".join(map(mistake, MISTAKES)))


def test_more_hosts_than_the_run_has_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("hosts.toml").write_text('[[host]]\nssh = "gpu-[1-4]"\n')
    line = "launch --dry-run --max-restarts 1 --min-hosts"
    assert main([*line.split(), "4"]) == ExitStatus.OK
    assert main([*line.split(), "9"]) == ExitStatus.USAGE
    assert "`--min-hosts 4` at most" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("", "usage: orchestrate [-h]"),
        ("help", "usage: orchestrate [-h]"),
        ("help launch", "usage: orchestrate launch"),
        ("help stop", "usage: orchestrate stop"),
    ],
)
def test_help_is_printed(line: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(shlex.split(line)) == ExitStatus.OK
    assert capsys.readouterr().out.startswith(words)


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ("tail night -n all", "run", "night"),
        ("tail -n all", "n", None),
        ("tail --task worker/1", "task", [TaskId(Role.WORKER, 1)]),
        ("launch --name größer", "name", "größer"),
        ("launch --max-restarts 0", "max_restarts", 0),
        ("clean --older-than 12h", "older_than", 43_200.0),
        ("launch --hang-timeout 2.5", "hang_timeout", 2.5),
        ("launch --hang-timeout 10m", "hang_timeout", 600.0),
        ("launch --env=A= --env B= --env C=b=c -- x", "env", [("A", ""), ("B", ""), ("C", "b=c")]),
        ("launch -- run --detach -- '' 'x y'", "command", ("run", "--detach", "--", "", "x y")),
        ("launch -- run --detach", "detach", False),
    ],
)
def test_values_are_parsed(line: str, name: str, value: object) -> None:
    assert getattr(parse(shlex.split(line)), name) == value


RUN, OVER = "20260102-030405-abcd", "20260103-030405-efgh"


@pytest.mark.parametrize(
    ("typed", "offered", "others"),
    [
        ("orchestrate ta", "tail", "status"),
        ("orchestrate launch --max", "--max-restarts", "--min-hosts"),
        ("orchestrate launch --validate ", "changed", "--json"),
        ("orchestrate tail ", RUN, "--task"),
        ("orchestrate tail ", OVER, "--task"),
        ("orchestrate stop ", RUN, OVER),
        ("orchestrate runs --diff ni", "night", RUN),
        ("orchestrate tail --task ", "worker/1", "gpu-01"),
        (f"orchestrate pull {RUN} --from ", "gpu-02", RUN),
        ("orchestrate exec --only gpu-01,g", "gpu-01,gpu-02", "gpu-01,gpu-01"),
        ("orchestrate launch --hosts gpu-02,", "gpu-02,head", "gpu-02,gpu-02"),
        ("orchestrate launch --hosts ", "hosts.toml", "train.py"),
    ],
)
def test_completions_that_are_offered(typed: str, offered: str, others: str, tmp_path: Path) -> None:
    for name in ("gpu-01", "gpu-02", "head"):
        with (tmp_path / "hosts.toml").open("a") as file:
            file.write(f'[[host]]\nssh = "{name}"\naddress = "{name}"\n')
    (tmp_path / "train.py").touch()
    plan = plans.make(plans.host("gpu-01"), plans.host("gpu-02"))
    for run, name in ((RUN, "night"), (OVER, "")):
        folder = RunFolder(tmp_path / "orchestrate" / "runs", RunId(run))
        folder.create(replace(plan, run=run, name=name))
    EventLog(folder)(Stamped(1.0, RunEnded(OVER, Outcome.SUCCEEDED, 0, 1.0, "", "", (), "")))
    asked = {"_ARGCOMPLETE": "1", "_ARGCOMPLETE_STDOUT_FILENAME": str(tmp_path / "out")}
    line = {"COMP_LINE": typed, "COMP_POINT": str(len(typed)), "XDG_STATE_HOME": str(tmp_path)}
    assert command.run((), tmp_path, {**os.environ, **asked, **line}).returncode == 0
    words = {word.strip() for word in (tmp_path / "out").read_text().split("\x0b")}
    assert offered in words
    assert others not in words
