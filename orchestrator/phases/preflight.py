"""Checks whether a cluster can train: every host, then every pair of hosts in both directions."""

import hashlib
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Literal

from msgspec.structs import asdict

from orchestrator import checks, wire
from orchestrator.checks import Evidence, HostReport, Needs
from orchestrator.errors import HostError, HostErrors
from orchestrator.events import CheckReported, Level, Noted, PairReported, Phase, Stepped
from orchestrator.fleet import Answers, Fleet
from orchestrator.frameworks import FRAMEWORKS, alone
from orchestrator.model import Host, Role, RunPlan, TaskSpec
from orchestrator.phases.context import Emit, PhaseFailed, Run, failure, phase, report_failures
from orchestrator.planning.commands import is_builtin, is_r
from orchestrator.ranges import grouped
from orchestrator.run import restarts
from orchestrator.text import endpoint
from orchestrator.value import Value

PROBE_TIMEOUT = 5.0  # seconds for one pair; a task would wait much longer, but a person should not
FACTS_TIMEOUT = 90.0
IMPORT_TIMEOUT = 300.0
_LARGE = 64 << 10  # bytes: many packets of any size, but no load for a slow line
_MARGIN = 30.0  # seconds
_ALL = 128  # hosts; with more, only a sample of the pairs is connected
_PARTNERS = 16  # hosts to which each connects in a sample, and which connect to it
_MANY_PAIRS = 256  # pairs; above, a launch reports only those with a problem


class Findings(Value):
    """Result of a preflight; `good` is True if the hosts can train together."""

    shared: dict[str, str]  # host -> the first host with the same workdir
    checks: tuple[CheckReported, ...]
    pairs: tuple[PairReported, ...]
    failed: HostErrors  # hosts that did not respond at all
    facts: Mapping[str, wire.MachineFacts] = {}

    @property
    def good(self) -> bool:
        return not self.failed and all(check.level is not Level.FAIL for check in self.checks)


def preflight(run: Run) -> dict[str, str]:
    """Examine the run's hosts; raise PhaseFailed if they cannot train. Return the shared workdirs.

    It imports nothing: local validation does, and a launch without validation has to start quickly.
    """
    with phase(run, Phase.PREFLIGHT):
        findings = examine(run.fleet, run.emit, run.plan, tidy=False)
        run.facts.update(findings.facts)
        if not findings.good:
            raise _failure(findings, restarts.joined(run.plan))
    return findings.shared


def _failure(findings: Findings, new: Collection[str]) -> PhaseFailed:
    """Return why the hosts cannot train; `new` are hosts that joined others, which could train before."""
    bad = [check for check in findings.checks if check.level is Level.FAIL]
    errors = [
        HostError(check.host, f"fails `{check.check}`: {check.found}", kind="check", hint=check.hint)
        for check in bad
    ]
    # Hosts without a reply come first: what others report about them follows from that.
    failed = failure(Phase.PREFLIGHT, [*findings.failed.values(), *errors])
    between = not findings.failed and all(check.between for check in bad)
    if between and not failed.hosts.keys() & set(new):  # the others could train together before
        failed.hosts = {**failed.hosts, **dict.fromkeys(new, failed.cause)}
    return failed


