"""Batch files and manifests of planned runs, checked by golden files and the schemas of Kubernetes."""

import errno
import os
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from orchestrator.cli import export as cli
from orchestrator.errors import ExitStatus, UsageError, worded
from orchestrator.export import common, kubernetes, slurm
from orchestrator.model import Host, Job, Kubernetes, RunPlan, Way
from tests.golden import matches_golden
from tests.unit import plans
from tests.unit.plans import host
from tests.verbs import call

CODE = {"train.py": b"import tensorflow as tf\n", "data/.labels": b"\xff\xfe\x00"}
TABLE = Kubernetes("registry.test/train:1", "team", "train-data", cpu="8", memory="64Gi")
JOB = Job(env={"EPOCHS": "3 and more"}, secrets=("WANDB_API_KEY",), setup="module load cuda")


def workers() -> RunPlan:
    hosts = [host(f"gpu-0{number}", devices=("0", "1"), tasks=2) for number in (1, 2)]
    return plans.make(*hosts, job=JOB, command=("train.py", "--lr", "$(LR)"))


def roles(**other: Any) -> RunPlan:
    names = {"head": "chief", "a": "worker", "b": "worker", "p": "ps"}
    hosts = [host(name, role, **other) for name, role in names.items()]
    return plans.make(*hosts, command=("train.py",), job=Job(max_restarts=2))


def made(plan: RunPlan, table: Kubernetes = TABLE) -> list[dict[str, Any]]:
    return kubernetes.manifests(plan, table, CODE, "")


def shown(plan: RunPlan) -> str:
    """Return the file without the text of orchestrate_rank.py."""
    files = made(plan)
    files[0]["data"]["orchestrate_rank.py"] = "...\n"
    return kubernetes.text(files, plan, ["a remark"])


def test_manifests() -> None:
    matches_golden("export/workers.yaml", shown(workers()))
    matches_golden("export/roles.yaml", shown(roles()))


def test_jobs_that_serve_for_ever_are_named() -> None:
    rows = [("a", "worker", ()), ("e", "evaluator", ("evaluate.py",)), ("s", "service", ("serve.py",))]
    plan = plans.make(*(host(name, role, command=own) for name, role, own in rows), command=("train.py",))
    jobs = [one["spec"]["template"]["spec"]["containers"][0] for one in made(plan) if one["kind"] == "Job"]
    assert [job["args"][-1] for job in jobs] == ["train.py", "evaluate.py", "serve.py"]
    assert "# when train-worker is complete, delete the others\n" in shown(plan)


def test_batch_files() -> None:
    launch = ["orchestrate", "launch", "--hosts", "slurm", "--", "train.py"]
    texts = [
        slurm.batch(workers(), "/home/ada/my code", launch),
        slurm.batch(roles(via=Way.SRUN), "/home/ada", launch[:2]),
        slurm.plain_batch(workers(), "/home/ada/my code", ["a remark"]),
        slurm.plain_batch(roles(python="~/venv/bin/python"), "/home/ada", []),
    ]
    matches_golden("export/slurm.txt", "\n".join(texts))


@pytest.mark.parametrize("plan", [workers(), roles()])
@pytest.mark.parametrize("table", [TABLE, Kubernetes("image")])
def test_exported_manifests_are_valid(plan: RunPlan, table: Kubernetes) -> None:
    for manifest in yaml.safe_load_all(kubernetes.text(made(plan, table), plan, [])):
        kubernetes_validate.validate(manifest, "1.30", strict=True)


def test_text_survives_yaml_and_keys_are_valid_in_a_config_map() -> None:
    code = {"a/b.py": b"if 1:\n\tpass  \n", "a_b.py": b"# \xc3\xa4: 'x'", ".x": b"", "y": b"\r\n\x85 no"}
    plan = workers()
    text = kubernetes.text(kubernetes.manifests(plan, TABLE, code, ""), plan, [])
    config_map, *_, job = yaml.safe_load_all(text)
    items = job["spec"]["template"]["spec"]["volumes"][0]["configMap"]["items"]
    held = {item["path"]: config_map["data"].get(item["key"]) for item in items}
    assert held == {"a/b.py": "if 1:\n\tpass  \n", "a_b.py": "# \xe4: 'x'", ".x": "", "y": None}


@pytest.mark.parametrize(
    ("hosts", "word"),
    [
        ([host("a"), host("b", tasks=2)], "differ"),
        ([host("a", devices=("0",)), host("b", devices=("0", "1"))], "GPUs"),
        ([host("a", env={"X": "1"}), host("b")], "environment"),
    ],
)
def test_hosts_an_engine_cannot_distinguish_are_refused(hosts: list[Host], word: str) -> None:
    plan = plans.make(*hosts, command=("train.py",))
    with pytest.raises(UsageError, match=word):
        slurm.plain_batch(plan, "/", [])


def test_exported_code_is_only_that_of_the_program(tmp_path: Path) -> None:
    """Without the inventory and the files of an earlier export."""
    (tmp_path / "hosts.toml").write_text(
        '[export.kubernetes]\nimage = "i"\n[[host]]\nssh = "a"\naddress = "10.0.0.1"\n'
    )
    (tmp_path / "t.py").write_text("1\n")
    for words in (["-o", "k.yaml"], []):
        done = call(["export", "kubernetes", *words, "--", "t.py"], tmp_path, tmp_path / ".orchestrate-state")
        assert done.status == 0, done.err
    config_map = next(yaml.safe_load_all((tmp_path / "k.yaml").read_text()))
    assert set(config_map["data"]) == {"t.py", "orchestrate_rank.py"}
    assert "out" not in next(yaml.safe_load_all(done.out))["data"], "it is being written"


def test_unsupported_plans_are_refused() -> None:
    with pytest.raises(UsageError):
        made(workers(), Kubernetes())
    with pytest.raises(UsageError, match="1 MiB"):
        kubernetes.manifests(workers(), TABLE, {"big": b"x" * (1 << 20)}, "")
    with pytest.raises(UsageError):
        slurm.batch(roles(), "/", [])


def test_exported_torchrun_starts_one_process_per_device() -> None:
    plan = plans.make(host("a", devices=()), command=("torchrun", "train.py"))
    assert common.environment(plan.tasks) == {"PYTHONUNBUFFERED": "1", "PET_NPROC_PER_NODE": "1"}


def test_a_full_disk_leaves_no_partial_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def half(fd: int, data: bytes) -> None:
        os.write(fd, data[: len(data) // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(cli, "write_all", half)
    with pytest.raises(UsageError) as failed:
        cli._write(tmp_path / "job.sh", "#!/bin/sh\n")
    assert worded(failed.value).status == ExitStatus.HERE
    assert not list(tmp_path.iterdir())
