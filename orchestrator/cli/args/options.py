"""Options that several verbs have. Imports nothing heavy."""

from __future__ import annotations

import argparse

from orchestrator.cli.args import readings


def command(parser: argparse.ArgumentParser, usage: str) -> None:
    """The verb takes a command, after `--`."""
    parser.usage = f"orchestrate {usage}"
    parser.set_defaults(command=())


def takes_command(parser: argparse.ArgumentParser) -> bool:
    return parser.get_default("command") is not None


def hosts(parser: argparse.ArgumentParser) -> None:
    text = (
        "the inventory, or hosts: gpu-01,gpu-02, or `slurm`: the nodes of this job (default: hosts.toml, here"
        " or in a folder above)"
    )
    parser.add_argument("--hosts", metavar="FILE", help=text)


def as_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="JSON on stdout, and nothing else there")


def fold(parser: argparse._ActionsContainer) -> None:
    from orchestrator.model import Fold

    parser.add_argument(
        "--fold",
        choices=[one.value for one in Fold],
        help=(
            "show a line that several tasks print only once, also where its durations differ"
            " (default: similar on a terminal, none elsewhere)"
        ),
    )


def run(parser: argparse.ArgumentParser) -> None:
    """Add the run, and the inventory whose nodes may know of it."""
    parser.add_argument("run", nargs="?", metavar="RUN", help="id, part of it, or name (default: the newest)")
    hosts(parser)


def task(parser: argparse.ArgumentParser, text: str) -> None:
    parser.add_argument(
        "--task", action="append", default=[], type=readings.task, metavar="worker/1", help=text
    )


def chosen(parser: argparse.ArgumentParser) -> None:
    """The inventory, and which of its hosts."""
    hosts(parser)
    parser.add_argument("--only", metavar="HOSTS", help="only these: 'gpu-[01-03],head'")
    parser.add_argument("--exclude", metavar="HOSTS", help="all but these")


def planning(parser: argparse.ArgumentParser) -> None:
    """Add what makes a plan another one."""
    parser.add_argument("--name", type=readings.name, default="", help="a name to find the run by")
    parser.add_argument(
        "--code",
        metavar="DIR",
        help="the folder to send; tasks run where you stand in it (default: the top of the git repository)",
    )
    parser.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="K=V",
        type=readings.assignment,
        help="environment of every task",
    )
    parser.add_argument(
        "--max-restarts",
        type=readings.whole(),
        metavar="N",
        help="start all tasks again after a failure, up to N times",
    )


def launching(parser: argparse.ArgumentParser) -> None:
    from orchestrator.model import OnHang, Revalidate

    planning(parser)
    parser.add_argument(
        "--hang-timeout",
        type=readings.seconds,
        metavar="TIME",
        help=(
            "take all stacks when no task prints or reports for this long, or one stays behind: 600, 10m (0:"
            " never)"
        ),
    )
    parser.add_argument(
        "--on-hang",
        choices=[one.value for one in OnHang],
        help=(
            "what follows a hang: only the report, the end of the run, or the end of the attempt (default:"
            " restart)"
        ),
    )
    parser.add_argument("--skip-preflight", action="store_true", help="do not check the hosts and pairs")
    parser.add_argument(
        "--validate",
        choices=[one.value for one in Revalidate],
        help=(
            "train alone on each host first: always; only where that did not succeed within the last day or"
            " something changed since; or never (default: changed)"
        ),
    )
    parser.add_argument(
        "--no-validate", dest="validate", action="store_const", const="never", help="the same as never"
    )
    parser.add_argument(
        "--min-hosts",
        type=readings.whole(1),
        metavar="N",
        help="with --max-restarts: when hosts are lost and no spare is left, continue with as few as N",
    )
    parser.add_argument(
        "--spares",
        type=readings.whole(1),
        metavar="N",
        help="with --max-restarts: the last N hosts train only in place of hosts that are lost",
    )
    parser.add_argument(
        "--lifeline",
        type=readings.span,
        metavar="TIME",
        help=(
            "how long parameter servers and a failed attempt continue when no keeper is alive (default: 1h;"
            " 0: for ever)"
        ),
    )
    parser.add_argument(
        "--no-legacy-keras", action="store_true", help="do not set TF_USE_LEGACY_KERAS=1 (see docs/launch.md)"
    )
    task(parser, "show only this task's lines")
    fold(parser)
    as_json(parser)
