"""How fast the hosts compute, measured in their validation: who is asked, and what is said of slow ones."""

from __future__ import annotations

import dataclasses
import shlex
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping

from orchestrator.events import HostsSlow, Last, TaskReported
from orchestrator.model import Role, TaskSpec
from orchestrator.phases.context import Run
from orchestrator.ranges import fold
from orchestrator.run import speeds
from orchestrator.run.speeds import Sample, Slow

_TRAINERS = (Role.CHIEF, Role.WORKER)
_NOW = 120.0  # seconds for which a measurement is of this launch
_LOOK = "see what runs there: `orchestrate exec --only {} -- uptime`"


def measuring(run: Run, spec: TaskSpec) -> TaskSpec:
    """The validation of a host, which measures its speed where others wait for it."""
    if run.plan.admission.validate_command is not None or spec.host not in _waited_for(run):
        return spec
    place = spec.argv.index("--validate") + 1
    more = ("--speed", f"{run.timings.speed:g}") if run.timings.speed else ()
    return dataclasses.replace(spec, argv=(*spec.argv[:place], *more, *spec.argv[place:]))


def sample_of(result: TaskReported | None) -> Sample | None:
    """What a task has measured."""
    if result is None or result.kind is not Last.RESULT:
        return None
    return speeds.parse(result.data.get("speed"), time.time())


def suspects(run: Run, samples: Mapping[str, Sample], fresh: Collection[str]) -> set[str]:
    """Of the hosts that were measured just now (`fresh`) those that seem slow."""
    return {one.host for group in _groups(run, samples) for one in _slow(run, group)} & set(fresh)


def best(first: Mapping[str, Sample], second: Mapping[str, Sample]) -> dict[str, Sample]:
    """Of each host that was measured twice the better one."""
    return {name: speeds.better(first[name], again) for name, again in second.items() if name in first}


def compare(run: Run, samples: Mapping[str, Sample]) -> None:
    """Say which hosts hold the others up, and what that costs."""
    found = [one for group in _groups(run, samples) for one in _slow(run, group)]
    if not found:
        return
    leave_out = speeds.loss(found, len(_waited_for(run))).leave_out
    every = fold(one.host for one in found)
    for why in dict.fromkeys(one.why for one in found):
        slow = [one for one in found if one.why == why]
        names = tuple(one.host for one in slow)
        age = time.time() - min(samples[name].at for name in names)
        old = age > _NOW
        hint = _hint(every if leave_out else fold(names), leave_out=leave_out, old=old)
        lost = speeds.loss(slow, len(slow)).share
        run.bus.emit(HostsSlow(names, slow[0].speed, lost, why, hint, age if old else 0.0))


def _hint(names: str, *, leave_out: bool, old: bool) -> str:
    # Fewer hosts at full speed may compute less than all of them at the slow one's.
    which = shlex.quote(names)
    hint = f"leave out {names}: `--exclude {which}`" if leave_out else _LOOK.format(which)
    return f"{hint}; `--validate always` measures again" if old else hint


def _slow(run: Run, samples: Mapping[str, Sample]) -> list[Slow]:
    """The slow ones of hosts that do equal work."""
    kernels = {name: session.hello.boot_id for name, session in run.fleet.sessions.items()}
    counts = Counter(kernels.values())
    lone = [name for name in samples if counts[kernels.get(name, "")] == 1]
    return speeds.slow(samples, lone)


def _groups(run: Run, samples: Mapping[str, Sample]) -> Iterator[dict[str, Sample]]:
    """What can be compared: hosts with as many tasks, which share what a host computes."""
    tasks = {name: run.plan.host(name).tasks for name in _waited_for(run) if name in samples}
    for number in sorted(set(tasks.values())):
        yield {name: samples[name] for name, count in tasks.items() if count == number}


def _waited_for(run: Run) -> list[str]:
    """The hosts of a gang in which every step waits for all: none with parameter servers, or of one host."""
    roles = {spec.id.role for spec in run.plan.tasks}
    if Role.PS in roles:
        return []
    names = list(dict.fromkeys(spec.host for spec in run.plan.tasks if spec.id.role in _TRAINERS))
    return names if len(names) > 1 else []
