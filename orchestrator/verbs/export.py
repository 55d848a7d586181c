"""`export`: a launch as files for an engine that starts tasks itself."""

import os
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from orchestrator.errors import UsageError
from orchestrator.export import common, kubernetes, slurm
from orchestrator.model import DEFAULT_PYTHON, RunPlan
from orchestrator.planning.plan import make
from orchestrator.requests import ExportRequest
from orchestrator.sync.contents import read_builtin
from orchestrator.value import Value
from orchestrator.verbs import Caller
from orchestrator.verbs.inventory import NAME
from orchestrator.verbs.reading import read


class Exported(Value):
    """The text for an engine, and the plan it describes."""

    plan: RunPlan
    text: str
    needs_rank: bool = False  # orchestrate_rank.py must be next to it


def export(request: ExportRequest, output: Sequence[str]) -> Exported:
    """Plan the launch and write it in the engine's format; `output` are files that it does not contain."""
    inventory = request.launch.inventory
    hosts = inventory.hosts
    if request.engine == "kubernetes":  # the image's
        hosts = tuple(replace(host, python=DEFAULT_PYTHON) for host in hosts)
    given = replace(request.launch, inventory=replace(inventory, hosts=hosts))
    launch, facts, project = read(given, Caller(), packages=False)
    plan, _ = make(launch, facts)
    remarks = common.remarks(plan, inventory)
    if request.engine == "kubernetes":
        tree = read_builtin() if project is None else project.read()
        files = [(file.path, tree.path(number)) for number, file in enumerate(tree.manifest.files)]
        names = [request.selection.hosts or NAME, *output]
        own = [Path(name) for name in names if os.path.exists(name)]  # noqa: PTH110
        code = {name: path.read_bytes() for name, path in files if not any(map(path.samefile, own))}
        objects = kubernetes.manifests(plan, inventory.kubernetes, code, plan.cwd)
        return Exported(plan, kubernetes.text(objects, plan, remarks))
    if not request.plain:
        return Exported(plan, _batch(plan, request))
    if project is None:
        raise UsageError(
            "--plain needs a program",
            why="the bundled training program is part of orchestrate",
            hint="`orchestrate export --plain slurm -- train.py`",
        )
    return Exported(plan, slurm.plain_batch(plan, str(Path.cwd()), remarks), needs_rank=True)


def _batch(plan: RunPlan, request: ExportRequest) -> str:
    launch, chosen = request.launch, request.selection
    own = {"--name": launch.name, "--code": launch.code, "--max-restarts": launch.max_restarts}
    options = [word for option, value in own.items() if value for word in (option, str(value))]
    options += [word for name, value in launch.env.items() for word in ("--env", f"{name}={value}")]
    options += ["--", *launch.command] if launch.command else []
    hosts = ["--hosts", "slurm"]
    if slurm.by_name(plan):  # as many as here; others are not in the job
        named = {"--hosts": chosen.hosts, "--only": chosen.only, "--exclude": chosen.exclude}
        hosts = [word for option, value in named.items() if value for word in (option, value)]
    return slurm.batch(plan, str(Path.cwd()), ["orchestrate", "launch", *hosts, *options])
