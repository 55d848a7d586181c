"""`orchestrate push`: bring the data of [data], or a folder or file, to every host that lacks it."""

from __future__ import annotations

import argparse
from pathlib import Path

from orchestrator.cli.args import options
from orchestrator.cli.desk.asking import asking
from orchestrator.cli.desk.inventory import chosen
from orchestrator.cli.desk.out import bars, say
from orchestrator.config.mistakes import Wrong
from orchestrator.config.values import data_paths
from orchestrator.errors import ExitStatus, SeveralErrors, UsageError
from orchestrator.launching.environment import absent, check_data
from orchestrator.model import Data, Inventory
from orchestrator.phases.data import bring, read_sources, sources
from orchestrator.planning.environ import of_data
from orchestrator.text import count, size


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "paths",
        nargs="*",
        metavar="PATH",
        help="a folder or file of this machine (default: all that [data] names)",
    )
    options.chosen(parser)
    parser.add_argument(
        "--limit",
        type=options.rate,
        metavar="RATE",
        help="how many bytes may leave this machine per second, as in 20M (default: no limit)",
    )
    options.as_json(parser)


def main(arguments: argparse.Namespace) -> int:
    inventory = chosen(arguments)
    data = _wanted(inventory, arguments.paths)
    with asking(inventory.hosts) as (fleet, bad):
        hosts = [host for host in inventory.hosts if host.name in fleet.sessions and host.name not in bad]
        with bars(json=arguments.json) as emit:
            if hosts:
                dataset = read_sources(sources(data), emit)
                placed, failed = bring(fleet, hosts, dataset, emit, run="push", limit=arguments.limit)
                bad.update(failed)
    if not arguments.json and hosts and placed:
        name, path = next(iter(placed.items()))
        where = f"  (on {name})" if len(set(placed.values())) > 1 else ""
        amount = f"{size(dataset.size)} in {count(dataset.files, 'file')}"
        say(f"{count(len(placed), 'host')} with data {dataset.digest}: {amount}")
        say(*(f"  {variable}={value}{where}" for variable, value in of_data(path, data).items()))
    if bad:
        raise SeveralErrors(bad.values())
    return ExitStatus.OK


def _wanted(inventory: Inventory, paths: list[str]) -> Data:
    """Return what is to be sent; raise UsageError when nothing is."""
    if paths:
        for path in paths:
            if trouble := absent(str(Path(path).absolute())):
                raise UsageError(f"{path} {trouble}", hint="name a folder or a file of this machine")
        try:
            return Data(paths=data_paths([str(Path(path).absolute()) for path in paths]))
        except Wrong as error:
            raise UsageError(f"orchestrate push: {error}") from None
    if inventory.data is None:
        raise UsageError(
            f"{inventory.source} has no [data], and no PATH is given",
            hint="`orchestrate push DIR`; or write [data] into it, so that `launch` sends it by itself",
        )
    check_data(inventory)
    return inventory.data
