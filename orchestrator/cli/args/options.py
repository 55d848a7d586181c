"""Options that several verbs share, and readers of values. Imports little."""

import argparse
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from orchestrator.model import Revalidate, TaskId
from orchestrator.requests import LONGEST, MOST
from orchestrator.text import cut


def command(parser: argparse.ArgumentParser, usage: str) -> None:
    """Declare that the verb takes a command after `--`."""
    parser.usage = f"orchestrate {usage}"
    parser.set_defaults(command=())


def takes_command(parser: argparse.ArgumentParser) -> bool:
    return parser.get_default("command") is not None


def flag(parser: argparse._ActionsContainer, name: str, text: str, **more: Any) -> None:
    parser.add_argument(name, action="store_true", help=text, **more)


def hosts(parser: argparse.ArgumentParser) -> None:
    text = "an inventory file, host names (gpu-01,gpu-02), or `slurm` for the nodes of this Slurm job"
    text += " (default: hosts.toml, here or in a folder above)"
    parser.add_argument("--hosts", metavar="FILE", help=text)


def as_json(parser: argparse.ArgumentParser) -> None:
    flag(parser, "--json", "only JSON on stdout")


def run(parser: argparse.ArgumentParser) -> None:
    """Add the run, and the inventory whose nodes may know of it."""
    parser.add_argument("run", nargs="?", metavar="RUN", help="id, part of it, or name (default: the newest)")
    hosts(parser)


def task(parser: argparse.ArgumentParser, text: str) -> None:
    parser.add_argument("--task", action="append", default=[], type=task_id, metavar="worker/1", help=text)


def chosen(parser: argparse.ArgumentParser) -> None:
    """Add the inventory, and the selection of its hosts."""
    hosts(parser)
    parser.add_argument("--only", metavar="HOSTS", help="only these hosts: 'gpu-[01-03],head'")
    parser.add_argument("--exclude", metavar="HOSTS", help="all hosts except these")


def planning(parser: argparse.ArgumentParser) -> None:
    """Add the options that change a plan."""
    parser.add_argument("--name", help="a name for the run")
    text = "the folder to send (default: the git repository); tasks run in the copy of the current folder"
    parser.add_argument("--code", metavar="DIR", help=text)
    text = "an environment variable for every task; may be repeated"
    parser.add_argument("--env", action="append", metavar="K=V", type=assignment, help=text)
    text = "restart all tasks after a failure, up to N times"
    parser.add_argument("--max-restarts", type=whole(), metavar="N", help=text)


def launching(parser: argparse.ArgumentParser) -> None:
    planning(parser)
    text = "collect all stacks when no task prints or reports for this long, or one falls behind: 600, 10m"
    parser.add_argument("--hang-timeout", type=span, metavar="TIME", help=f"{text} (0: never)")
    text = "keep the program's imports in memory for the next launch, for this long after the run: 10m"
    parser.add_argument("--keep-warm", type=span, metavar="TIME", help=text)
    text = "skip the preflight"
    names = "--skip-preflight", "--no-preflight"
    parser.add_argument(*names, dest="preflight", action="store_const", const=False, help=text)
    text = "run local validation on each host first: always; only if it did not pass within a day or"
    text += " something changed since; or never (default: changed)"
    parser.add_argument("--validate", choices=[choice.value for choice in Revalidate], help=text)
    text = "the same as --validate never"
    names = "--no-validate", "--skip-validate"
    parser.add_argument(*names, dest="validate", action="store_const", const="never", help=text)
    text = "with --max-restarts: if hosts are lost and no spare is left, continue with at least N hosts"
    parser.add_argument("--min-hosts", type=whole(1), metavar="N", help=text)
    text = "with --max-restarts: the last N hosts are spares, which only replace lost hosts"
    parser.add_argument("--spares", type=whole(1), metavar="N", help=text)
    task(parser, "show only this task's lines")
    as_json(parser)


# --- readers of values ---

_TIME = "a time, such as 600 or 10m"


def assignment(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise argparse.ArgumentTypeError(f"{text!r} is not K=V (K=$K passes on your own value)")
    return name, value


def output(text: str) -> str:
    """Read the path of a file to write, in an existing folder."""
    if Path(text).is_dir():
        raise argparse.ArgumentTypeError(f"{text} is a folder; name a file")
    if not Path(text).parent.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {Path(text).parent}")
    return text


def task_id(text: str) -> TaskId:
    try:
        return TaskId.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a task, such as worker/1") from error


def whole(low: int = 0, high: int = MOST) -> Callable[[str], int]:
    """Return a reader for a whole number from `low` to `high`."""

    def read(text: str) -> int:
        if not re.fullmatch(r"-?[0-9]+", text):
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")
        if len(text) > 20 or not low <= int(text) <= high:
            raise argparse.ArgumentTypeError(f"{cut(text, 20)} is not between {low} and {high}")
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
    return _amount(text, _TIMES, "an age, such as 12h or 7d")


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
    """Read bytes per second; not 0."""
    amount = _amount(text.removesuffix("/s").removesuffix("B"), _SIZES, "a rate, such as 20M")
    if not amount:
        raise argparse.ArgumentTypeError(f"{text!r} would send nothing; a rate is, for example, 20M")
    return amount


def lines(text: str) -> int | None:
    """Read a number of last lines; None for all."""
    if text != "all" and not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number nor `all`")
    return None if text == "all" else int(text)
