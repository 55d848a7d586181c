"""Which task runs where, and what it is told."""

from __future__ import annotations

import json

import pytest
from hypothesis import given

from orchestrator.errors import UsageError
from orchestrator.model import Completion, Inventory, Job, Role, RunPlan, TaskId
from orchestrator.planning.plan import choose_command, resolve, tf_config
from tests.unit.plans import host, inventories, make, plans


@given(plans())
def test_every_task_reads_back_what_was_planned_for_it(plan: RunPlan) -> None:
    for task in plan.tasks:
        role, index = task.id.role.value, task.id.index
        cluster = {name: list(peers) for name, peers in plan.cluster.items()}
        assert json.loads(task.env["TF_CONFIG"]) == {
            "cluster": cluster,
            "task": {"type": role, "index": index},
        }
        assert list(task.env)[-1] == "TF_CONFIG"
        assert role == "evaluator" or cluster[role][index].endswith(f":{task.port}")
    assert "evaluator" not in plan.cluster


@given(inventories())
def test_hosts_get_their_tasks_ports_and_devices_in_order(inventory: Inventory) -> None:
    plan = make(*inventory.hosts)
    used = [entry for entry in inventory.hosts if not entry.spare]
    assert plan.hosts == tuple(used)
    assert [task.host for task in plan.tasks] == [entry.name for entry in used for _ in range(entry.tasks)]
    for role in Role:
        indexes = [task.id.index for task in plan.tasks if task.id.role is role]
        assert indexes == list(range(len(indexes)))
    for entry in used:
        tasks = [task for task in plan.tasks if task.host == entry.name]
        assert [task.port for task in tasks] == list(range(entry.task_port, entry.task_port + entry.tasks))
        if entry.devices:
            shares = [task.env["CUDA_VISIBLE_DEVICES"].split(",") for task in tasks]
            assert [device for share in shares for device in share] == list(entry.devices)
            assert len({len(share) for share in shares}) == 1


@pytest.mark.parametrize(
    ("roles", "cluster", "completion"),
    [
        ("worker worker", {"worker": ("a:2222", "b:2222")}, Completion.ALL),
        ("worker chief", {"chief": ("b:2222",), "worker": ("a:2222",)}, Completion.ALL),
        (
            "ps worker chief",
            {"chief": ("c:2222",), "worker": ("b:2222",), "ps": ("a:2222",)},
            Completion.CHIEF,
        ),
        ("worker evaluator", {"worker": ("a:2222",)}, Completion.ALL),
    ],
)
def test_cluster_and_completion(roles: str, cluster: dict[str, tuple[str]], completion: Completion) -> None:
    plan = make(*(host(name, role) for name, role in zip("abc", roles.split(), strict=False)))
    assert list(plan.cluster.items()) == list(cluster.items())
    assert plan.completion is completion


def test_the_line_tensorflow_reads() -> None:
    plan = make(host("a", tasks=2), host("::1", "evaluator"), host("fd00::5", task_port=4000))
    assert [task.env["TF_CONFIG"] for task in plan.tasks][2] == (
        '{"cluster": {"worker": ["a:2222", "a:2223", "[fd00::5]:4000"]},'
        ' "task": {"type": "evaluator", "index": 0}}'
    )


@pytest.mark.parametrize(
    ("job", "given", "chosen", "argv"),
    [
        ("", "", "", "py3 -m worker_entry"),
        ("", "--epochs 3", "--epochs 3", "py3 -m worker_entry --epochs 3"),
        ("", "train.py --epochs 3", "train.py --epochs 3", "py3 train.py --epochs 3"),
        ("", "src/train.py", "src/train.py", "py3 src/train.py"),
        ("", "train.R", "train.R", "Rscript train.R"),
        ("", "train.r x", "train.r x", "Rscript train.r x"),
        ("", "python -u train.py", "python -u train.py", "python -u train.py"),
        ("", "hostname", "hostname", "hostname"),
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


def test_only_spares() -> None:
    with pytest.raises(UsageError) as caught:
        make(host("a", spare=True))
    assert caught.value.what == "hosts.toml has no host to run on"


def test_the_plan_keeps_what_the_job_says() -> None:
    job = Job(setup="module load x", grace=1, failure_grace=2, lifeline=3, secrets=("TOKEN",))
    plan = make(host("a"), job=job, environ={"TOKEN": "hunter2"})
    assert (plan.grace, plan.failure_grace, plan.lifeline) == (1, 2, 3)
    assert plan.secrets == ("TOKEN",)
    assert plan.tasks[0].setup == "module load x"
    assert "hunter2" not in repr(plan)


def test_roles_come_in_tensorflows_order_whatever_the_order_given() -> None:
    cluster = {"ps": ("c:1",), "worker": ("b:1",), "chief": ("a:1",)}
    assert list(json.loads(tf_config(cluster, TaskId(Role.PS, 0)))["cluster"]) == [
        "chief",
        "worker",
        "ps",
    ]
