"""`export`: a launch as files for an engine that starts tasks itself."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from orchestrator.errors import UsageError
from orchestrator.export import common, kubernetes, slurm
from orchestrator.model import DEFAULT_PYTHON, RunPlan
from orchestrator.requests import ExportRequest
from orchestrator.sync.contents import CodeSource, read_builtin
from orchestrator.verbs.inventory import NAME
from orchestrator.verbs.plan import make_plan


class Exported(Struct, frozen=True):
    """The text for an engine, and the plan that it is of."""

    plan: RunPlan
    text: str
    needs_rank: bool = False  # orchestrate_rank.py has to be beside it


def export(request: ExportRequest, output: Sequence[str] = ()) -> Exported:
    """Plan the launch and write it in the engine's language; `output` are files that it does not hold."""
    inventory = request.launch.inventory
    hosts = inventory.hosts
    if request.engine == "kubernetes":  # the image's
        hosts = tuple(replace(host, python=DEFAULT_PYTHON) for host in hosts)
    bare = replace(inventory, hosts=hosts, environment=None)
    made = make_plan(replace(request.launch, inventory=bare))
    plan, project = made.plan, made.code
    remarks = common.remarks(plan, inventory)
    if request.engine == "kubernetes":
        tree = read_builtin() if project is None else project.read()
        files = zip(tree.manifest.files, tree.paths, strict=True)
        names = [request.selection.hosts or NAME, *output]
        own = [Path(name) for name in names if os.path.exists(name)]  # noqa: PTH110
        code = {file.path: path.read_bytes() for file, path in files if not any(map(path.samefile, own))}
        objects = kubernetes.manifests(plan, inventory.kubernetes, code, plan.cwd, jobset=request.jobset)
        return Exported(plan, kubernetes.text(objects, plan, remarks))
    if request.plain:
        return Exported(plan, _plain(plan, project, remarks), needs_rank=True)
    return Exported(plan, _batch(plan, request))


def _plain(plan: RunPlan, project: CodeSource | None, remarks: list[str]) -> str:
    if project is None:
        raise UsageError(
            "--plain needs a program",
            why="the training program that comes along is part of orchestrate",
            hint="`orchestrate export --plain slurm -- train.py`",
        )
    return slurm.plain_batch(plan, str(Path.cwd()), remarks)


def _batch(plan: RunPlan, request: ExportRequest) -> str:
    launch, chosen = request.launch, request.selection
    own = {"--name": launch.name, "--code": launch.code, "--max-restarts": launch.max_restarts}
    words = [word for option, value in own.items() if value for word in (option, str(value))]
    words += [word for name, value in launch.env.items() for word in ("--env", f"{name}={value}")]
    words += ["--", *launch.command] if launch.command else []
    hosts = ["--hosts", "slurm"]
    if slurm.by_name(plan):  # the same of them as here; others are not in the job
        named = {"--hosts": chosen.hosts, "--only": chosen.only, "--exclude": chosen.exclude}
        hosts = [word for option, value in named.items() if value for word in (option, value)]
    return slurm.batch(plan, str(Path.cwd()), ["orchestrate", "launch", *hosts, *words])
