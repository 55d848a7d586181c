"""The words of the command line. Imports nothing heavy: --help must be instant."""

from __future__ import annotations

import argparse
import difflib
import importlib
import shlex
import sys
from collections.abc import Sequence
from typing import Any, NoReturn, Protocol, cast

from orchestrator import __version__
from orchestrator.cli.args import misplaced, options, spelling
from orchestrator.errors import UsageError

_DESCRIPTION = """\
Distributed TensorFlow training on a handful of machines that answer SSH.

  orchestrate init gpu-01 gpu-02     write a hosts.toml of the machines you have
  orchestrate preflight              will this cluster train? if not: what is wrong, where, and the fix
  orchestrate launch -- train.py     sync, validate, start everywhere, stream logs, stop cleanly
  orchestrate tail [RUN]             see any run: live or past
"""

# Each is a file of cli/, in the order of --help.
VERBS = (
    "init",
    "setup",
    "push",
    "preflight",
    "launch",
    "exec",
    "tail",
    "status",
    "runs",
    "clean",
    "stacks",
    "pull",
    "tensorboard",
    "stop",
    "rehearse",
    "completion",
)
_ALONE = ("-h", "--help", "--version")  # the options that need no verb

# `stop "$RUN"` must not end whichever run is the only one.
_UNSET = "a shell variable is probably not set"


class Verb(Protocol):
    """What the file of a verb has. Importing it is cheap: what only `main` needs is imported there."""

    SUMMARY: str

    def add_arguments(self, parser: argparse.ArgumentParser, /) -> None: ...

    def main(self, arguments: argparse.Namespace, /) -> int: ...


def verb(name: str) -> Verb:
    return cast("Verb", importlib.import_module(f"orchestrator.cli.{name}"))


class _Parser(argparse.ArgumentParser):
    """Raises UsageError instead of leaving the process."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{self.prog}: {message}", hint=f"`{self.prog} --help`")

    def _print_message(self, message: str, file: Any = None) -> None:
        """From Python 3.12 on argparse keeps silent about a full disk."""
        (file or sys.stderr).write(message)

    def options(self) -> list[str]:
        return [option for action in self._actions for option in action.option_strings]


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Read one command line; everything after `--` is the user's command. Raise UsageError.

    `ours` of what it returns are the words before that, as they were read.
    """
    ours, command = list(argv), []
    _check_utf8(ours)
    if "--" in ours:
        split = ours.index("--")
        ours, command = ours[:split], ours[split + 1 :]
        if not command:
            exec_ = ours[:1] == ["exec"]
            line = shlex.join([*ours, "--", "uptime"])
            hint = f"`orchestrate {line}`" if exec_ else "leave -- out to train worker_entry's MNIST"
            raise UsageError("nothing follows --", hint=hint)
        if command[0] == "--":
            line = shlex.join([*(ours or ["launch"]), "--", *command[1:]])
            raise UsageError("-- stands twice", why="one is enough", hint=f"`orchestrate {line}`")
        if not command[0]:
            raise UsageError(
                "the command after -- begins with an empty word",
                why=_UNSET,
                hint="echo the command to see it",
            )
    ours = spelling.ours(ours, VERBS)
    _check_verb(ours, command)
    if any(not word or (word[:2] == "--" and word[-1] == "=" and word.count("=") == 1) for word in ours):
        raise UsageError(
            f"an argument of orchestrate {ours[0]} is empty",
            why=_UNSET,
            hint="set it, or leave the argument out",
        )
    if foreign := spelling.long_with_one_hyphen(ours, ours[0]):
        raise foreign
    parser, verbs = _without_options(VERBS) if ours[0] in _ALONE else build(ours[:1])
    arguments, unknown = parser.parse_known_args(ours)
    if unknown:
        raise _unknown(unknown, ours, verbs[arguments.verb], command)
    arguments.ours = tuple(ours)
    if options.takes_command(verbs[arguments.verb]):
        arguments.command = tuple(command)
    elif command:
        raise UsageError(f"orchestrate {arguments.verb} takes no command after --")
    return arguments


def _check_utf8(words: Sequence[str]) -> None:
    """Raise UsageError for a word with bytes that are not UTF-8: plans, events and nodes know texts only."""
    for word in words:
        if not word.isascii() and any("\ud800" <= character <= "\udfff" for character in word):
            shown = word.encode("utf-8", "backslashreplace").decode()
            raise UsageError(
                f"an argument is not UTF-8: {shown}",
                why="tasks are given text; byte 0xff, for example, is shown as \\udcff above",
                hint="write it as UTF-8, or have the program read it from a file",
            )


