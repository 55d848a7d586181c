"""The tutorial's local step on every node: the same model alone, without TF_CONFIG, before all together."""

from __future__ import annotations

import dataclasses
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from orchestrator.diagnosis.statement import Raised
from orchestrator.errors import HostError
from orchestrator.events import (
    Event,
    FetchStepped,
    HostLost,
    HostRecovered,
    HostValidated,
    Last,
    Phase,
    TaskExited,
    TaskProgressed,
    TaskReady,
    TaskReported,
)
from orchestrator.fleet import Cancelled
from orchestrator.model import TaskSpec
from orchestrator.phases import pace, revalidation
from orchestrator.phases.context import Run, fail_on, phase
from orchestrator.phases.follow import Follower
from orchestrator.phases.gauge import Gauge
from orchestrator.phases.launch import start_all
from orchestrator.phases.restart import recovery
from orchestrator.phases.revalidation import StateQuery
from orchestrator.planning.plan import is_builtin, resolve
from orchestrator.run.fetching import Fetching, words
from orchestrator.run.records import number
from orchestrator.run.speeds import Sample
from orchestrator.store.bus import Bus
from orchestrator.store.tail import last_lines
from orchestrator.text import advised


def begin(run: Run, hosts: Sequence[str] | None = None) -> Callable[[], None]:
    """Ask every node, or some, what it is; the rest of `validate` follows when its return is called."""
    query = StateQuery(run, _specs(run, hosts))
    return lambda: validate(run, hosts, query)


def validate(run: Run, hosts: Sequence[str] | None = None, query: StateQuery | None = None) -> None:
    """Train locally on every node, or on some; raise PhaseFailed naming those that cannot.

    Those that did in an earlier launch, and are as they were, need not.
    """
    with phase(run, Phase.VALIDATE):
        specs = _specs(run, hosts)
        _validate(run, specs, query or StateQuery(run, specs))


def _specs(run: Run, hosts: Sequence[str] | None) -> list[TaskSpec]:
    """What the hosts run: each what its first task is, alone."""
    specs = {spec.host: spec for spec in reversed(run.plan.tasks)}
    return [_local(run, spec) for name, spec in specs.items() if hosts is None or name in hosts]


def _validate(run: Run, local: list[TaskSpec], query: StateQuery) -> None:
    own = run.plan.admission.validate_command is not None
    known = revalidation.recall(run, local, run.trees[0 if own else -1].digest, query)
    local = [spec for spec in local if spec.host not in known.stands]
    fresh: dict[str, Sample] = {}
    if local:
        revalidation.forget(run, [spec.host for spec in local], known)  # should it not come to an end
        first = _train(run, local, own=own, changed=known.changed)
        bad, fresh = first.bad, dict(first.speeds)
        if not bad:
            suspects = pace.suspects(run, {**known.speeds, **fresh}, fresh)
            again = _train(run, [spec for spec in local if spec.host in suspects], own=own, again=True)
            bad = again.bad
            fresh |= pace.best(fresh, again.speeds)
        good = [spec for spec in local if spec.host in first.good and spec.host not in bad]
        revalidation.remember(run, known, good, fresh)
        revalidation.forget(run, bad)
        fail_on(run.bus, Phase.VALIDATE, bad)
    pace.compare(run, {**known.speeds, **fresh})


@dataclass(frozen=True)
class _Outcome:
    """The hosts on which it went well and how fast they are, and what is wrong with the others."""

    good: Sequence[str] = ()
    bad: Mapping[str, HostError] = field(default_factory=dict)
    speeds: Mapping[str, Sample] = field(default_factory=dict)


