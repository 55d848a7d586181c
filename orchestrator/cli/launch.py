"""`orchestrate launch`: plan, hand the run to a keeper, watch it."""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from orchestrator import config, environ, plan
from orchestrator.cli import keeping, watch
from orchestrator.errors import ExitStatus, UsageError
from orchestrator.events import Stamped, encode
from orchestrator.model import Admission, Inventory, OnHang, RunPlan
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
    print(_announced(folder) if arguments.json else folder.run)
    print(f"started; orchestrate tail {folder.run} shows it", file=sys.stderr)
    return int(ExitStatus.OK)


def _announced(folder: RunFolder) -> str:
    """The first event of a run, which its keeper may not have written yet."""
    from orchestrator.phases.adopt import announcement

    plan = folder.read_plan()
    return encode(Stamped(plan.created, announcement(folder, plan))).decode()


def follow(folder: RunFolder, arguments: argparse.Namespace, interrupts: watch.Interrupts) -> int:
    """Watch a run that was started here until it ends."""
    renderer = choose(sys.stdout, arguments.json, sys.stderr)
    behind = BEHIND if sys.stdout.isatty() and not arguments.json else None
    return watch.own(folder, RunReader(folder, drop_behind=behind), renderer, interrupts)


def start(inventory: Inventory, arguments: argparse.Namespace, *, other_ports: bool) -> RunFolder:
    """Plan the run, make its folder, fork its keeper; raise UsageError before anything was made."""
    now = time.time()
    run = new_run_id(now)

    planned = make_plan(inventory, arguments, run, now)
    admission = dataclasses.replace(planned.admission, other_ports=other_ports)
    planned = dataclasses.replace(planned, admission=admission)
    secrets = environ.secret_values(inventory.job.secrets, os.environ)
    folder = RunFolder(runs_root() / run)
    folder.create(planned)
    from orchestrator.phases.context import Source

    keeping.keep_new(folder, planned, Source(Path.cwd(), inventory.job.ignore), secrets)
    return folder


def make_plan(inventory: Inventory, arguments: argparse.Namespace, run: str, created: float) -> RunPlan:
    given = {
        "legacy_keras": False if arguments.no_legacy_keras else None,
        "max_restarts": arguments.max_restarts,
        "min_hosts": arguments.min_hosts,
        "lifeline": arguments.lifeline,
        "hang_timeout": arguments.hang_timeout,
        "on_hang": OnHang(arguments.on_hang) if arguments.on_hang else None,
    }
    changes: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    inventory = dataclasses.replace(inventory, job=dataclasses.replace(inventory.job, **changes))
    if arguments.on_hang and not inventory.job.hang_timeout:
        raise UsageError(
            f"--on-hang {arguments.on_hang}: nothing looks whether the tasks hang",
            hint=f"--hang-timeout 600 --on-hang {arguments.on_hang}",
        )
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
    planned = plan.assign(
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
    admission = Admission(
        preflight=not arguments.skip_preflight,
        validate=not arguments.no_validate,
        validate_command=inventory.job.validate,
    )
    return dataclasses.replace(planned, admission=admission)


def _dry_run(inventory: Inventory, arguments: argparse.Namespace) -> int:
    from orchestrator.explain import dry_run

    now = time.time()
    planned = make_plan(inventory, arguments, new_run_id(now), now)
    print(msgspec.json.encode(planned).decode() + "\n" if arguments.json else dry_run(planned), end="")
    return int(ExitStatus.OK)
