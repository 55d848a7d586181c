"""Invented or modified plans from a host, sent to a controller that has no runs."""

import itertools
import textwrap
from collections.abc import Iterator

from tests.hostile.row import Row, Verb, when

_SERIAL = itertools.count(1)  # a node that was asked to keep a run has it from then on

# An invented run: the living one's plan with a different ID, unsealed, and reported only by the liar.
_PLAN = """
run = next(one for one in result['runs'] if one['plan'] and any(task['alive'] for task in one['tasks']))
plan, seal = unpacked(run['plan']), ''
plan['run'] = 'MADE UP'
plan['created'] = 4e9
run = dict(run, run='MADE UP', keeper=None)
command = ['sh', '-c', 'touch ' + CANARY]
CHANGE
run['plan'] = packed(plan) + seal
result['runs'].append(run)
""".strip()


def _made_up(verb: Verb, name: str, change: str, status: int, words: str) -> Row:
    run = f"20991231-235959-{next(_SERIAL):04}"
    lie = _PLAN.replace("CHANGE", change).replace("MADE UP", run)
    lie = "if ask['run'] is None:\n" + textwrap.indent(lie, "    ")  # a request for all runs, not for one
    return Row(name, verb, when("states", lie), status, words, run)


_UNKNOWN = "there is no run"
_FOLLOWED = "followed and stopped from here, never started again"
_REACHED = {
    "reached by a command": "ssh='local', agent_python='touch ' + CANARY",
    "reached by a key, with a workdir for a shell": "ssh='x', identity='../../.ssh/id_ed25519', user='root', workdir='/x; touch ' + CANARY, state='/x$(touch ' + CANARY + ')'",
}


def rows() -> Iterator[Row]:
    away = Verb.AWAY_MADE_UP
    for name, fields in _REACHED.items():
        change = f"for host in plan['hosts']: host.update({fields})"
        yield _made_up(away, name, change, 3, _FOLLOWED)
    yield _made_up(Verb.AWAY_STOP_MADE_UP, "reached by a command", change, 0, _FOLLOWED)
    for name, change, status, words in (
        ("a command of its own", "plan['command'] = command\nfor task in plan['tasks']: task['argv'] = command", 3, "was not started"),
        ("secrets of ours", "plan['secrets'] = ['HOME', 'PATH']", 3, "was not started"),
        ("a host that we do not have", "plan['hosts'][0]['name'] = plan['tasks'][0]['host'] = 'evil'", 2, "evil is not in it"),
        ("a plan that opens out to 100 MB", "plan = '[' * 10**8", 2, _UNKNOWN),
        ("a digest that is a path", "plan['tree'] = '../../x'", 2, _UNKNOWN),
    ):  # fmt: skip
        yield _made_up(away, name, change, status, words)
    change = f"plan['run'] = run['run'] = {'../../../x' + chr(27)!r}"
    yield _made_up(away, "a run that leads out", change, 2, _UNKNOWN)
    # The living run, which is sealed: the liar's version does not count against the other host's.
    changed = (
        "for run in result['runs']:\n"
        "    plan, (_, _, seal) = unpacked(run['plan']), run['plan'].partition(' ')\n"
        "    plan['command'] = ['sh', '-c', 'touch ' + CANARY]\n"
        "    for host in plan['hosts']: host.update(ssh='local', agent_python='touch ' + CANARY)\n"
        "    run['plan'] = packed(plan) + ' ' + seal"
    )
    for verb in (Verb.AWAY_STATUS, Verb.AWAY_PULL, Verb.AWAY_STACKS):
        yield Row("a plan changed below its seal", verb, when("states", changed), 0, "")
    yield Row("a list for states", Verb.AWAY_TAIL, when("states", "result = []"), 0, "")
