"""The tutorial's local step on every node: the same model alone, without TF_CONFIG, before all together."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from orchestrator import wire
from orchestrator.diagnosis.ends import end as words_of
from orchestrator.diagnosis.statement import Raised
from orchestrator.errors import HostError
from orchestrator.events import (
    Event,
    HostValidated,
    Last,
    Phase,
    Stepped,
    TaskExited,
    TaskReported,
    ValidationStood,
)
from orchestrator.fleet import Cancelled
from orchestrator.frameworks import FRAMEWORKS, alone
from orchestrator.model import FrameworkName, TaskSpec
from orchestrator.phases.context import Run, fail_on, log, phase
from orchestrator.phases.follow import Follower
from orchestrator.phases.launch import start
from orchestrator.phases.restart import recovery
from orchestrator.planning.environ import OF_PROGRAM
from orchestrator.planning.plan import is_builtin, resolve
from orchestrator.run.records import number
from orchestrator.store.known import subject
from orchestrator.store.reader import last_lines
from orchestrator.text import advised

_OF_DATA = ("--dataset", "--data-dir")
_NO_DATA = ("--dataset", "digits")  # of a script of the user's own it is not known which data it needs
_SECONDS = 60.0  # for a host to tell its state


def begin(run: Run, hosts: Sequence[str] | None = None) -> Callable[[], None]:
    """Ask every node, or some, for its state: what is returned trains locally there.

    It raises PhaseFailed naming those that cannot train. Those that did in an earlier launch, and are as they
    were, need not.
    """
    first = {spec.host: spec for spec in reversed(run.plan.tasks)}  # each host's task, alone
    specs = [_local(run, spec) for name, spec in first.items() if hosts is None or name in hosts]
    gather = _digests(run, specs)

    def validate() -> None:
        with phase(run, Phase.VALIDATE):
            subjects = gather()
            stands = _stand(run, subjects)
            rest = [spec for spec in specs if spec.host not in stands]
            good, bad = _train(run, rest) if rest else ([], {})
            for name in good:
                for one in subjects.get(name, ()):
                    run.validations.write(run.plan.host(name), one)
            for name in bad:
                with contextlib.suppress(OSError):
                    run.validations.forget(run.plan.host(name))
            fail_on(run, Phase.VALIDATE, bad)

    return validate


def _digests(run: Run, specs: Sequence[TaskSpec]) -> Callable[[], Mapping[str, Sequence[str]]]:
    """Ask hosts for their state, and do not wait: a Python has to start for each.

    What is returned names what is validated on each host, by its digest, and what that stands for, too; it
    leaves out those of which that cannot be told: their validation will show what is wrong with them.
    """
    own = run.plan.admission.validate_command is not None
    builtin = not own and is_builtin(run.plan.command)
    by_host = {spec.host: spec for spec in specs}
    questions = {
        name: wire.Fingerprint(
            python=run.plan.host(name).python,
            setup=spec.setup,
            env={key: value for key, value in spec.env.items() if not key.startswith("ORCHESTRATE_")},
        )
        for name, spec in by_host.items()
    }
    gather = run.fleet.begin(questions, timeout=_SECONDS)

    def subjects() -> dict[str, list[str]]:
        answers = gather()
        for name, error in answers.bad.items():
            log.info("%s: does not tell its state: %s: %s", name, error.what, error.why)
        tree = run.staged.trees[0 if own else -1].digest
        found: dict[str, list[str]] = {}
        for name, reply in answers.good.items():
            spec = by_host[name]
            # Who trained with the data of worker_entry has shown what programs with data of their own need.
            plain = [replace(spec, argv=(*spec.argv[:4], *_NO_DATA))] if builtin else []
            found[name] = [subject(each, tree, reply.digest) for each in (spec, *plain)]
        return found

    return subjects


def _stand(run: Run, subjects: Mapping[str, Sequence[str]]) -> set[str]:
    """Say which hosts were validated in the state in which they are."""
    if not run.plan.admission.recall:
        return set()
    ages = {
        host.name: age
        for host in run.hosts
        if host.name in subjects and (age := run.validations.age(host, subjects[host.name][0])) is not None
    }
    if ages:
        run.emit(ValidationStood(tuple(ages), max(ages.values())))
    return {*ages}


class _Arrivals:
    """Reports of the tasks of a validation while they train."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._doing: dict[str, str] = {}  # what each task does about its data
        self.results: dict[str, TaskReported] = {}
        self.since = run.clock.now()  # when it began, or data were last fetched

    def take(self, event: Event) -> None:
        if isinstance(event, TaskReported):
            self.results[event.task] = event
        elif isinstance(event, Stepped):
            self.since = self._run.clock.now()  # a large download is not a hang
            if self._doing.get(event.who) != event.step:
                self._doing[event.who] = event.step
                self._run.emit(event)


