"""What earlier launches found out about hosts: who was validated, and is as it was then."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from orchestrator import wire
from orchestrator.events import FailureKind, ValidationStood
from orchestrator.model import TaskSpec
from orchestrator.phases.context import Run, log
from orchestrator.run import validity
from orchestrator.run.speeds import Sample

_SECONDS = 60.0  # for a host to tell its state


@dataclass(frozen=True)
class Recollection:
    """What is known of the hosts that are to be validated."""

    subject: Mapping[str, str] = field(default_factory=dict)  # host -> under which name it is remembered
    before: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # host -> its state
    stands: frozenset[str] = frozenset()  # hosts that need not train again
    changed: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # why others have to
    speeds: Mapping[str, Sample] = field(default_factory=dict)  # of those that need not


class StateQuery:
    """The hosts' states, asked for and not waited for: a Python has to start for each."""

    def __init__(self, run: Run, specs: Sequence[TaskSpec]) -> None:
        known = {} if run.validations is None else {spec.host: (spec, _data(run, spec)) for spec in specs}
        self.questions = {
            name: _question(run, spec, data) for name, (spec, data) in known.items() if data is not None
        }
        self._answers = run.fleet.begin(self.questions, timeout=_SECONDS, hosts=list(self.questions))

    def states(self) -> dict[str, dict[str, str]]:
        """By host; what is wrong with those that do not tell their validation will show."""
        answers = self._answers()
        for name, error in answers.bad.items():
            log.info("%s: does not tell its state: %s: %s", name, error.what, error.why)
        return {name: msgspec.structs.asdict(reply) for name, reply in answers.good.items()}


def recall(run: Run, specs: Sequence[TaskSpec], tree: str, query: StateQuery) -> Recollection:
    """Say which hosts were validated in the state in which they are.

    `tree` is the digest of the program.
    """
    subject = _subjects(run, specs, tree)
    before = {name: state for name, state in query.states().items() if name in subject}
    now = time.time()
    known = {name: _read(run, name, subject[name]) for name in before}
    decisions = {name: validity.decide(known[name], state, now) for name, state in before.items()}
    recalls = run.plan.admission.recall
    stands = {name: last for name, last in known.items() if recalls and last and not decisions[name].again}
    if stands:
        names = tuple(host.name for host in run.hosts if host.name in stands)
        run.bus.emit(ValidationStood(names, now - min(last.at for last in stands.values())))
    changed = {name: one.changed for name, one in decisions.items() if recalls and one.changed}
    speeds = {name: last.speed for name, last in stands.items() if last.speed is not None}
    return Recollection(subject, before, frozenset(stands), changed, speeds)


def remember(run: Run, known: Recollection, good: Sequence[TaskSpec], speeds: Mapping[str, Sample]) -> None:
    """Keep that these hosts were validated just now, unless anything but their data changed meanwhile."""
    now = time.time()
    after = StateQuery(run, [spec for spec in good if spec.host in known.before]).states()
    for name, state in after.items():
        if run.validations is not None and validity.settled(known.before[name], state):
            key = validity.host_key(run.plan.host(name))
            run.validations.write(key, known.subject[name], validity.Validation(now, state, speeds.get(name)))


def forget(run: Run, hosts: Iterable[str], known: Recollection | None = None) -> None:
    """From now on nothing is known of these hosts, or nothing of what is validated there just now."""
    if run.validations is None:
        return
    for name in hosts:
        subject = "" if known is None else known.subject.get(name)
        if subject is None:  # what is not remembered, under no name
            continue
        with contextlib.suppress(StopIteration):  # a host that is of no plan any more
            try:
                run.validations.forget(validity.host_key(run.plan.host(name)), subject)
            except OSError as error:
                log.warning("%s: an earlier validation is still remembered: %s", name, error)


def distrust(run: Run, kind: FailureKind, host: str) -> None:
    """After a failure that a machine may be the cause of: it is validated again."""
    if host and kind in validity.OF_MACHINES:
        forget(run, [host])


def _data(run: Run, spec: TaskSpec) -> tuple[str, ...] | None:
    """What the validation reads on a host; of a command of the user's own nobody knows."""
    return () if run.plan.admission.validate_command is not None else validity.data_of(spec.argv)


def _subjects(run: Run, specs: Sequence[TaskSpec], tree: str) -> dict[str, str]:
    if run.validations is None:
        return {}
    keys = {spec.host: validity.subject_key(spec, tree, run.secrets, run.key) for spec in specs}
    return {name: key for name, key in keys.items() if key is not None}


def _question(run: Run, spec: TaskSpec, data: tuple[str, ...]) -> wire.Fingerprint:
    return wire.Fingerprint(
        python=run.plan.host(spec.host).python,
        setup=spec.setup,
        env={name: value for name, value in spec.env.items() if not name.startswith("ORCHESTRATE_")},
        data=data,
    )


def _read(run: Run, name: str, subject: str) -> validity.Validation | None:
    assert run.validations is not None
    return run.validations.read(validity.host_key(run.plan.host(name)), subject)
