"""What `launch --dry-run` prints."""

# ruff: noqa: E501 - a line is what the user reads

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings

from orchestrator import config
from orchestrator.cli.main import main
from orchestrator.errors import ExitStatus
from orchestrator.model import Job, RunPlan
from orchestrator.planning import explain
from orchestrator.store.planfile import decode_plan
from tests.unit.plans import host, make, plans

EXAMPLE = Path(__file__).parents[2] / "hosts.example.toml"


def test_the_tutorials_cluster() -> None:
    lines = explain.dry_run(make(*config.load(EXAMPLE).hosts)).split("\n")
    assert [line for line in lines if line.startswith("{")] == [
        '{"cluster": {"worker": ["172.17.0.6:10090", "172.17.0.3:10088", "172.17.0.4:10087", "172.17.0.5:10089"]},'
        f' "task": {{"type": "worker", "index": {index}}}}}'
        for index in range(4)
    ]


def test_everything_of_a_plan() -> None:
    plan = make(
        host("boss", "chief", user="train", port=2200, python="~/venv/bin/python"),
        host("fd00::5", port=22, env={"A": "it's"}),
        host("here", "ps", workdir="/data/my runs", python="python3.12"),
        job=Job(setup="module load cuda\nulimit -n 9", secrets=("TOKEN",), env={"B": "\x1b[2J"}),
        command=("train.py", "--name", "a b"),
    )
    assert (
        explain.dry_run(plan)
        == r"""3 tasks on 3 hosts; done when the chief has exited 0; the others are then stopped

chief/0 on boss
{"cluster": {"chief": ["boss:2222"], "worker": ["[fd00::5]:2222"], "ps": ["here:2222"]}, "task": {"type": "chief", "index": 0}}
  ssh      train@boss:2200
  address  boss
  port     2222
  run      ~/venv/bin/python train.py --name 'a b'
  workdir  ~/orchestrate
  setup    "module load cuda\nulimit -n 9"
  env      ORCHESTRATE_RANK=0

worker/0 on fd00::5
{"cluster": {"chief": ["boss:2222"], "worker": ["[fd00::5]:2222"], "ps": ["here:2222"]}, "task": {"type": "worker", "index": 0}}
  ssh      [fd00::5]:22
  address  fd00::5
  port     2222
  run      python3 train.py --name 'a b'
  workdir  ~/orchestrate
  setup    "module load cuda\nulimit -n 9"
  env      A='it'"'"'s'
  env      ORCHESTRATE_RANK=1

ps/0 on here
{"cluster": {"chief": ["boss:2222"], "worker": ["[fd00::5]:2222"], "ps": ["here:2222"]}, "task": {"type": "ps", "index": 0}}
  ssh      here
  address  here
  port     2222
  run      python3.12 train.py --name 'a b'
  workdir  /data/my runs
  setup    "module load cuda\nulimit -n 9"
  env      CUDA_VISIBLE_DEVICES=-1
  env      ORCHESTRATE_RANK=2

environment of every task
  B="\u001b[2J"
  ORCHESTRATE_AUTO_SHARD=auto
  ORCHESTRATE_HOSTS='boss:2222,[fd00::5]:2222,here:2222'
  ORCHESTRATE_KERAS=tf_keras,keras
  ORCHESTRATE_LOCAL_RANK=0
  ORCHESTRATE_SIZE=3
  PYTHONUNBUFFERED=1
  TF_USE_LEGACY_KERAS=1
  grpc_proxy=
  TOKEN=***

stop: 30 s between TERM and KILL, 2 s after a failure
note: set PYTHONUNBUFFERED=1 so that output arrives as it is printed
note: set grpc_proxy= so that tasks do not look for each other through an http_proxy
note: set TF_USE_LEGACY_KERAS=1 so that tf.keras is Keras 2 (tf_keras), on one task as on several; legacy_keras = false under [job] makes it Keras 3
note: set CUDA_VISIBLE_DEVICES=-1 on ps/0 since a ps task needs no GPU; give its host `devices` to change it
"""
    )


@settings(deadline=None)
@given(plans())
def test_one_printable_json_line_per_task(plan: RunPlan) -> None:
    lines = explain.dry_run(plan).split("\n")
    assert [line for line in lines if line.startswith("{")] == [task.env["TF_CONFIG"] for task in plan.tasks]
    assert all(line.isprintable() for line in lines)


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
