"""The words of the command line. Imports nothing heavy: --help must be instant."""

from __future__ import annotations

import argparse
import difflib
import math
import shlex
from collections.abc import Sequence
from typing import Any, NoReturn

from orchestrator import __version__
from orchestrator.errors import UsageError
from orchestrator.model import TaskId

_DESCRIPTION = """\
Distributed TensorFlow training on a handful of machines that answer SSH.

  orchestrate preflight              will this cluster train? if not: what is wrong, where, and the fix
  orchestrate launch -- train.py     sync, validate, start everywhere, stream logs, stop cleanly
  orchestrate tail [RUN]             see any run: live or past
"""

_VERBS = {
    "preflight": "check every host and every pair of hosts",
    "launch": "sync the code, validate, start all tasks and stream their logs",
    "tail": "show the logs of a run, live or past; take over a run whose keeper is gone",
    "status": "ask the nodes what a run's tasks are doing",
    "runs": "list the runs this machine knows",
    "stop": "end a run everywhere and prove that nothing is left",
    "rehearse": "try it all on this machine: private SSH servers, preflight and launch, no trace left",
}


_ALONE = ("-h", "--help", "--version")  # the options that need no verb
_COMMANDED = ("launch", "rehearse")  # the verbs that take a command after --


class _Parser(argparse.ArgumentParser):
    """Raises UsageError instead of leaving the process."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{self.prog}: {message}", hint=f"{self.prog} --help")

    def options(self) -> list[str]:
        return [option for action in self._actions for option in action.option_strings]


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Read one command line; everything after `--` is the user's command. Raise UsageError."""
    ours, command = list(argv), []
    if "--" in ours:
        split = ours.index("--")
        ours, command = ours[:split], ours[split + 1 :]
        if not command:
            raise UsageError("nothing stands after --", hint="leave -- out to train worker_entry's MNIST")
    _check_verb(ours)
    parser, verbs = build()
    arguments, unknown = parser.parse_known_args(ours)
    if unknown:
        raise _unknown(unknown, arguments.verb, verbs[arguments.verb])
    if command and arguments.verb not in _COMMANDED:
        raise UsageError(f"orchestrate {arguments.verb} takes no command after --")
    arguments.command = tuple(command)
    return arguments


def _check_verb(ours: Sequence[str]) -> None:
    """Raise UsageError for a first word that is no verb: argparse would list the verbs and guess nothing."""
    if not ours:
        raise UsageError(
            "orchestrate needs a verb", why=f"one of {', '.join(_VERBS)}", hint="orchestrate --help"
        )
    if ours[0] in _VERBS or ours[0] in _ALONE:
        return
    if ours[0].startswith("-"):
        near = difflib.get_close_matches(ours[0], _ALONE, 1)
        hint = f"did you mean {near[0]}?" if near else f"orchestrate VERB {ours[0]} ..."
        raise UsageError(f"{ours[0]} stands before a verb", why="options come after it", hint=hint)
    near = difflib.get_close_matches(ours[0], _VERBS, 1)
    raise UsageError(
        f"{ours[0]!r} is no verb of orchestrate",
        why=f"the verbs are {', '.join(_VERBS)}",
        hint=f"orchestrate {near[0]}" if near else "orchestrate --help",
    )


def _unknown(words: Sequence[str], verb: str, parser: _Parser) -> UsageError:
    """What is wrong with the first word that nobody takes, and what was probably meant."""
    word = words[0]
    if word.startswith("-"):
        near = difflib.get_close_matches(word.partition("=")[0], parser.options(), 1)
        hint = f"did you mean {near[0]}?" if near else f"orchestrate {verb} --help"
        return UsageError(f"orchestrate {verb} has no option {word}", hint=hint)
    if verb in _COMMANDED:
        hint = f"orchestrate {verb} -- {shlex.join(words)}"
        return UsageError(f"{word!r} stands before --", why="the command to run comes after it", hint=hint)
    return UsageError(f"orchestrate {verb} has no use for {word!r}", hint=f"orchestrate {verb} --help")


def build() -> tuple[_Parser, dict[str, _Parser]]:
    """The parser, and those of its verbs."""
    parser = _Parser(
        prog="orchestrate",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"orchestrate {__version__}")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB", parser_class=_Parser)
    subs: dict[str, _Parser] = {}
    for verb, text in _VERBS.items():
        subs[verb] = sub = verbs.add_parser(verb, help=text, description=text, allow_abbrev=False)
        sub.add_argument("--debug", action="store_true", help="show tracebacks")
        _ARGUMENTS[verb](sub)
    return parser, subs


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
    parser.add_argument("--name", default="", help="a name to find the run by")
    parser.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="K=V",
        type=_assignment,
        help="environment of every task",
    )
    parser.add_argument("--skip-preflight", action="store_true", help="do not check the hosts and pairs")
    parser.add_argument("--no-validate", action="store_true", help="do not train locally on each host first")
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
    parser.add_argument("-n", type=_count, default=4, metavar="N", help="how many hosts (default: 4)")
    parser.add_argument("--python", default=None, help="the Python that trains (default: this one)")
    parser.add_argument("--keep-logs", action="store_true", help="keep the run's folder and say where it is")
    _launching(parser)


def _tail(parser: argparse.ArgumentParser) -> None:
    _run(parser)
    _hosts(parser)
    parser.add_argument(
        "--task", action="append", default=[], type=_task, metavar="worker/1", help="only this task's lines"
    )
    parser.add_argument(
        "-n",
        type=_lines,
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


def _stop(parser: argparse.ArgumentParser) -> None:
    _run(parser)
    _hosts(parser)
    parser.add_argument("--now", action="store_true", help="KILL at once, no grace")
    _json(parser)


_ARGUMENTS = {
    "preflight": _preflight,
    "launch": _launch,
    "tail": _tail,
    "status": _status,
    "runs": _runs,
    "stop": _stop,
    "rehearse": _rehearse,
}


def _assignment(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise argparse.ArgumentTypeError(f"{text!r} is not K=V")
    return name, value


def _task(text: str) -> TaskId:
    try:
        return TaskId.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no task (a task is written worker/1)") from error


def _count(text: str) -> int:
    if not text.isdigit() or not 1 <= int(text) <= 64:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 to 64")
    return int(text)


def _lines(text: str) -> float:
    if text == "all":
        return math.inf
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number nor `all`")
    return int(text)


__all__: list[Any] = ["build", "parse"]
