"""`orchestrate export`: the same run as files for an engine that starts tasks itself."""

import argparse
import sys
from pathlib import Path

from orchestrator.cli.args import options
from orchestrator.cli.desk.out import tell, unchanged
from orchestrator.cli.desk.person import Person, request_of, selection_of
from orchestrator.errors import ExitStatus, unless_refused
from orchestrator.export import common
from orchestrator.node.base.descriptors import write_all
from orchestrator.plainfile import write_atomically
from orchestrator.requests import ExportRequest, LaunchRequest, make
from orchestrator.verbs.export import export


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.command(parser, "export [options] slurm|kubernetes [-- COMMAND ...]")
    engines = ("slurm", "kubernetes")
    parser.add_argument("engine", choices=engines, metavar="ENGINE", help="slurm or kubernetes")
    options.chosen(parser)
    options.planning(parser)
    text = "where to write (default: stdout)"
    parser.add_argument("-o", "--output", type=options.output, metavar="FILE", help=text)
    options.flag(parser, "--plain", "for slurm: use srun and orchestrate_rank.py instead of orchestrate")


def main(arguments: argparse.Namespace) -> int:
    launch = request_of(LaunchRequest, arguments, Person())
    selection = selection_of(arguments)
    # Where the shell redirects the output, it is a file of the project too.
    own = (arguments.output, f"/dev/fd/{sys.stdout.fileno()}")
    request = make(ExportRequest, vars(arguments), launch=launch, selection=selection)
    made = export(request, tuple(name for name in own if name))
    output = None if arguments.output is None else Path(arguments.output)
    if made.needs_rank and output is None:
        tell(f"it needs {common.RANK_FILE} in {Path.cwd()}; -o FILE puts it there")
    elif made.needs_rank:
        _write(Path(common.RANK_FILE.name), common.RANK_FILE.read_text(encoding="utf-8"))
    tell(*(f"note: {note}" for note in made.plan.notes))
    if output is None:
        unchanged(made.text)
    else:
        _write(output, made.text)
    return ExitStatus.OK


def _write(path: Path, text: str) -> None:
    """Write a new file, or orchestrate_rank.py; raise UsageError for a file of the user's."""
    data = text.encode("utf-8", "surrogateescape")
    with unless_refused(f"cannot write {path}", "choose another -o, or remove that file"):
        if path.name == common.RANK_FILE.name:
            write_atomically(path, data, 0o666)
        else:
            with path.open("xb") as file:
                try:
                    write_all(file.fileno(), data)
                except OSError:
                    path.unlink()
                    raise
    tell(f"wrote {path}")
