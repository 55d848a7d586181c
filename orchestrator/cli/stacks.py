"""`orchestrate stacks`: where the tasks of a run are now, whichever machine keeps it."""

import argparse
import json

import msgspec

from orchestrator.cli.args import options
from orchestrator.cli.desk.out import facts, say, tell
from orchestrator.cli.desk.person import Person
from orchestrator.errors import ExitStatus
from orchestrator.phases.hang import RunStacks
from orchestrator.run.stacks import folded
from orchestrator.verbs.finding import find_run
from orchestrator.verbs.stacks import take


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.run(parser)
    options.as_json(parser)


def main(arguments: argparse.Namespace) -> int:
    person = Person()
    folder = find_run(arguments.run, arguments.hosts, person)
    taken = take(folder, person)
    if arguments.json:
        facts(_facts(folder.run, taken))
    else:
        for host, why in taken.missing.items():
            tell(f"warning: no stacks from {host}: {why}")
        say(taken.sentence, "", *folded(taken.finding), "", f"all stacks: {taken.file}")
    return ExitStatus.CLUSTER if taken.missing else ExitStatus.OK


def _facts(run: str, taken: RunStacks) -> str:
    facts = {
        "run": run,
        "found": taken.sentence,
        "odd": [stack.task for stack in taken.finding.odd],
        "groups": [
            {
                "tasks": [stack.task for stack in alike],
                "stopped": alike[0].stopped,
                "frames": [str(frame) for frame in alike[0].frames],
                "why": alike[0].why,
            }
            for alike in taken.finding.groups
        ],
        "missing": dict(taken.missing),
        "file": str(taken.file),
        "tasks": [{**msgspec.to_builtins(task), "host": host} for host, task in taken.tasks],
    }
    return json.dumps(facts)
