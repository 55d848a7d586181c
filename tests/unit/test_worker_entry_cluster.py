"""TF_CONFIG as worker_entry reads it, and the strategy that follows from it."""

from __future__ import annotations

import json

import pytest

from orchestrator.model import Role, TaskId
from orchestrator.planning.plan import tf_config as render
from worker_entry.cluster import ALONE, Cluster, Task, choose, parse
from worker_entry.failure import UsageError

TWO = {"worker": ["10.0.0.1:2222", "10.0.0.2:2222"]}
PS = {"chief": ["10.0.0.1:2222"], "worker": ["10.0.0.2:2222"], "ps": ["10.0.0.3:2222"]}


def config(cluster: object, kind: str = "worker", index: int = 0) -> str:
    return json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})


def test_without_tf_config_a_process_is_alone() -> None:
    assert parse(None) == parse("") == parse("{}") == ALONE
    assert not ALONE.distributed
    assert ALONE.is_leader


def test_the_leader_is_the_chief_or_the_first_worker() -> None:
    assert parse(config(TWO, "worker", 1)).leader == Task("worker", 0)
    assert not parse(config(TWO, "worker", 1)).is_leader
    assert parse(config(PS, "worker", 0)).leader == Task("chief", 0)


def test_an_evaluator_is_no_member_of_the_cluster() -> None:
    evaluator = parse(config(TWO, "evaluator", 0))
    assert evaluator.task == Task("evaluator", 0)
    assert evaluator.task not in evaluator.tasks


WRONG = [
    ("{", "it is no JSON object"),
    ("[1]", "it is no JSON object"),
    (config([]), '"cluster" must be an object'),
    (config({"master": ["a:1"]}), '"master" is not a task type'),
    (config({"worker": "a:1"}), '"worker" must be a list'),
    (config({"worker": ["a"]}), '"worker" must be a list'),
    (config(TWO, "worker", 2), "task worker/2 is not in"),
    (config(TWO, "worker", -1), '"task" must have'),
    (config(TWO, "boss", 0), '"task" must have'),
    (json.dumps({"cluster": TWO}), '"task" must have'),
    (json.dumps({"cluster": TWO, "task": {"type": "worker", "index": "0"}}), '"task" must have'),
]


@pytest.mark.parametrize(("text", "why"), WRONG, ids=[why for _, why in WRONG])
def test_a_wrong_tf_config_says_what_is_wrong(text: str, why: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(text)
    assert caught.value.why.startswith(why)


@pytest.mark.parametrize(
    ("asked", "text", "gpus", "tpu", "name"),
    [
        ("auto", None, 0, None, "one-device"),
        ("auto", None, 1, None, "one-device"),
        ("auto", None, 2, None, "mirrored"),
        ("auto", None, 0, "local", "tpu"),
        ("auto", config(TWO), 8, None, "multi-worker"),
        ("auto", config({"worker": ["a:1"]}), 0, None, "one-device"),
        ("auto", config(PS, "ps"), 0, None, "parameter-server"),
        ("central-storage", None, 2, None, "central-storage"),
        ("multi-worker", None, 0, None, "multi-worker"),
    ],
)
def test_the_strategy_follows_tf_config_and_devices(
    asked: str, text: str | None, gpus: int, tpu: str | None, name: str
) -> None:
    chosen = choose(asked, parse(text), gpus, tpu)
    assert chosen.name == name
    assert chosen.why


@pytest.mark.parametrize(
    ("asked", "cluster", "what"),
    [
        ("mirrored", TWO, "--strategy mirrored has no use for 2 tasks"),
        ("parameter-server", TWO, "--strategy parameter-server needs chief, worker and ps tasks"),
        ("parameter-server", {}, "--strategy parameter-server needs chief, worker and ps tasks"),
        ("multi-worker", PS, "--strategy multi-worker has no use for 1 ps tasks"),
        ("auto", {"worker": ["a:1"], "ps": ["b:1"]}, "parameter servers need a chief"),
    ],
)
def test_a_strategy_that_does_not_fit_the_cluster_is_refused(
    asked: str, cluster: dict[str, list[str]], what: str
) -> None:
    jobs = {kind: tuple(addresses) for kind, addresses in cluster.items()}
    with pytest.raises(UsageError) as caught:
        choose(asked, Cluster(jobs, Task("worker", 0)), 0, None)
    assert caught.value.what == what


def test_what_the_orchestrator_writes_is_what_we_read() -> None:
    cluster = {"chief": ("a:1",), "worker": ("b:2", "[::1]:3")}
    read = parse(render(cluster, TaskId(Role.WORKER, 1)))
    assert (read.jobs, read.task) == (cluster, Task("worker", 1))
