"""`orchestrate export`: the same run as files for an engine that starts tasks itself."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from orchestrator.cli.args import options
from orchestrator.cli.desk.inventory import NAME, chosen
from orchestrator.cli.desk.out import tell, unchanged
from orchestrator.errors import ExitStatus, UsageError
from orchestrator.export import common, kubernetes, slurm
from orchestrator.launching.start import make_plan
from orchestrator.model import DEFAULT_PYTHON, RunPlan
from orchestrator.sync.contents import CodeSource, read_builtin


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.command(parser, "export [options] slurm|kubernetes [-- COMMAND ...]")
    parser.add_argument(
        "engine", choices=("slurm", "kubernetes"), metavar="ENGINE", help="slurm or kubernetes"
    )
    options.chosen(parser)
    options.planning(parser)
    parser.add_argument("-o", "--output", metavar="FILE", help="where to write (default: stdout)")
    parser.add_argument(
        "--plain", action="store_true", help="slurm: with srun and orchestrate_rank.py, without orchestrate"
    )
    parser.add_argument(
        "--jobset",
        action="store_true",
        help="kubernetes: a JobSet, which starts all tasks again after a failure",
    )
    parser.set_defaults(**vars(options.as_launched(dry_run=True)))


def main(arguments: argparse.Namespace) -> int:
    given = arguments.command
    inventory = chosen(arguments)
    hosts = inventory.hosts
    if arguments.engine == "kubernetes":  # the image's
        hosts = tuple(replace(host, python=DEFAULT_PYTHON) for host in hosts)
    bare = replace(inventory, hosts=hosts, environment=None)
    plan, project, _ = make_plan(bare, arguments)
    remarks = common.remarks(plan, inventory)
    if arguments.engine == "kubernetes":
        tree = read_builtin() if project is None else project.read()
        files = zip(tree.manifest.files, tree.paths, strict=True)
        own = _own_files(arguments)
        code = {file.path: path.read_bytes() for file, path in files if not own(path)}
        made = kubernetes.manifests(plan, inventory.kubernetes, code, plan.cwd, jobset=arguments.jobset)
        text = kubernetes.text(made, plan, remarks)
    elif arguments.plain:
        text = _plain(plan, project, remarks, arguments.output)
    else:
        text = _batch(plan, given, arguments)
    tell(*(f"note: {note}" for note in plan.notes))
    if arguments.output is None:
        unchanged(text)
    else:
        _write(Path(arguments.output), text)
    return ExitStatus.OK


def _own_files(arguments: argparse.Namespace) -> Callable[[Path], bool]:
    """Return a test for the inventory and the output, also where the shell redirects it."""
    named = [arguments.hosts or NAME, arguments.output, f"/dev/fd/{sys.stdout.fileno()}"]
    paths = [Path(name) for name in named if name is not None and os.path.exists(name)]  # noqa: PTH110
    return lambda path: any(path.samefile(own) for own in paths)


def _plain(plan: RunPlan, project: CodeSource | None, remarks: list[str], output: str | None) -> str:
    """Return the batch file, and put orchestrate_rank.py beside it."""
    if project is None:
        raise UsageError(
            "--plain needs a program",
            why="the training program that comes along is part of orchestrate",
            hint="`orchestrate export --plain slurm -- train.py`",
        )
    text = slurm.plain_batch(plan, str(Path.cwd()), remarks)
    if output is None:
        tell(f"it needs {common.RANK_FILE} in {Path.cwd()}; -o FILE puts it there")
    else:
        _write(Path(common.RANK_FILE.name), common.RANK_FILE.read_text(encoding="utf-8"))
    return text


def _batch(plan: RunPlan, command: tuple[str, ...], arguments: argparse.Namespace) -> str:
    own = {"--name": arguments.name, "--code": arguments.code, "--max-restarts": arguments.max_restarts}
    words = [word for option, value in own.items() if value for word in (option, str(value))]
    words += [word for name, value in arguments.env for word in ("--env", f"{name}={value}")]
    words += ["--", *command] if command else []
    hosts = ["--hosts", "slurm"]
    if slurm.by_name(plan):  # the same of them as here; others are not in the job
        chosen = {"--hosts": arguments.hosts, "--only": arguments.only, "--exclude": arguments.exclude}
        hosts = [word for option, value in chosen.items() if value for word in (option, value)]
    return slurm.batch(plan, str(Path.cwd()), ["orchestrate", "launch", *hosts, *words])


def _write(path: Path, text: str) -> None:
    """Write a new file, or orchestrate_rank.py; raise UsageError for a file that is somebody's."""
    if path.exists() and path.name != common.RANK_FILE.name:
        raise UsageError(
            f"cannot write {path}", why="it is there already", hint="remove it, or choose another -o"
        )
    path.write_text(text, encoding="utf-8", errors="surrogateescape", newline="")
    tell(f"{path} is written")
