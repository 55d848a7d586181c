"""`orchestrate completion`: what makes a shell complete our command line."""

from __future__ import annotations

import argparse

from orchestrator.cli.desk.out import say
from orchestrator.errors import ExitStatus

SUMMARY = "print what makes your shell complete verbs, options, runs, hosts and tasks"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), metavar="SHELL", help="bash, zsh or fish")


def main(arguments: argparse.Namespace) -> int:
    from argcomplete.shell_integration import shellcode

    say(*shellcode(["orchestrate"], shell=arguments.shell).strip("\n").split("\n"))
    return int(ExitStatus.OK)