def examine(
    fleet: Fleet,
    emit: Emit,
    plan: RunPlan,
    *,
    closely: bool = False,
    patience: float = PROBE_TIMEOUT,
    all_pairs: bool = False,
    tidy: bool = True,
) -> Findings:
    """Run all checks on the connected hosts of a plan, and emit and return the results.

    `closely` also imports the framework, if the job needs one, and emits every pair; otherwise a large
    cluster gets only the pairs with a problem. Above 128 hosts a sample of the pairs is connected, unless
    `all_pairs` is set. It returns once the hosts have closed their listeners and removed their files;
    without `tidy` it does not wait for that if the hosts can train.
    """
    hosts = [host for host in plan.hosts if host.name in fleet.sessions]
    required = needs(plan)
    failed: HostErrors = {}

    def fails(bad: Mapping[str, HostError]) -> None:
        report_failures(emit, Phase.PREFLIGHT, {name: bad[name] for name in bad if name not in failed})
        failed.update(bad)

    emit(Stepped("", "examine the hosts"))
    # All requests that need no earlier reply go out together: a distant cluster waits for two round trips.
    questions = {host.name: facts_of(host, plan) for host in hosts}
    gather_facts = fleet.begin(questions, timeout=FACTS_TIMEOUT)
    sharing = Sharing(fleet, hosts)
    ports = grouped((spec.host, spec.port) for spec in plan.tasks)
    hellos = {host.name: fleet.sessions[host.name].hello for host in hosts}
    # Of two entries for one machine the first one listens.
    first = {
        (hello.boot_id, hello.netns, port): name
        for name, hello in reversed(hellos.items())
        for port in ports[name]
    }
    listening = grouped((name, port) for (_, _, port), name in first.items())
    nonce = secrets.token_hex(8)
    listens = {
        host.name: wire.Listen(
            run=plan.run,
            ports=listening.get(host.name, []),
            nonce=nonce,
            host=host.name,
            extra=len(hosts) > 1,
            large=_LARGE,
        )
        for host in hosts
    }
    gather_listening = fleet.begin(listens)
    answers = gather_facts()
    facts = answers.good
    fails(answers.bad)
    there = [host for host in hosts if host.name in facts]
    sharing.read()
    imports = {host.name: _imports(plan, host, facts[host.name], required) for host in there if closely}
    gather_imports = fleet.begin(
        {name: request for name, request in imports.items() if request}, timeout=IMPORT_TIMEOUT
    )
    partners = 0 if all_pairs or len(there) <= _ALL else _PARTNERS
    if partners:
        note = f"each of {len(there):,} hosts is connected to {partners} others, and {partners} others to it;"
        emit(Noted(f"{note} `orchestrate preflight --all-pairs` checks all pairs"))
    emit(Stepped("", "check pairs of hosts" if partners else "check every pair of hosts"))
    meeting = meet(
        fleet,
        there,
        nonce,
        gather_listening(),
        patience=patience,
        partners=partners,
        extra=len(there) > 1 and any(fact.gpus for fact in facts.values()),
    )
    fails(meeting.bad)
    shared = sharing.shared()
    gathers = (fleet.begin(wire.Unlisten(), hosts=[*meeting.listening]), sharing.clean())
    if closely:
        emit(Stepped("", "import the framework"))
    imported = gather_imports()
    fails(imported.bad)
    evidence = Evidence(
        [
            HostReport(
                host,
                tuple(ports[host.name]),
                fleet.sessions[host.name].hello,
                facts[host.name],
                meeting.listening[host.name],
                fleet.sessions[host.name].clock_offset,
                imported.good.get(host.name),
            )
            for host in there
            if host.name in meeting.listening
        ],
        required,
        meeting.pairs,
        meeting.extra,
    )
    for report in evidence.reports:
        emit(checks.described(report))
    for pair in meeting.pairs:
        if closely or len(meeting.pairs) <= _MANY_PAIRS or not pair.tcp or pair.large is False:
            emit(pair)
    results = checks.examined(evidence)
    for check in results:
        emit(check)
    findings = Findings(shared, tuple(results), meeting.pairs, failed, facts)
    if tidy or not findings.good:
        for gather in gathers:
            gather()
    return findings


def _imports(plan: RunPlan, host: Host, facts: wire.MachineFacts, needs: Needs) -> wire.Imports | None:
    """Return the request to import a host's packages; None if no framework is needed, or it is missing."""
    framework = FRAMEWORKS[needs.framework]
    # A host may report packages that were not requested.
    there = {checks.MODULES[name] for name in checks.PACKAGES if facts.packages.get(name)}
    if not needs.needed or not facts.python.ok or checks.MODULES.get(framework.package) not in there:
        return None
    unused = {"keras" if needs.legacy_keras else "tf-keras"}
    unused |= set() if is_builtin(plan.command) else {"tensorflow-datasets"}
    modules = [checks.MODULES[name] for name in ("numpy", *framework.packages) if name not in unused]
    spec = plan.tasks_on(host.name)[0]
    return wire.Imports(
        python=_python(host, spec),
        setup=spec.setup,
        env={"KERAS_BACKEND": needs.framework.value, **alone(needs.framework, spec.env)},
        # every framework imports numpy, so its absence is worth reporting
        modules=[module for module in modules if module in there or module == "numpy"],
        gpus=bool(facts.gpus or host.devices),
        probe=framework.probe,
    )


def needs(plan: RunPlan) -> Needs:
    """Return what the job requires from its hosts."""
    python = is_builtin(plan.command) or any(
        word.endswith(".py") for spec in plan.tasks for word in spec.argv[:2]
    )
    r = any(is_r(spec.argv) for spec in plan.tasks)
    return Needs(
        needed=python or r,
        legacy_keras="TF_USE_LEGACY_KERAS" in plan.tasks[0].env,
        framework=plan.recipe.framework,
        r=r,
        environment=plan.environment,
        helpers=frozenset(
            spec.host
            for spec in plan.tasks
            if spec.id.role is Role.SERVICE and not any(word.endswith(".py") for word in spec.argv[:2])
        ),
    )


def _python(host: Host, spec: TaskSpec) -> str:
    """Return the Python with the framework; an R script uses its RETICULATE_PYTHON."""
    return spec.env.get("RETICULATE_PYTHON", host.python) if is_r(spec.argv) else host.python


def facts_of(host: Host, plan: RunPlan) -> wire.Facts:
    """Return the request for the facts about a host, as its first task finds them."""
    spec = plan.tasks_on(host.name)[0]
    return wire.Facts(
        python=_python(host, spec),
        r=is_r(spec.argv),
        workdir=host.workdir,
        packages=checks.PACKAGES,
        setup=spec.setup,
        env=alone(plan.recipe.framework, spec.env),
        programs=checks.programs(plan.recipe.framework),
    )