def _check_verb(ours: Sequence[str], command: Sequence[str]) -> None:
    """Raise UsageError for a first word that is not a verb: argparse would list them and guess nothing."""
    if ours and (ours[0] in VERBS or ours[0] in _ALONE):
        return
    hint = _with_a_verb(ours, command)
    if not ours:
        raise UsageError("orchestrate needs a verb", why=f"one of {', '.join(VERBS)}", hint=hint)
    if ours[0].startswith("-"):
        raise UsageError(f"{ours[0]} stands before a verb", why="options come after it", hint=hint)
    raise UsageError(
        f"{ours[0]!r} is not a verb of orchestrate", why=f"the verbs are {', '.join(VERBS)}", hint=hint
    )


def _with_a_verb(ours: Sequence[str], command: Sequence[str]) -> str:
    """What was probably meant by a line that does not begin with a verb."""
    at = next((at for at, word in enumerate(ours) if word in VERBS), None)
    behind = f" -- {shlex.join(command)}" if command else ""
    if not ours:
        return f"`orchestrate launch{behind}`" if command else "`orchestrate --help`"
    first = ours[0]
    if at is not None:
        words = ["--hosts", *ours[:at]] if first.endswith(".toml") else ours[:at]
        return f"`orchestrate {shlex.join([ours[at], *words, *ours[at + 1 :]])}{behind}`"
    if first.startswith("-"):
        near = difflib.get_close_matches(first, _ALONE, 1, cutoff=0.8)
        return f"write {near[0]}" if near else f"`orchestrate VERB {first} ...`"
    if not command and (misplaced.is_program(first) or misplaced.is_interpreter(first)):
        return f"`orchestrate launch -- {shlex.join(ours)}`"
    near = difflib.get_close_matches(first, VERBS, 1, cutoff=0.7)
    if near and not command and ours[1:] and not ours[1].startswith("-") and near[0] in ("launch", "exec"):
        return f"`orchestrate {near[0]} -- {shlex.join(ours[1:])}`"
    return f"`orchestrate {shlex.join([*near, *ours[1:]])}{behind}`" if near else "`orchestrate --help`"


def _unknown(
    words: Sequence[str], ours: Sequence[str], parser: _Parser, command: Sequence[str]
) -> UsageError:
    """What is wrong with the first word that nobody takes, and what was probably meant."""
    word, verb = words[0], ours[0]
    known = parser.options().__contains__
    if word.startswith("-") and word != "-":
        if foreign := spelling.of_another_tool(words, verb, known):
            return foreign
        near = difflib.get_close_matches(word.partition("=")[0], parser.options(), 1, cutoff=0.7)
        trains = "--no-validate" in parser.options()  # worker_entry, where no command stands
        if not near and (command or trains) and (line := misplaced.behind(words, command)):
            return UsageError(
                f"orchestrate {verb} has no option {word}",
                why="what the program is given comes behind it",
                hint=f"`orchestrate {misplaced.kept(ours, words)} -- {line}`",
            )
        hint = f"write {near[0]}" if near else f"`orchestrate {verb} --help`"
        return UsageError(f"orchestrate {verb} has no option {word}", hint=hint)
    if options.takes_command(parser):
        return misplaced.word(words, ours, command, known)
    if "--only" in parser.options() and (meant := misplaced.hosts(words, ours)):
        return meant
    return UsageError(f"orchestrate {verb} has no use for {word!r}", hint=f"`orchestrate {verb} --help`")


def build(names: Sequence[str] = VERBS) -> tuple[_Parser, dict[str, _Parser]]:
    """The parser, and those of these verbs."""
    parser, verbs = _without_options(names)
    for name, one in verbs.items():
        one.add_argument("--debug", action="store_true", help="show tracebacks")
        verb(name).add_arguments(one)
    return parser, verbs


def _without_options(names: Sequence[str]) -> tuple[_Parser, dict[str, _Parser]]:
    """The same, and it knows what each verb is for, which is all that `orchestrate --help` says."""
    parser = _Parser(
        prog="orchestrate",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"orchestrate {__version__}")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB", parser_class=_Parser)
    summaries = {name: verb(name).SUMMARY for name in names}
    return parser, {
        name: verbs.add_parser(name, help=summary, description=summary, allow_abbrev=False)
        for name, summary in summaries.items()
    }
