"""Asks each host, before the code is sent, for the job's program and for paths of this machine."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from itertools import zip_longest
from pathlib import PurePosixPath

from orchestrator import wire
from orchestrator.errors import HostError
from orchestrator.events import Noted, Phase
from orchestrator.model import RunPlan, TaskSpec
from orchestrator.phases.context import Run, fail_on
from orchestrator.planning.plan import is_builtin
from orchestrator.program.invocation import script_of
from orchestrator.ranges import fold

_PAGE = "docs/lint.md"


def needs(plan: RunPlan) -> dict[str, wire.JobNeeds]:
    """Say what each host has to have; hosts that need nothing are left out."""
    paths, specs = (*plan.own_paths, *_script(plan)), {spec.host: spec for spec in reversed(plan.tasks)}
    programs = {name: _program(plan, spec) for name, spec in specs.items()}
    return {
        name: wire.JobNeeds(
            program=programs[name],
            python=plan.host(name).python,
            setup=spec.setup,
            paths=paths,
        )
        for name, spec in specs.items()
        if paths or programs[name]
    }


def check(run: Run, answers: Mapping[str, wire.Had]) -> None:
    """Raise PhaseFailed with each host that lacks something; where it cannot be known nothing is said."""
    fail_on(run.bus, Phase.STAGE, lacking(run, run.plan, answers))
    paths = zip_longest(run.plan.own_paths, run.plan.own_paths_at, fillvalue="")
    for place, (path, at) in enumerate(paths):
        if without := [name for name, had in answers.items() if place in had.paths]:
            run.bus.emit(Noted(_only_here(path, at, without)))


def lacking(run: Run, plan: RunPlan, answers: Mapping[str, wire.Had]) -> dict[str, HostError]:
    """Name what hosts of the plan, which may be those of the run and others, have not got."""
    lacks = {name: _lacks(run, plan.tasks_on(name)[0], had) for name, had in answers.items()}
    return {name: error for name, error in lacks.items() if error is not None}


def _only_here(path: str, at: str, hosts: list[str]) -> str:
    """`at` is where it stands in the program; "" for an argument."""
    what = f"{at}: {path}" if at else f"the argument {path}"
    fix = "name it in [data], and read it there:" if at else "name data in [data]: tasks find it as"
    return (
        f"O203 {what} exists on the machine of the launch, and not on {fold(hosts)}; {fix}"
        f" $ORCHESTRATE_DATA/{PurePosixPath(path).name} ({_PAGE}#o203)"
    )


def _program(plan: RunPlan, spec: TaskSpec) -> str | None:
    """Name the program to look for; None where the code may have it, or where the task's PATH is another.

    The host's own `python` has been tried in preflight.
    """
    name = spec.argv[0]
    if not plan.find_program or is_builtin(plan.command) or "PATH" in spec.env:
        return None
    if name == plan.host(spec.host).python:
        return None
    return name if "/" not in name or name.startswith("/") else None


def _script(plan: RunPlan) -> tuple[str, ...]:
    """A script that is not sent: the hosts have it, or nobody. What a setup makes is not known before."""
    name = script_of(plan.command) or ""
    return (name,) if name.startswith("/") and plan.find_program and not plan.recipe.setup else ()


def _lacks(run: Run, spec: TaskSpec, had: wire.Had) -> HostError | None:
    plan = run.plan
    if len(plan.own_paths) in had.paths:
        (script,) = _script(plan)
        name = PurePosixPath(script).name
        there = (run.source.root / (plan.cwd or "") / name).is_file()
        return HostError(
            spec.host,
            f"has no {script}",
            kind="program",
            why="a path from the root on is the host's own: what is sent is the folder of the code",
            hint=f"write {name}: it lies there" if there else "name a script that lies there",
        )
    if not had.program:
        return HostError(
            spec.host,
            f"has no program {spec.argv[0]}",
            kind="program",
            why=f"no program of that name is on PATH, and the job is `{shlex.join(plan.command)}`",
            hint=f"install it there, give its path, or set `setup` in [job] ({_PAGE}#o201)",
        )
    return None