class Sharing:
    """Finds hosts that share a workdir: each writes its name there, then all read the names.

    A workdir that cannot be written has a check of its own.
    """

    def __init__(self, fleet: Fleet, hosts: Sequence[Host]) -> None:
        self._fleet, self._hosts = fleet, hosts if len(hosts) > 1 else ()
        self._nonce = secrets.token_hex(8)
        self._alone: set[str] = set()  # hosts that saw no other name, and so removed theirs
        self._answers = self._begin("write")

    def read(self) -> None:
        """Read the names, after all hosts have written theirs."""
        self._answers()
        self._answers = self._begin("read")

    def shared(self) -> dict[str, str]:
        """Return the hosts that share one workdir with others, each with the first of them."""
        read, places = self._answers().good, {host.name: place for place, host in enumerate(self._hosts)}
        self._alone = {name for name, reply in read.items() if reply.hosts == (name,)}
        others = {name: {host for host in reply.hosts if host in read} for name, reply in read.items()}
        return {
            name: min(group, key=places.__getitem__)
            for name, group in others.items()
            if len(group) > 1 and name in group
        }

    def clean(self) -> Callable[[], object]:
        """Remove the names; the returned function waits for that."""
        return self._begin("clean")

    def _begin(self, step: Literal["write", "read", "clean"]) -> Callable[[], Answers[wire.Sharers]]:
        shares = {
            host.name: wire.Share(workdir=host.workdir, nonce=self._nonce, host=host.name, step=step)
            for host in self._hosts
            if host.name not in self._alone
        }
        return self._fleet.begin(shares)


def shared_workdirs(fleet: Fleet, hosts: Sequence[Host]) -> dict[str, str]:
    """Return the hosts that share one workdir with others, each with the first of them."""
    sharing = Sharing(fleet, hosts)
    sharing.read()
    shared = sharing.shared()
    sharing.clean()()
    return shared


class Meeting(Value):
    """Results of all connections."""

    listening: Mapping[str, wire.Listening]
    pairs: tuple[PairReported, ...]
    extra: tuple[PairReported, ...]  # on ports chosen by the kernel
    bad: Mapping[str, HostError]  # hosts that did not reply


def sample(names: Sequence[str], partners: int, salt: str) -> dict[str, list[str]]:
    """Return the hosts that each host connects to: itself, and `partners` others.

    As many others connect to each, and the pairs connect all hosts. Another salt chooses other pairs.
    """
    order = sorted(names, key=lambda name: hashlib.sha256(f"{salt} {name}".encode()).digest())
    steps = [1 + number * (len(order) - 1) // partners for number in range(partners)]
    return {
        name: [order[(place + step) % len(order)] for step in (0, *steps)] for place, name in enumerate(order)
    }


def meet(
    fleet: Fleet,
    hosts: Sequence[Host],
    nonce: str,
    answers: Answers[wire.Listening],
    *,
    patience: float,
    extra: bool,
    partners: int,
) -> Meeting:
    """Have each host connect to all that listen; with `extra` also to ports that the kernel chose.

    With `partners`, each connects only to so many others.
    """
    names = {host.name for host in hosts}
    listening = {name: reply for name, reply in answers.good.items() if name in names}
    bad = {name: error for name, error in answers.bad.items() if name in names}
    targets = {
        host.name: [
            wire.ProbeTarget(host.name, host.address, port)
            for port in (*reply.listening, *([reply.extra] if extra and reply.extra is not None else []))
        ]
        for host in hosts
        if (reply := listening.get(host.name))
    }
    chosen = (
        sample(list(listening), partners, nonce) if partners else {name: [*targets] for name in listening}
    )

    def connect(
        choice: Mapping[str, Sequence[wire.ProbeTarget]],
    ) -> dict[tuple[str, wire.ProbeTarget], wire.Probed]:
        questions = {
            name: wire.Probe(nonce=nonce, timeout=patience, targets=each, large=_LARGE)
            for name, each in choice.items()
            if name not in bad
        }
        replies = fleet.ask(questions, timeout=patience + _MARGIN)
        bad.update(replies.bad)
        return {
            (name, target): probed
            for name, reply in replies.good.items()
            for target, probed in zip(questions[name].targets, reply.results, strict=True)
        }

    connections = connect(
        {name: [target for peer in peers for target in targets[peer]] for name, peers in chosen.items()}
    )
    # Check again with little load: a busy machine may lose packets.
    again: dict[str, list[wire.ProbeTarget]] = {}
    for (name, target), probed in connections.items():
        if probed.large is False:
            again.setdefault(name, []).append(target)
    if again:
        connections.update(connect(again))
    pairs: list[PairReported] = []
    others: list[PairReported] = []
    lost = {name for name, error in bad.items() if error.lost}
    for (name, target), probed in connections.items():
        if target.host in lost:
            continue  # our agent there ended with the connection, which is already reported
        if target.port != listening[target.host].extra:
            pairs.append(_pair(name, target, probed))
        elif name != target.host:
            others.append(_pair(name, target, probed))
    return Meeting(listening, tuple(pairs), tuple(others), bad)


def _pair(source: str, target: wire.ProbeTarget, probed: wire.Probed) -> PairReported:
    fields = asdict(probed)
    address = endpoint(target.address, target.port)
    return PairReported(source=source, target=fields.pop("host"), address=address, **fields)
