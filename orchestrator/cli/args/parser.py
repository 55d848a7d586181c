"""The grammar of the command line. Imports nothing slow: --help must be instant."""

import argparse
import importlib
import shlex
from collections.abc import Sequence
from types import ModuleType
from typing import NoReturn

from orchestrator import __version__
from orchestrator.cli.args import options
from orchestrator.errors import UsageError
from orchestrator.nearest import VERBS as OTHER_VERBS
from orchestrator.nearest import nearest
from orchestrator.program.invocation import SCRIPTS, as_words, with_env
from orchestrator.requests import check_texts

_DESCRIPTION = """\
Train one model across all your machines over SSH, with unchanged TensorFlow, PyTorch, or JAX scripts.

  orchestrate init gpu-01 gpu-02     write a hosts.toml for your machines
  orchestrate preflight              check that the machines can train together; each error suggests a fix
  orchestrate launch -- train.py     send the code, validate, start everywhere, stream the logs, stop cleanly
  orchestrate tail [RUN]             show a run, live or past
"""

# Each is a file of cli/, in the order of --help.
VERBS = {
    "init": "examine your hosts, and write a hosts.toml for them",
    "setup": "create the [env] environment, or fetch the container image, on every host",
    "push": "copy the data listed in [data] to every host that lacks it",
    "preflight": "check every host and every pair of hosts",
    "launch": "send the code, validate, start all tasks, and stream their logs",
    "exec": "run one command on all hosts; identical output is shown once",
    "tail": "show the logs of a run, live or past; take over a run that no process manages",
    "status": "show what each task of a run is doing",
    "runs": "list the runs recorded on this machine",
    "report": "write an HTML page about a run: verdict, curves, timeline, hosts, logs",
    "clean": "kill leftover processes of ended runs on the hosts, and remove old files",
    "stacks": "show the Python stacks of a run's tasks, and which task the others wait for",
    "pull": "fetch what a run's tasks wrote: checkpoints, models, TensorBoard logs",
    "tensorboard": "show what a run's tasks write for TensorBoard, live, in your browser",
    "stop": "end a run everywhere and verify that nothing is left",
    "rehearse": "try everything on this machine: private SSH servers, preflight, and launch",
    "export": "write the run as a batch file for Slurm, or as manifests for Kubernetes",
    "completion": "print a script for your shell that completes verbs, options, and runs",
}
_ALONE = ("-h", "--help", "-V", "--version")  # the options that need no verb


def verb(name: str) -> ModuleType:
    """Import the file of a verb, and with it everything that the verb needs."""
    return importlib.import_module(f"orchestrator.cli.{name}")


class _Parser(argparse.ArgumentParser):
    """Raises UsageError instead of exiting."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{self.prog}: {message}", hint=f"`{self.prog} --help`")

    def options(self) -> list[str]:
        return [option for action in self._actions for option in action.option_strings]


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Read one command line; everything after `--` is the user's command. Raise UsageError."""
    if not argv or argv[0] == "help":
        argv = [*argv[1:2], "--help"]
    split = list(argv).index("--") if "--" in argv else len(argv)
    ours, command = list(argv[:split]), list(argv[split + 1 :])
    check_texts(argv)
    if not command and split < len(argv):
        raise UsageError("no command follows --", hint="write a command after --, or omit --")
    _check_verb(ours, command)
    words = [*ours, *command[:1]]
    # `stop "$RUN"` must not end the only run if RUN is empty.
    if any(not word or (word[:2] == "--" and word.find("=") == len(word) - 1) for word in words):
        raise UsageError(
            f"an argument of orchestrate {ours[0]} is empty",
            why="a shell variable is probably not set",
            hint="set it, or omit the argument",
        )
    parser, verbs = build(ours[0])
    arguments, unexpected = parser.parse_known_args(ours)
    chosen = verbs[arguments.verb]
    if unexpected:
        raise _unexpected(unexpected, chosen, command)
    if options.takes_command(chosen):
        arguments.command = tuple(command)
    elif command:
        raise UsageError(f"orchestrate {arguments.verb} takes no command after --")
    return arguments


def _check_verb(ours: Sequence[str], command: Sequence[str]) -> None:
    """Raise UsageError for a first word that is not a verb: argparse would only list the verbs."""
    if ours and (ours[0] in VERBS or ours[0] in _ALONE):
        return
    word, why = ours[0] if ours else "", f"the verbs are {', '.join(VERBS)}"
    hint = "`orchestrate --help`"
    if word.startswith("-") and (later := next(filter(VERBS.__contains__, ours), "")):
        raise _behind(later, ours, command)
    if command or any(argument.endswith(SCRIPTS) for argument in ours):
        hint = _launch(command or ours)
    what = f"{word!r} is not an orchestrate verb" if ours else "orchestrate needs a verb"
    raise UsageError(what, why=why, hint=_near(word, (*VERBS, *_ALONE), hint))


def _behind(name: str, ours: Sequence[str], command: Sequence[str]) -> UsageError:
    """Return a hint on where to put options that precede the verb."""
    others = [word for word in ours if word != name]
    line = shlex.join([name, *others, *(["--", *command] if command else [])])
    hint = f"`orchestrate {line}`"
    options_of = build(name)[1][name].options()
    absent = [word for word in others if word[0] == "-" and word.partition("=")[0] not in options_of]
    if absent:
        hint = f"`orchestrate {name}`, which has no option {absent[0].partition('=')[0]}"
    return UsageError(f"{ours[0]} precedes the verb {name}", why="options follow the verb", hint=hint)


def _near(word: str, choices: Sequence[str], otherwise: str) -> str:
    near = nearest(word.partition("=")[0], choices, OTHER_VERBS, 0.7)
    return (f"write {near}" if near[0] == "-" else f"`orchestrate {near}`") if near else otherwise


def _launch(argv: Sequence[str], prog: str = "orchestrate launch") -> str:
    """Return the command line that launches this: a single text is split, variables become options."""
    shell = ("bash", "-o", "pipefail", "-c") if len(argv) == 1 and " " in argv[0] else ()
    split = as_words(tuple(argv)) or (*shell, *argv)
    return f"`{prog} {with_env(split)}`"


def _unexpected(arguments: Sequence[str], parser: _Parser, command: Sequence[str]) -> UsageError:
    """Return the error for arguments that the verb does not take."""
    hint = f"`{parser.prog} --help`"
    if options.takes_command(parser) and not command:
        hint = f"{_launch(arguments, f'{parser.prog} [options]')}: the command comes after --"
    elif "--only" in parser.options() and not command and arguments[0][0] != "-":
        hint = f"`{parser.prog} --only {shlex.quote(','.join(arguments))}`"
    if arguments[0].startswith("-"):
        hint = _near(arguments[0], parser.options(), hint)
    return UsageError(f"{parser.prog}: unexpected argument {arguments[0]!r}", hint=hint)


def build(*words: str) -> tuple[_Parser, dict[str, _Parser]]:
    """Return the parser with one for each verb; only those of the verbs in `words` have their options."""
    parser = _Parser(
        prog="orchestrate",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("-V", "--version", action="version", version=f"orchestrate {__version__}")
    subparsers = parser.add_subparsers(dest="verb", required=True, metavar="VERB", parser_class=_Parser)
    verbs = {
        name: subparsers.add_parser(name, help=summary, description=summary, allow_abbrev=False)
        for name, summary in VERBS.items()
    }
    for name in verbs.keys() & words:
        options.flag(verbs[name], "--debug", "show tracebacks")
        verb(name).add_arguments(verbs[name])
    return parser, verbs
