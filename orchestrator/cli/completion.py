"""`orchestrate completion`: what makes a shell complete verbs, options and runs; argcomplete does it.

A shell runs `orchestrate` itself for an answer, with _ARGCOMPLETE set; a Tab reaches no host.
"""

from __future__ import annotations

import argparse
import os

import argcomplete
from argcomplete.shell_integration import shellcode

from orchestrator.cli.args.parser import build
from orchestrator.cli.desk.out import say
from orchestrator.errors import ExitStatus
from orchestrator.store import runs


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), metavar="SHELL", help="bash, zsh or fish")


def main(arguments: argparse.Namespace) -> int:
    say(*shellcode(["orchestrate"], shell=arguments.shell).strip("\n").split("\n"))
    return ExitStatus.OK


def answer() -> None:
    """Write the words that fit and leave the process."""
    parser, verbs = build(*os.environ["COMP_LINE"].split()[1:2])
    for verb in verbs.values():
        for action in verb._actions:  # noqa: SLF001 - argparse has no other way to list them
            if action.dest == "run":
                vars(action)["completer"] = lambda **_: [folder.run for folder in runs()]
    argcomplete.autocomplete(parser, always_complete_options=False)
