"""`orchestrate tail`: any run, live or past; takes over one whose keeper is gone."""

import argparse

from orchestrator.cli.args import options
from orchestrator.cli.desk import watch
from orchestrator.cli.desk.person import Person
from orchestrator.errors import ExitStatus
from orchestrator.planning.selection import wanted_tasks
from orchestrator.render import Look
from orchestrator.store.standing import standing
from orchestrator.verbs.asking import adopt
from orchestrator.verbs.finding import find_run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.run(parser)
    options.task(parser, "only this task's lines")
    text = "begin each log with its last N lines, or `all` (default: 100)"
    parser.add_argument("-n", type=options.lines, default=100, metavar="N", help=text)
    options.flag(parser, "--no-follow", "print the output so far and exit")
    options.flag(parser, "--notes", "also show how the run was started: notes, phases, hosts")
    options.flag(parser, "--timestamps", "show the time of each line")
    options.as_json(parser)


def main(arguments: argparse.Namespace) -> int:
    person = Person()
    folder = find_run(arguments.run, arguments.hosts, person)
    plan = folder.read_plan()
    tasks = wanted_tasks(arguments.task, plan, f"run {folder.run}")
    ended = standing(folder)[0].ended is not None
    if not ended and not arguments.no_follow:
        adopt(folder, person)  # no effect if it has a keeper
    look = Look(
        timestamps=arguments.timestamps,
        shows=lambda task: not tasks or task in tasks,
        brief=not arguments.notes,
    )
    reader, renderer = watch.shown(folder, look, as_json=arguments.json, last=arguments.n)
    if arguments.no_follow and not ended:
        try:
            for stamped in reader.poll():
                renderer.handle(stamped)
        finally:
            renderer.close()
        return ExitStatus.OK
    return watch.look(folder, reader, renderer)