class _Arrivals:
    """What the tasks of a validation report while they train."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._fetching = Fetching()
        self.results: dict[str, TaskReported] = {}
        self.doing: dict[str, str] = {}
        self.since = time.monotonic()  # when it began, or data were last fetched

    def take(self, event: Event) -> None:
        if isinstance(event, TaskReported):
            self.results[event.task] = event
        elif isinstance(event, TaskReady):
            self.doing[event.task] = "ready"
        elif isinstance(event, TaskProgressed):
            self.doing[event.task] = f"step {event.step}"
        elif isinstance(event, HostLost | HostRecovered):
            self._bus.emit(event)
        elif isinstance(event, FetchStepped):
            self.since = time.monotonic()  # a large download is not a hang
            self.doing[event.task] = words(event)
            if self._fetching.is_news(event):
                self._bus.emit(event)


def _train(
    run: Run,
    local: Sequence[TaskSpec],
    *,
    own: bool,
    changed: Mapping[str, tuple[str, ...]] | None = None,
    again: bool = False,
) -> _Outcome:
    """Train on these hosts and say so, but for what is done `again`, to measure it better."""
    if not local:
        return _Outcome()
    good: list[str] = []
    samples: dict[str, Sample] = {}
    cwd = run.work if own else run.builtin
    name = _name(run) + ("-again" if again else "")
    bad = start_all(run, name, [pace.measuring(run, spec) for spec in local], cwd)
    placed = {spec.id: spec.host for spec in local if spec.host not in bad}
    news = _Arrivals(run.bus)
    follower = Follower(run, name, placed, news.take)
    follower.attach()
    gauge = Gauge(run, follower, lambda task: news.doing.get(str(task), ""))
    try:
        while follower.waiting() and time.monotonic() - news.since < run.timings.validation:
            if follower.step(1.0) or run.stop.asked:
                raise Cancelled
            gauge.look()
            for host in _gone(run, follower):
                bad[host] = recovery.loss(run, host, "was lost in its local training")
                follower.give_up_host(host, "")
        for task, host in placed.items():
            if host in bad:
                continue
            end = follower.ends.get(task)
            if end is not None and end.stopped:  # by a user, from another machine
                run.stop.ask(kill=False)
                raise Cancelled
            if end is not None and end.code == 0:
                good.append(host)
                result = news.results.get(str(task))
                if (sample := pace.sample_of(result)) is not None:
                    samples[host] = sample
                if not again:
                    found = _validated(host, end, result)
                    run.bus.emit(msgspec.structs.replace(found, changed=(changed or {}).get(host, ())))
            else:
                log = run.folder.log(name, task.slug)
                bad[host] = _failed(log, host, end, news.results.get(str(task)), run.timings.validation)
    finally:
        follower.close()
    return _Outcome(good, bad, samples)


def _gone(run: Run, follower: Follower) -> list[str]:
    """Hosts that were lost for longer than before a launch: nothing tells whether they train."""
    now, awaited = time.monotonic(), {follower.host(task) for task in follower.waiting()}
    return [
        name for name, since in run.lost.items() if name in awaited and now - since > run.timings.host_return
    ]


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
        # Of a script of the user's own it is not known which data it needs.
        job = run.plan.command if is_builtin(run.plan.command) else ("--dataset", "digits")
        argv = (python, "-m", "worker_entry", "--validate", *job)
    given = {**run.data_env.get(spec.host, {}), **spec.env}
    env = {name: value for name, value in given.items() if name != "TF_CONFIG"}
    # The tree it runs in is never to be altered.
    return dataclasses.replace(spec, argv=argv, env={**env, "PYTHONDONTWRITEBYTECODE": "1"})


def _validated(host: str, end: TaskExited, result: TaskReported | None) -> HostValidated:
    data = result.data if result is not None and result.kind is Last.RESULT else {}
    return HostValidated(
        host=host,
        dataset=str(data.get("dataset", "")),
        loss=number(data.get("loss")),
        steps_per_second=number(data.get("steps_per_second")),
        seconds=end.seconds,
        note=str(data.get("note", "")),
    )


def _failed(
    path: Path, host: str, end: TaskExited | None, result: TaskReported | None, limit: float
) -> HostError:
    if end is not None and end.code and result is not None and result.kind is Last.ERROR:
        error = Raised.parse(result.data)
        if error.hint:  # one of ours, in its own words
            told = "\n".join(filter(None, (error.why, advised("its task", error.hint))))
            return HostError(host, f"cannot train: {error.message}", kind="validate", why=told)
    tail = "\n".join(last_lines(path, 12))
    if end is None:
        how = f"had not finished its local training after {limit:.0f} s"
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
        hint=f"read the whole output in {path}; `--validate never` launches without this step",
    )
