"""The options of each verb. Imports nothing heavy."""

from __future__ import annotations

import argparse

from orchestrator.cli import readings
from orchestrator.model import OnHang


def _hosts(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--hosts", metavar="FILE", default=None, help="the inventory (default: ./hosts.toml)")


def _json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="machine-readable lines on stdout, nothing else")


def _run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", nargs="?", metavar="RUN", help="id, part of it, or name (default: the newest)")


def _preflight(parser: argparse.ArgumentParser) -> None:
    _hosts(parser)
    _json(parser)


def _launching(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--name", type=readings.name, default="", help="a name to find the run by")
    parser.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="K=V",
        type=readings.assignment,
        help="environment of every task",
    )
    parser.add_argument(
        "--hang-timeout",
        type=readings.seconds,
        default=None,
        metavar="TIME",
        help="take all stacks when no task prints or reports for so long, or one stays behind (0: never)",
    )
    parser.add_argument(
        "--on-hang",
        choices=[one.value for one in OnHang],
        default=None,
        help="what follows then: only the report, or the end of the run or of the attempt (default: restart)",
    )
    parser.add_argument("--skip-preflight", action="store_true", help="do not check the hosts and pairs")
    parser.add_argument("--no-validate", action="store_true", help="do not train locally on each host first")
    parser.add_argument(
        "--max-restarts",
        type=readings.whole,
        default=None,
        metavar="N",
        help="start all tasks again after a failure, up to N times",
    )
    parser.add_argument(
        "--min-hosts",
        type=readings.positive,
        default=None,
        metavar="N",
        help="with --max-restarts: when hosts are lost and no spare is left, go on with as few as N",
    )
    parser.add_argument(
        "--lifeline",
        type=readings.span,
        default=None,
        metavar="TIME",
        help="without a keeper, end parameter servers and an attempt with a failed task after it (default: "
        "1h; 0: never)",
    )
    parser.add_argument(
        "--no-legacy-keras", action="store_true", help="do not set TF_USE_LEGACY_KERAS=1 (see docs/launch.md)"
    )
    _json(parser)


def _launch(parser: argparse.ArgumentParser) -> None:
    parser.usage = "orchestrate launch [options] [-- COMMAND ...]"
    _hosts(parser)
    _launching(parser)
    parser.add_argument("--detach", action="store_true", help="start the run and return; `tail` shows it")
    parser.add_argument("--dry-run", action="store_true", help="print the whole plan, touch no host")
    parser.add_argument(
        "--other-ports", action="store_true", help="where another run holds the task ports, take other ones"
    )


def _rehearse(parser: argparse.ArgumentParser) -> None:
    parser.usage = "orchestrate rehearse [-n N] [options] [-- COMMAND ...]"
    parser.add_argument("-n", type=readings.count, default=4, metavar="N", help="how many hosts (default: 4)")
    parser.add_argument("--python", default=None, help="the Python that trains (default: this one)")
    parser.add_argument("--keep-logs", action="store_true", help="keep the run's folder and say where it is")
    _launching(parser)


def _tail(parser: argparse.ArgumentParser) -> None:
    _run(parser)
    _hosts(parser)
    parser.add_argument(
        "--task",
        action="append",
        default=[],
        type=readings.task,
        metavar="worker/1",
        help="only this task's lines",
    )
    parser.add_argument(
        "-n",
        type=readings.lines,
        default=100,
        metavar="N",
        help="of each log, begin with its last N lines (default: 100; or: all)",
    )
    parser.add_argument("--no-follow", action="store_true", help="print what is there and return")
    _json(parser)


def _status(parser: argparse.ArgumentParser) -> None:
    _run(parser)
    _hosts(parser)
    _json(parser)


def _runs(parser: argparse.ArgumentParser) -> None:
    _json(parser)


def _stacks(parser: argparse.ArgumentParser) -> None:
    _run(parser)
    _hosts(parser)
    parser.add_argument(
        "--task", action="append", default=[], type=readings.task, metavar="worker/1", help="only this task"
    )
    _json(parser)


def _pull(parser: argparse.ArgumentParser) -> None:
    _run(parser)
    parser.add_argument(
        "paths",
        nargs="*",
        metavar="PATH",
        help="in its work folder, or absolute; may hold * and ? (default: all that was written there)",
    )
    _hosts(parser)
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--from",
        dest="source",
        default=None,
        metavar="worker/0",
        help="a task or host (default: the chief, or worker/0)",
    )
    which.add_argument("--all", action="store_true", help="from every host, each into a folder of its name")
    parser.add_argument("--to", default=None, metavar="DIR", help="where to (default: ./RUN)")
    parser.add_argument("--code", action="store_true", help="the code too, which is left out while unchanged")


def _stop(parser: argparse.ArgumentParser) -> None:
    _run(parser)
    _hosts(parser)
    parser.add_argument("--now", action="store_true", help="KILL at once, no grace")
    _json(parser)


def _clean(parser: argparse.ArgumentParser) -> None:
    _hosts(parser)
    parser.add_argument(
        "--older-than",
        type=readings.age,
        default=30 * 86_400.0,
        metavar="AGE",
        help="remove folders that were not used for so long: 12h, 7d (default: 30d)",
    )
    parser.add_argument(
        "--keep-size",
        type=readings.amount_of_bytes,
        default=None,
        metavar="SIZE",
        help="of each kind of folder keep no more than that, as 20G: the oldest go",
    )
    parser.add_argument(
        "--work", action="store_true", help="working folders too: checkpoints and whatever else tasks wrote"
    )
    parser.add_argument("--yes", action="store_true", help="do not ask before working folders are removed")
    parser.add_argument("--dry-run", action="store_true", help="say what would be done, change nothing")
    _json(parser)


ADD = {
    "preflight": _preflight,
    "launch": _launch,
    "tail": _tail,
    "status": _status,
    "runs": _runs,
    "clean": _clean,
    "stacks": _stacks,
    "pull": _pull,
    "stop": _stop,
    "rehearse": _rehearse,
}
