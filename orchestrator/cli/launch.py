"""`orchestrate launch`: plan, hand the run to a keeper, watch it."""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from orchestrator import config, environ, plan
from orchestrator.cli import keeping, watch
from orchestrator.errors import ExitStatus, UsageError
from orchestrator.model import Inventory, RunPlan
from orchestrator.render import choose
from orchestrator.store import RunFolder, RunReader, new_run_id, runs_root

BEHIND = 8 << 20  # bytes of one log that a terminal may be behind before lines are dropped


def main(arguments: argparse.Namespace) -> int:
    inventory = config.load(Path(arguments.hosts or "hosts.toml"))
    if arguments.dry_run:
        return _dry_run(inventory, arguments)
    with watch.Interrupts() as interrupts:
        folder = start(inventory, arguments, other_ports=arguments.other_ports)
        if not arguments.detach or interrupts.count:
            return follow(folder, arguments, interrupts)
    print(folder.run)
    print(f"started; orchestrate tail {folder.run} shows it", file=sys.stderr)
    return int(ExitStatus.OK)


def follow(folder: RunFolder, arguments: argparse.Namespace, interrupts: watch.Interrupts) -> int:
    """Watch a run that was started here until it ends."""
    renderer = choose(sys.stdout, arguments.json, sys.stderr)
    behind = BEHIND if sys.stdout.isatty() and not arguments.json else None
    return watch.own(folder, RunReader(folder, drop_behind=behind), renderer, interrupts)


def start(inventory: Inventory, arguments: argparse.Namespace, *, other_ports: bool) -> RunFolder:
    """Plan the run, make its folder, fork its keeper; raise UsageError before anything was made."""
    if arguments.no_legacy_keras:
        inventory = dataclasses.replace(inventory, job=dataclasses.replace(inventory.job, legacy_keras=False))
    now = time.time()
    run = new_run_id(now)

    def plan_with(moved: Mapping[str, int]) -> RunPlan:
        hosts = tuple(
            dataclasses.replace(host, task_port=moved.get(host.name, host.task_port))
            for host in inventory.hosts
        )
        return make_plan(dataclasses.replace(inventory, hosts=hosts), arguments, run, now)

    planned = plan_with({})
    secrets = environ.secret_values(inventory.job.secrets, os.environ)
    folder = RunFolder(runs_root() / run)
    folder.create(planned)
    from orchestrator.phases.context import Options

    options = Options(
        root=Path.cwd(),
        ignore=inventory.job.ignore,
        preflight=not arguments.skip_preflight,
        validate=not arguments.no_validate,
        validate_command=inventory.job.validate,
        other_ports=other_ports,
    )
    moves: dict[str, int] = {}

    def replan(moved: Mapping[str, int]) -> RunPlan:
        moves.update(moved)
        return plan_with(moves)

    keeping.keep_new(folder, planned, options, secrets, replan)
    return folder


def make_plan(inventory: Inventory, arguments: argparse.Namespace, run: str, created: float) -> RunPlan:
    command = plan.choose_command(inventory.job, arguments.command)
    path = plan.script_path(command)
    script: str | None = None
    if path is not None:
        try:
            script = Path(path).read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            if not Path(path).is_absolute():
                raise UsageError(
                    f"there is no {path} here to launch",
                    why=f"{error.strerror}; the code in {Path.cwd()} is what goes to the hosts",
                    hint="cd to the folder of your code, or name the script by its path from here",
                ) from error
    return plan.assign(
        inventory,
        command=arguments.command,
        env=dict(arguments.env),
        name=arguments.name,
        run=run,
        owner=keeping.owner(),
        created=created,
        environ=os.environ,
        script=script,
    )


def _dry_run(inventory: Inventory, arguments: argparse.Namespace) -> int:
    from orchestrator.explain import dry_run

    now = time.time()
    print(dry_run(make_plan(inventory, arguments, new_run_id(now), now)), end="")
    return int(ExitStatus.OK)
