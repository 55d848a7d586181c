"""Local validation: each host trains the same model by itself, without TF_CONFIG."""

import contextlib
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from orchestrator.diagnosis.ends import end as words_of
from orchestrator.diagnosis.statement import Raised
from orchestrator.errors import HostError, HostErrors
from orchestrator.events import HostValidated, Last, Phase, Stepped, TaskExited, TaskReported, ValidationStood
from orchestrator.fleet import Cancelled
from orchestrator.frameworks import FRAMEWORKS, alone
from orchestrator.model import FrameworkName, Role, TaskSpec
from orchestrator.phases import recovery
from orchestrator.phases.context import Run, fail_on, phase
from orchestrator.phases.follow import Follower
from orchestrator.phases.launch import begin_these, start
from orchestrator.phases.preflight import FACTS_TIMEOUT, facts_of
from orchestrator.planning.commands import is_builtin, resolve
from orchestrator.planning.environ import OF_PROGRAM
from orchestrator.run.records import number
from orchestrator.store.known import subject
from orchestrator.store.reader import last_lines
from orchestrator.text import advised

_OF_DATA = ("--dataset", "--data-dir")
_NO_DATA = ("--dataset", "digits")  # which data a user's own script needs is unknown


def begin(run: Run, hosts: Sequence[str] | None = None) -> Callable[[], None]:
    """Ask some or all nodes for their state; the returned function runs local validation there.

    It raises PhaseFailed with the hosts that cannot train. Hosts that passed in an earlier launch and have
    not changed since are skipped.
    """
    recall = run.plan.admission.recall
    first = {spec.host: spec for spec in reversed(run.plan.tasks)}  # each host's first task
    specs = [
        _local(run, spec)
        for name, spec in first.items()
        if (hosts is None or name in hosts)
        and spec.id.role is not Role.SERVICE  # which may be a small machine
    ]
    new = [spec for spec in specs if not (recall and run.validations.any_of(run.plan.host(spec.host)))]
    begin_these(run, _name(run), new, spare=True)
    subjects_of = _subjects(run, specs)

    def validate() -> None:
        with phase(run, Phase.VALIDATE):
            subjects = subjects_of()
            passed = {
                host.name: age
                for host in (run.hosts if recall else ())
                if host.name in subjects
                and (age := run.validations.age(host, subjects[host.name])) is not None
            }
            if passed:
                run.emit(ValidationStood(tuple(passed), max(passed.values())))
            rest = [spec for spec in specs if spec.host not in passed]
            good, bad = _train(run, rest) if rest else ([], {})
            for name in good:
                if name in subjects:
                    run.validations.write(run.plan.host(name), subjects[name])
            for name in bad:
                with contextlib.suppress(OSError):
                    run.validations.forget(run.plan.host(name))
            fail_on(run, Phase.VALIDATE, bad)

    return validate


def _subjects(run: Run, specs: Sequence[TaskSpec]) -> Callable[[], Mapping[str, str]]:
    """Request the state of hosts now, unless preflight does: a Python has to start on each.

    The returned function waits, and returns the digest of what is validated on each host. Hosts without a
    usable Python are omitted: their validation will show the problem.
    """
    questions = {}
    for host in (run.plan.host(spec.host) for spec in specs):
        facts = facts_of(host, run.plan)
        if not run.plan.admission.preflight or facts.python != host.python:  # R may use another one
            questions[host.name] = replace(facts, python=host.python, r=False, programs={})
    gather = run.fleet.begin(questions, timeout=FACTS_TIMEOUT)

    def subjects() -> dict[str, str]:
        facts = {**run.facts, **gather().good}
        tree = run.staged.trees[-1 if run.plan.admission.validate_command is None else 0].digest
        return {
            spec.host: subject(spec, tree, facts[spec.host].digest)
            for spec in specs
            if spec.host in facts and facts[spec.host].python.ok
        }

    return subjects