def _train(run: Run, local: Sequence[TaskSpec]) -> tuple[list[str], dict[str, HostError]]:
    """Train on these hosts and say so: the hosts where it went well, and what is wrong with the others."""
    good: list[str] = []
    name = _name(run)
    own = run.plan.admission.validate_command is not None
    builtin = {host.name: f"{host.workdir}/trees/{run.staged.trees[-1].digest}" for host in run.hosts}
    bad = start(run, name, local, run.staged.work if own else builtin)
    placed = {spec.id: spec.host for spec in local if spec.host not in bad}
    news = _Arrivals(run)
    follower = Follower(run, name, placed, news.take)
    follower.attach()
    try:
        while follower.waiting() and run.clock.now() - news.since < run.timings.validation:
            if follower.step(1.0) or run.stop.asked:
                raise Cancelled
            awaited = {follower.placed[task] for task in follower.waiting()}
            for host, since in run.losses.since.items():
                # For longer than before a launch: nothing tells whether it trains.
                if host in awaited and run.clock.now() - since > run.timings.host_return:
                    bad[host] = recovery.loss(run, host, "was lost in its local training")
                    follower.give_up_host(host)
        for task, host in placed.items():
            if host in bad:
                continue
            end, result = follower.ends.get(task), news.results.get(str(task))
            if end is not None and end.stopped:  # by a user, from another machine
                run.stop.ask(kill=False)
                raise Cancelled
            if end is not None and end.code == 0:
                good.append(host)
                run.emit(_validated(host, end, result))
            else:
                path = run.folder.log(name, str(task))
                bad[host] = _failed(path, host, end, result, run.timings.validation)
    finally:
        follower.close()
    return good, bad


def _name(run: Run) -> str:
    """Name the validation for nodes and logs: the next host in a place must not be taken for the last one."""
    if run.plan.attempt == 1:
        return "validate"
    again = f"-{len(run.plan.unfit)}" if run.plan.unfit else ""
    return f"validate-{run.plan.attempt}{again}"


def _local(run: Run, spec: TaskSpec) -> TaskSpec:
    python, recipe = run.plan.host(spec.host).python, run.plan.recipe
    data = run.placed.env.get(spec.host, {})
    if run.plan.admission.validate_command is not None:
        argv = resolve(tuple(shlex.split(run.plan.admission.validate_command)), python)
        env = alone(recipe.framework, {**data, **spec.env})
    else:
        # What depends on the program is left out: it is the machine that is validated, for all of them.
        user = {**recipe.job_env, **run.plan.host(spec.host).env, **recipe.env}
        own = {name: value for name, value in spec.env.items() if name in user or name not in OF_PROGRAM}
        options = tuple(_data_options(run.plan.command)) if is_builtin(run.plan.command) else _NO_DATA
        tensorflow = recipe.framework is FrameworkName.TENSORFLOW
        argv = (python, "-m", *FRAMEWORKS[recipe.framework].validation, *(options if tensorflow else ()))
        env = alone(recipe.framework, {**(data if options != _NO_DATA else {}), **own})
    # The tree it runs in is never to be altered.
    return replace(spec, argv=argv, env={**env, "PYTHONDONTWRITEBYTECODE": "1"})


def _data_options(command: Sequence[str]) -> Iterator[str]:
    """Yield the options of worker_entry that tell which data a host has to get."""
    for at, word in enumerate(command):
        name, _, value = word.partition("=")
        if name in {"--download", "--no-download"} or (value and name in _OF_DATA):
            yield word
        elif name in _OF_DATA:
            yield from command[at : at + 2]


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
            why = "\n".join(filter(None, (error.why, advised("its task", error.hint))))
            return HostError(host, f"cannot train: {error.message}", kind="validate", why=why)
    tail = "\n".join(last_lines(path, 12))
    if end is None:
        how = f"had not finished its local training after {limit:.0f} s"
    else:
        how = f"fails in its local training: it {words_of(end)}"
    return HostError(
        host,
        how,
        kind="validate",
        why=tail or (end.lost if end is not None else "it printed nothing"),
        hint=f"read the whole output in {path}; `--validate never` launches without this step",
    )
