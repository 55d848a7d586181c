"""Options that several verbs have, and how values are read. Imports little."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path

from orchestrator.errors import UsageError
from orchestrator.model import Revalidate, TaskId
from orchestrator.requests import LONGEST, MOST, check_name


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


def run(parser: argparse.ArgumentParser) -> None:
    """Add the run, and the inventory whose nodes may know of it."""
    parser.add_argument("run", nargs="?", metavar="RUN", help="id, part of it, or name (default: the newest)")
    hosts(parser)


def task(parser: argparse.ArgumentParser, text: str) -> None:
    parser.add_argument("--task", action="append", default=[], type=task_id, metavar="worker/1", help=text)


def chosen(parser: argparse.ArgumentParser) -> None:
    """The inventory, and which of its hosts."""
    hosts(parser)
    parser.add_argument("--only", metavar="HOSTS", help="only these: 'gpu-[01-03],head'")
    parser.add_argument("--exclude", metavar="HOSTS", help="all but these")


def planning(parser: argparse.ArgumentParser) -> None:
    """Add what makes a plan another one."""
    parser.add_argument("--name", type=name, help="a name to find the run by")
    parser.add_argument(
        "--code",
        metavar="DIR",
        help="the folder to send; tasks run where you stand in it (default: the top of the git repository)",
    )
    parser.add_argument(
        "--env",
        action="append",
        metavar="K=V",
        type=assignment,
        help="environment of every task",
    )
    parser.add_argument(
        "--max-restarts",
        type=whole(),
        metavar="N",
        help="start all tasks again after a failure, up to N times",
    )


def launching(parser: argparse.ArgumentParser) -> None:
    planning(parser)
    parser.add_argument(
        "--hang-timeout",
        type=span,
        metavar="TIME",
        help=(
            "take all stacks when no task prints or reports for this long, or one stays behind: 600, 10m (0:"
            " never)"
        ),
    )
    parser.add_argument(
        "--skip-preflight",
        dest="preflight",
        action="store_const",
        const=False,
        help="do not check the hosts and pairs",
    )
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
        type=whole(1),
        metavar="N",
        help="with --max-restarts: when hosts are lost and no spare is left, continue with as few as N",
    )
    parser.add_argument(
        "--spares",
        type=whole(1),
        metavar="N",
        help="with --max-restarts: the last N hosts train only in place of hosts that are lost",
    )
    text = "at its end write the run as one page of HTML (default: report.html in the run's folder)"
    parser.add_argument("--report", nargs="?", const="", type=output, metavar="FILE", help=text)
    task(parser, "show only this task's lines")
    as_json(parser)


# --- readings of values ---

_TIME = "a time (a time is written 600 or 10m)"


def assignment(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise argparse.ArgumentTypeError(f"{text!r} is not K=V (to pass your own on: K=$K)")
    return name, value


def output(text: str) -> str:
    """Read the path of a file to write, in a folder that exists: a run ends before some are written."""
    if text and Path(text).is_dir():  # "" is --report without a file
        raise argparse.ArgumentTypeError(f"{text} is a folder; name a file")
    if not Path(text).parent.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {Path(text).parent}")
    return text


def task_id(text: str) -> TaskId:
    try:
        return TaskId.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a task (one is written worker/1)") from error


def name(text: str) -> str:
    """Read a name of a run."""
    try:
        check_name(text)
    except UsageError as error:
        raise argparse.ArgumentTypeError(error.what) from error
    return text


def whole(low: int = 0, high: int = MOST) -> Callable[[str], int]:
    """Make the reading of a whole number from `low` to `high`."""

    def read(text: str) -> int:
        if not re.fullmatch(r"-?[0-9]{1,9}", text):
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")
        if not low <= int(text) <= high:
            raise argparse.ArgumentTypeError(f"{text} is not from {low} to {high}")
        return int(text)

    return read


_TIMES = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_SIZES = {"k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


def _amount(text: str, units: Mapping[str, int], what: str) -> float:
    """Read a number with one of the units; 0 needs none."""
    match = re.fullmatch(r"([0-9]{1,6})([A-Za-z]?)", text)
    if text != "0" and (match is None or match[2] not in units):
        raise argparse.ArgumentTypeError(f"{text!r} is not {what}")
    return float(int(match[1]) * units[match[2]]) if match and match[2] else 0.0


def age(text: str) -> float:
    return _amount(text, _TIMES, "an age (an age is written 12h or 7d)")


def since(text: str) -> Callable[[float], float]:
    """Read a point in time: an age, or a date; return the function that tells it from the present time."""
    if re.fullmatch(r"[0-9]{1,6}[smhdw]", text):
        return lambda now: now - age(text)
    try:
        at = datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a time (a time is written 12h, 7d, or 2026-11-20)"
        ) from None
    return lambda _now: at


def span(text: str) -> float:
    """Read a span of time: seconds, or a number with a unit."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = _amount(text, _TIMES, _TIME)
    if not 0 <= seconds <= LONGEST:
        raise argparse.ArgumentTypeError(f"{text!r} is not {_TIME}")
    return seconds


def rate(text: str) -> float:
    """Bytes per second; not 0."""
    amount = _amount(text.removesuffix("/s").removesuffix("B"), _SIZES, "a rate (a rate is written 20M)")
    if not amount:
        raise argparse.ArgumentTypeError(f"{text!r} would send nothing (a rate is written 20M)")
    return amount


def lines(text: str) -> int | None:
    """Read how many lines, the last ones; None for all."""
    if text != "all" and not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number nor `all`")
    return None if text == "all" else int(text)
