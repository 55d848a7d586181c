"""The words of the command line. Imports nothing heavy: --help must be instant."""

from __future__ import annotations

import argparse
import difflib
import shlex
from collections.abc import Sequence
from typing import Any, NoReturn

from orchestrator import __version__
from orchestrator.cli import options
from orchestrator.errors import UsageError

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
    "clean": "prove that the hosts hold nothing of ended runs, and remove what is old",
    "stacks": "show where a run's tasks stand: their Python stacks, equal ones folded, the odd one named",
    "pull": "fetch what a run's tasks wrote: checkpoints, models, TensorBoard logs",
    "stop": "end a run everywhere and prove that nothing is left",
    "rehearse": "try it all on this machine: private SSH servers, preflight and launch, no trace left",
}


_ALONE = ("-h", "--help", "--version")  # the options that need no verb
_COMMANDED = ("launch", "rehearse")  # the verbs that take a command after --


# `stop "$RUN"` must not end whichever run is the only one.
_UNSET = "it comes of a shell variable that is not set, perhaps"


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
        if not command[0]:
            raise UsageError(
                "the command after -- begins with an empty word",
                why=_UNSET,
                hint="echo the command to see it",
            )
    _check_verb(ours)
    if any(not word or (word[:2] == "--" and word[-1] == "=" and word.count("=") == 1) for word in ours):
        raise UsageError(
            f"an argument of orchestrate {ours[0]} is empty",
            why=_UNSET,
            hint="set it, or leave the argument out",
        )
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
        options.ADD[verb](sub)
    return parser, subs


__all__: list[Any] = ["build", "parse"]
