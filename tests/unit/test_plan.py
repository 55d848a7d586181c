"""Which task runs where, what it is told, and what `launch --dry-run` prints of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.cli.main import main
from orchestrator.errors import ExitStatus
from orchestrator.model import Completion, Job
from orchestrator.planning import explain
from orchestrator.planning.plan import choose_command, resolve
from orchestrator.store.folder import decode_plan
from tests.golden import matches_golden
from tests.unit.plans import host, make


@pytest.mark.parametrize(
    ("roles", "cluster", "completion"),
    [
        ("worker worker", {"worker": ("a:2222", "b:2222")}, Completion.ALL),
        ("worker chief", {"chief": ("b:2222",), "worker": ("a:2222",)}, Completion.ALL),
        ("ps chief", {"chief": ("b:2222",), "ps": ("a:2222",)}, Completion.CHIEF),
        ("worker evaluator", {"worker": ("a:2222",)}, Completion.ALL),
    ],
)
def test_cluster_and_completion(roles: str, cluster: dict[str, tuple[str]], completion: Completion) -> None:
    plan = make(*(host(name, role) for name, role in zip("abc", roles.split(), strict=False)))
    assert list(plan.cluster.items()) == list(cluster.items())
    assert plan.completion is completion


@pytest.mark.parametrize(
    ("job", "given", "chosen", "argv"),
    [
        ("", "", "", "py3 -m worker_entry"),
        ("", "--epochs 3", "--epochs 3", "py3 -m worker_entry --epochs 3"),
        ("", "train.py --epochs 3", "train.py --epochs 3", "py3 train.py --epochs 3"),
        ("", "train.R", "train.R", "Rscript train.R"),
        ("", "train.r x", "train.r x", "Rscript train.r x"),
        ("", "python -u train.py", "python -u train.py", "python -u train.py"),
        ("", "./run.sh --fast", "./run.sh --fast", "./run.sh --fast"),
        ("train.py --epochs 3", "", "train.py --epochs 3", "py3 train.py --epochs 3"),
        ("train.py --epochs 3", "other.py", "other.py", "py3 other.py"),
        ("train.py --epochs 3", "--lr 1", "train.py --epochs 3 --lr 1", "py3 train.py --epochs 3 --lr 1"),
    ],
)
def test_the_command(job: str, given: str, chosen: str, argv: str) -> None:
    command = choose_command(Job(command=tuple(job.split())), tuple(given.split()))
    assert " ".join(command) == chosen
    assert " ".join(resolve(command, "py3")) == argv


def test_everything_of_a_plan() -> None:
    plan = make(
        host("boss", "chief", user="train", port=2200, python="~/venv/bin/python"),
        host("fd00::5", port=22, env={"A": "it's"}),
        host("here", "ps", workdir="/data/my runs", python="python3.12"),
        job=Job(setup="module load cuda\nulimit -n 9", secrets=("TOKEN",), env={"B": "\x1b[2J"}),
        command=("train.py", "--name", "a b"),
        sources=("import tensorflow as tf\ntf.keras.Sequential()",),
    )
    matches_golden("cli/dry_run.txt", explain.dry_run(plan))


def test_restarts_and_spares_are_in_the_plan() -> None:
    job = Job(max_restarts=2, min_hosts=1, backup="backup")
    spare = [host("a"), host("b"), host("s1", spare=True), host("s2", spare=True)]
    text = explain.dry_run(make(*spare, job=job, command=("t.py",)))
    assert (
        "\nrestarts: 2 times at most, or on 1 host; backup of worker/0 is copied to all\nspare: s[1-2]\n"
        in text
    )
    assert "spare: s[1-2] (not used without --max-restarts)" in explain.dry_run(make(*spare))
    assert "restarts" not in explain.dry_run(make(host("a")))


def test_a_dry_run_for_programs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hosts = tmp_path / "hosts.toml"
    hosts.write_text('[[host]]\nssh = "gpu-[1-2]"\n')
    assert main(["launch", "--dry-run", "--json", "--hosts", str(hosts), "--", "true"]) == ExitStatus.OK
    planned = decode_plan(capsys.readouterr().out.encode())
    assert [str(task.id) for task in planned.tasks] == ["worker/0", "worker/1"]