def _train(run: Run, local: Sequence[TaskSpec]) -> tuple[list[str], HostErrors]:
    """Train on these hosts and report it; return the hosts that passed, and the errors of the others."""
    good: list[str] = []
    name = _name(run)
    own = run.plan.admission.validate_command is not None
    builtin = {host.name: f"{host.workdir}/trees/{run.staged.trees[-1].digest}" for host in run.hosts}
    bad = start(run, name, local, run.staged.work if own else builtin)
    placed = {spec.id: spec.host for spec in local if spec.host not in bad}
    follower = Follower(
        run, name, placed, lambda event: run.emit(event) if isinstance(event, Stepped) else None
    )
    follower.attach()
    try:
        # A large download is not a hang.
        while follower.running() and run.clock.now() - follower.fetched < run.timings.validation:
            if follower.step(1.0) or run.stop.requested:
                raise Cancelled
            awaited = {follower.placed[task] for task in follower.running()}
            for host, since in run.since_lost.items():
                # Longer than before a launch: nothing shows whether it trains.
                if host in awaited and run.clock.now() - since > run.timings.host_return:
                    bad[host] = recovery.loss(run, host, "was lost in local validation")
                    follower.give_up_host(host)
        for task, host in placed.items():
            if host in bad:
                continue
            end, result = follower.ends.get(task), follower.results.get(task)
            if end is not None and end.stopped:  # by a user, from another machine
                run.stop.ask(kill=False)
                raise Cancelled
            if end is not None and end.code == 0:
                good.append(host)
                data = result.data if result is not None and result.kind is Last.RESULT else {}
                run.emit(
                    HostValidated(
                        host=host,
                        dataset=str(data.get("dataset", "")),
                        loss=number(data.get("loss")),
                        steps_per_second=number(data.get("steps_per_second")),
                        seconds=end.seconds,
                        note=str(data.get("note", "")),
                    )
                )
            else:
                path = run.folder.log(name, str(task))
                bad[host] = _failed(path, host, end, result, run.timings.validation)
    finally:
        follower.close()
    return good, bad


def _name(run: Run) -> str:
    """Return the validation's name on nodes and in logs; a replacement host needs another one."""
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
        # Program settings are left out: the machine is validated, for all programs.
        user = {**recipe.job_env, **run.plan.host(spec.host).env, **recipe.env}
        own = {name: value for name, value in spec.env.items() if name in user or name not in OF_PROGRAM}
        options = tuple(_data_options(run.plan.command)) if is_builtin(run.plan.command) else _NO_DATA
        tensorflow = recipe.framework is FrameworkName.TENSORFLOW
        argv = (python, "-m", *FRAMEWORKS[recipe.framework].validation, *(options if tensorflow else ()))
        env = alone(recipe.framework, {**(data if options != _NO_DATA else {}), **own})
    # The tree it runs in must not be changed.
    return replace(spec, argv=argv, env={**env, "PYTHONDONTWRITEBYTECODE": "1"})


def _data_options(command: Sequence[str]) -> Iterator[str]:
    """Yield the options of worker_entry that select the data that a host needs."""
    for at, word in enumerate(command):
        name, _, value = word.partition("=")
        if name in {"--download", "--no-download"} or (value and name in _OF_DATA):
            yield word
        elif name in _OF_DATA:
            yield from command[at : at + 2]


def _failed(
    path: Path, host: str, end: TaskExited | None, result: TaskReported | None, limit: float
) -> HostError:
    if end is not None and end.code and result is not None and result.kind is Last.ERROR:
        error = Raised.parse(result.data)
        if error.hint:  # one of ours, from its own report
            why = "\n".join(filter(None, (error.why, advised("its task", error.hint))))
            return HostError(host, f"cannot train: {error.message}", kind="validate", why=why)
    tail = "\n".join(last_lines(path, 12))
    if end is None:
        how = f"had not finished local validation after {limit:.0f} s"
    else:
        how = f"failed local validation: it {words_of(end)}"
    return HostError(
        host,
        how,
        kind="validate",
        why=(end.lost if end is not None else "") or tail or "it printed nothing",
        hint=f"read the whole output in {path}; `--validate never` skips this step",
    )
