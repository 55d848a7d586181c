"""The tutorial's local step on every node: the same model alone, without TF_CONFIG, before all together."""

from __future__ import annotations

import dataclasses
import shlex
import time
from collections.abc import Sequence
from pathlib import Path

from orchestrator.errors import HostError
from orchestrator.events import Event, HostLost, HostRecovered, HostValidated, Phase, TaskReported
from orchestrator.fleet import Cancelled
from orchestrator.gang import End
from orchestrator.model import TaskSpec
from orchestrator.phases.context import Run, fail_on, phase
from orchestrator.phases.follow import Follower
from orchestrator.phases.launch import RETURN, start_all
from orchestrator.phases.stage import is_builtin
from orchestrator.plan import resolve
from orchestrator.store.tail import last_lines

LIMIT = 900.0  # seconds; a first import and a data set from a slow disk fit in


def validate(run: Run, hosts: Sequence[str] | None = None) -> None:
    """Train locally on every node, or on some; raise PhaseFailed naming those that cannot."""
    with phase(run, Phase.VALIDATE):
        _validate(run, hosts)


def _validate(run: Run, hosts: Sequence[str] | None) -> None:
    specs = {spec.host: spec for spec in reversed(run.plan.tasks)}  # the first task of each host
    local = [_local(run, spec) for name, spec in specs.items() if hosts is None or name in hosts]
    results: dict[str, TaskReported] = {}

    def told(event: Event) -> None:
        if isinstance(event, TaskReported):
            results[event.task] = event
        elif isinstance(event, HostLost | HostRecovered):
            run.bus.emit(event)

    cwd = run.builtin if run.plan.admission.validate_command is None else run.work
    name = _name(run)
    bad = start_all(run, name, local, cwd)
    placed = {spec.id: spec.host for spec in local if spec.host not in bad}
    follower = Follower(run, name, placed, told)
    follower.attach()
    deadline = time.monotonic() + LIMIT
    try:
        while follower.waiting() and time.monotonic() < deadline:
            if follower.step(1.0) or run.stop.asked:
                raise Cancelled
            for host in _gone(run, follower):
                bad[host] = _lost(run, host)
                follower.give_up_host(host, "")
        for task, host in placed.items():
            if host in bad:
                continue
            end = follower.ends.get(task)
            if end is not None and end.stopped:  # by a user, from another machine
                run.stop.ask(kill=False)
                raise Cancelled
            if end is not None and end.code == 0:
                run.bus.emit(_validated(host, end, results.get(str(task))))
            else:
                bad[host] = _failed(run.folder.log(name, task.slug), host, end)
    finally:
        follower.close()
    fail_on(run.bus, Phase.VALIDATE, bad)


def _gone(run: Run, follower: Follower) -> list[str]:
    """Hosts that were lost for longer than before a launch: nothing tells whether they train."""
    now, awaited = time.monotonic(), {follower.host(task) for task in follower.waiting()}
    return [name for name, since in run.lost.items() if name in awaited and now - since > RETURN]


def _lost(run: Run, name: str) -> HostError:
    return HostError(
        name,
        "was lost in its local training",
        kind="lost",
        why=f"no connection could be made for {time.monotonic() - run.lost[name]:.0f} s",
        hint=f"ssh {run.plan.host(name).ssh}, to see whether the machine still answers",
    )


def _name(run: Run) -> str:
    """What nodes and logs know it by: the next host in the same place must not be taken for the last one."""
    if run.plan.attempt == 1:
        return "validate"
    again = f"-{len(run.plan.unfit)}" if run.plan.unfit else ""
    return f"validate-{run.plan.attempt}{again}"


def _local(run: Run, spec: TaskSpec) -> TaskSpec:
    python = run.plan.host(spec.host).python
    if run.plan.admission.validate_command is not None:
        argv = resolve(tuple(shlex.split(run.plan.admission.validate_command)), python)
    else:
        job = run.plan.command if is_builtin(run.plan.command) else ()
        argv = (python, "-m", "worker_entry", "--validate", *job)
    env = {name: value for name, value in spec.env.items() if name != "TF_CONFIG"}
    # The tree it runs in is never to be altered.
    return dataclasses.replace(spec, argv=argv, env={**env, "PYTHONDONTWRITEBYTECODE": "1"})


def _validated(host: str, end: End, result: TaskReported | None) -> HostValidated:
    data = result.data if result is not None and result.kind == "result" else {}
    return HostValidated(
        host=host,
        dataset=str(data.get("dataset", "")),
        loss=float(data.get("loss", float("nan"))),
        steps_per_second=float(data.get("steps_per_second", float("nan"))),
        seconds=end.seconds,
        note=str(data.get("note", "")),
    )


def _failed(path: Path, host: str, end: End | None) -> HostError:
    tail = "\n".join(last_lines(path, 12))
    if end is None:
        how = f"had not finished its local training after {LIMIT:.0f} s"
    elif end.signal is not None:
        how = f"was killed by signal {end.signal} in its local training"
    elif end.lost:
        how = "lost its local training"
    else:
        how = f"fails in its local training (exit {end.code})"
    return HostError(
        host,
        how,
        kind="validate",
        why=tail or (end.lost if end is not None else "it printed nothing"),
        hint=f"the whole output: {path}; --no-validate launches without this step",
    )
