"""Plans of runs that a host has made up or changed, told to a controller that knows no run at all."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Iterator

from tests.hostile.row import PROTOCOL, Row, Verb, when

_SERIAL = itertools.count(1)  # a node that was asked to keep a run knows it from then on

# A run of its own: the living one's plan with another id, which only the liar tells of, and without a seal.
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
    lie = "if ask['run'] is None:\n" + textwrap.indent(lie, "    ")  # what the liar knows, and not of one run
    return Row(name, verb, when("states", lie), status, words, run)


_UNKNOWN = "there is no run"
_FOLLOWED = "followed and stopped from here, never started again"
_REACHED = {
    "reached by a command": "ssh='local', agent_python='touch ' + CANARY",
    "reached by an ssh_config": "ssh='x', ssh_config='/dev/stdin', port=1",
    "reached by a key": "ssh='x', identity='../../.ssh/id_ed25519', user='root'",
    "with a workdir for a shell": "workdir='/x; touch ' + CANARY, state='/x$(touch ' + CANARY + ')'",
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
        ("restarts without end", "plan['restarts'] = {**plan['restarts'], 'most': 10**6}", 3, "was not started"),
        ("a name of hostile words", "plan['name'] = '\\x1b[2J\\u202e' * 99", 3, ""),
        ("notes of hostile words", "plan['notes'] = ['\\x1b[2J\\u202e' * 99]", 3, ""),
        ("a host that we do not have", "plan['hosts'][0]['name'] = plan['tasks'][0]['host'] = 'evil'", 2, "evil is not in it"),
        ("another address", "plan['hosts'][0]['address'] = '192.0.2.1'", 2, "192.0.2.1"),
        ("no tasks", "plan['tasks'] = []", 2, _UNKNOWN),
        ("the plan of another run", "plan['run'] = '20991231-235959-yyyy'", 2, _UNKNOWN),
        ("a plan nested deep", "plan = '[' * 200_000", 2, _UNKNOWN),
        ("an empty plan", "plan = ''", 2, _UNKNOWN),
        ("a plan that opens out to 100 MB", "plan = '[' * 10**8", 2, _UNKNOWN),
        ("a seal of zeros", "seal = ' ' + '0' * 64", 3, "was not started"),
        ("a working folder that leads out", "plan['cwd'] = '../../../x'", 3, ""),
        ("a digest that is a path", "plan['tree'] = '../../x'", 2, _UNKNOWN),
    ):  # fmt: skip
        yield _made_up(away, name, change, status, words)
    for name, run in (
        ("a run that leads out", "../../../x"),
        ("a run of hostile words", "\x1b[2J\u202e"),
    ):
        change = f"plan['run'] = run['run'] = {run!r}"
        yield _made_up(away, name, change, 2, _UNKNOWN)
    # Of the living run, which bears our seal: what the liar makes of it does not count beside the other's word.
    changed = (
        "for run in result['runs']:\n"
        "    plan, (_, _, seal) = unpacked(run['plan']), run['plan'].partition(' ')\n"
        "    plan['command'] = ['sh', '-c', 'touch ' + CANARY]\n"
        "    for host in plan['hosts']: host.update(ssh='local', agent_python='touch ' + CANARY)\n"
        "    run['plan'] = packed(plan) + ' ' + seal"
    )
    for verb in (Verb.AWAY_STATUS, Verb.AWAY_TAIL, Verb.AWAY_PULL, Verb.AWAY_STACKS):
        yield Row("a plan changed below its seal", verb, when("states", changed), 0, "")
        yield Row("a list for states", verb, when("states", "result = []"), _ALONE[verb], _SAID[verb])
        yield Row("no run at all", verb, when("states", "result['runs'] = []"), _SILENT[verb], "")


_ALONE = {Verb.AWAY_STATUS: 0, Verb.AWAY_TAIL: 0, Verb.AWAY_PULL: 0, Verb.AWAY_STACKS: 0}
_SAID = {Verb.AWAY_STATUS: PROTOCOL, Verb.AWAY_TAIL: "", Verb.AWAY_PULL: "", Verb.AWAY_STACKS: ""}
_SILENT = {Verb.AWAY_STATUS: 0, Verb.AWAY_TAIL: 0, Verb.AWAY_PULL: 0, Verb.AWAY_STACKS: 0}
