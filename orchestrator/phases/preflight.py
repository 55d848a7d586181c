"""Will this cluster train? Every host by itself, then every pair of hosts, both ways."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Literal

from msgspec import Struct
from msgspec.structs import asdict

from orchestrator import checks, wire
from orchestrator.checks import Evidence, HostReport, Needs
from orchestrator.errors import HostError
from orchestrator.events import CheckReported, Level, PairReported, Phase
from orchestrator.fleet import Fleet
from orchestrator.frameworks import FRAMEWORKS, alone
from orchestrator.model import Host, RunPlan, TaskSpec
from orchestrator.phases.context import Emit, PhaseFailed, Run, failure, phase, report_failures
from orchestrator.planning.plan import is_builtin, is_r
from orchestrator.ranges import grouped
from orchestrator.run import restarts
from orchestrator.text import endpoint

PROBE_TIMEOUT = 5.0  # seconds for one pair; a task waits much longer, but a person should not
FACTS_TIMEOUT = 90.0
IMPORT_TIMEOUT = 180.0
_LARGE = 64 << 10  # bytes: many packets of any size, and too few for a slow line to matter
_MARGIN = 30.0  # seconds
_MANY_PAIRS = 256  # of more, a launch tells those with something wrong


class Findings(Struct, frozen=True):
    """Result of a preflight; `good` is True when the hosts can train together."""

    shared: dict[str, str]  # host -> the first host that sees the same workdir
    checks: tuple[CheckReported, ...]
    pairs: tuple[PairReported, ...]
    failed: dict[str, HostError]  # hosts that could not answer at all
    facts: Mapping[str, wire.MachineFacts] = {}

    @property
    def good(self) -> bool:
        return not self.failed and all(check.level is not Level.FAIL for check in self.checks)


def preflight(run: Run) -> dict[str, str]:
    """Examine the run's hosts; raise PhaseFailed when they cannot train. Return the shared workdirs.

    Nothing is imported for it: the local training does that, and who leaves that out wants to start.
    """
    with phase(run, Phase.PREFLIGHT):
        findings = examine(run.fleet, run.emit, run.plan)
        run.gpus.update(findings.facts)
        if not findings.good:
            raise _failure(findings, restarts.joined(run.plan))
    return findings.shared


def _failure(findings: Findings, new: Collection[str]) -> PhaseFailed:
    """Word what keeps the hosts from training; `new` are those that joined the others, which can."""
    bad = [check for check in findings.checks if check.level is Level.FAIL]
    errors = [
        HostError(check.host, f"fails `{check.check}`: {check.found}", kind="check", hint=check.hint)
        for check in bad
    ]
    # Who did not answer at all comes first: what others say about it follows from that.
    failed = failure(Phase.PREFLIGHT, [*findings.failed.values(), *errors])
    between = not findings.failed and all(check.between for check in bad)
    if between and not failed.hosts.keys() & set(new):  # the others got on with each other before
        failed.hosts = {**failed.hosts, **dict.fromkeys(new, failed.cause)}
    return failed


def examine(
    fleet: Fleet,
    emit: Emit,
    plan: RunPlan,
    *,
    closely: bool = False,
    patience: float = PROBE_TIMEOUT,
    on_step: Callable[[str], None] = lambda _: None,
) -> Findings:
    """Ask the connected hosts of a plan everything, emit the results, conclude.

    `closely`: also import what trains, where the job needs a framework, and emit every pair, however many;
    else of very many only those with something wrong. `on_step` hears what takes its time.
    """
    hosts = [host for host in plan.hosts if host.name in fleet.sessions]
    required = needs(plan)
    failed: dict[str, HostError] = {}

    def fails(bad: Mapping[str, HostError]) -> None:
        report_failures(emit, Phase.PREFLIGHT, {name: bad[name] for name in bad if name not in failed})
        failed.update(bad)

    on_step("looking at the hosts")
    # A Python has to start for the facts: meanwhile the shared folders are looked for.
    questions = {host.name: _facts(host, plan) for host in hosts}
    gather_facts = fleet.begin(questions, timeout=FACTS_TIMEOUT)
    shared = shared_workdirs(fleet, hosts)
    answers = gather_facts()
    facts = answers.good
    fails(answers.bad)
    there = [host for host in hosts if host.name in facts]
    ports = grouped((spec.host, spec.port) for spec in plan.tasks)
    hellos = {host.name: fleet.sessions[host.name].hello for host in there}
    # Of two entries of one machine the first one listens.
    first = {
        (hello.boot_id, hello.netns, port): name
        for name, hello in reversed(hellos.items())
        for port in ports[name]
    }
    listening = grouped((name, port) for (_, _, port), name in first.items())
    imports = {host.name: _imports(plan, host, facts[host.name], required) for host in there if closely}
    gather_imports = fleet.begin({name: one for name, one in imports.items() if one}, timeout=IMPORT_TIMEOUT)
    on_step("looking at every pair of hosts")
    meeting = meet(
        fleet,
        there,
        {host.name: listening.get(host.name, []) for host in there},
        run=plan.run,
        patience=patience,
        extra=len(there) > 1 and any(fact.gpus for fact in facts.values()),
    )
    fails(meeting.bad)
    if closely:
        on_step("importing what trains")
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
    return Findings(shared, tuple(results), meeting.pairs, failed, facts)


def _imports(plan: RunPlan, host: Host, facts: wire.MachineFacts, needs: Needs) -> wire.Imports | None:
    """Nothing to ask where the job needs no framework, or where it is known already that it is not there."""
    framework = FRAMEWORKS[needs.framework]
    # A host may name packages that nobody asked for.
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
        # numpy is imported by all: that it is not there is what one wants to know.
        modules=[module for module in modules if module in there or module == "numpy"],
        gpus=bool(facts.gpus or host.devices),
        probe=framework.probe,
    )


def needs(plan: RunPlan) -> Needs:
    """Say what the job needs of its hosts."""
    argv = plan.tasks[0].argv
    python = is_builtin(plan.command) or any(word.endswith(".py") for word in argv[:2])
    r = is_r(argv)
    return Needs(
        needed=python or r,
        legacy_keras="TF_USE_LEGACY_KERAS" in plan.tasks[0].env,
        framework=plan.recipe.framework,
        r=r,
        environment=plan.environment,
    )


def _python(host: Host, spec: TaskSpec) -> str:
    """The Python that trains: an R script uses the one that is named to it."""
    return spec.env.get("RETICULATE_PYTHON", host.python) if is_r(spec.argv) else host.python


def _facts(host: Host, plan: RunPlan) -> wire.Facts:
    spec = plan.tasks_on(host.name)[0]
    return wire.Facts(
        python=_python(host, spec),
        r=is_r(spec.argv),
        workdir=host.workdir,
        packages=checks.PACKAGES,
        setup=spec.setup,
        programs={**checks.PROGRAMS, "machine": checks.MACHINE},
    )


def shared_workdirs(fleet: Fleet, hosts: Sequence[Host]) -> dict[str, str]:
    """Return the hosts that see one and the same workdir as others, each with the first of them."""
    if len(hosts) < 2:
        return {}
    names, nonce = [host.name for host in hosts], secrets.token_hex(8)

    def step(word: Literal["write", "read", "clean"]) -> dict[str, wire.Sharers]:
        """Take a step on all; a workdir that cannot be written is told by its own check."""
        return fleet.ask(
            {
                host.name: wire.Share(workdir=host.workdir, nonce=nonce, host=host.name, step=word)
                for host in hosts
            }
        ).good

    step("write")
    read = step("read")
    step("clean")
    seen = {name: {host for host in reply.hosts if host in read} for name, reply in read.items()}
    return {
        name: min(group, key=names.index) for name, group in seen.items() if len(group) > 1 and name in group
    }


class Meeting(Struct, frozen=True):
    """Results of all connections."""

    listening: Mapping[str, wire.Listening]
    pairs: tuple[PairReported, ...]
    extra: tuple[PairReported, ...]  # on ports of the kernel's choice
    bad: Mapping[str, HostError]  # hosts that could not answer


def meet(
    fleet: Fleet,
    hosts: Sequence[Host],
    ports: Mapping[str, Sequence[int]],
    *,
    run: str,
    patience: float,
    extra: bool,
) -> Meeting:
    """Have all hosts listen and connect to each other; `extra`: on a port of the kernel's choice, too."""
    nonce = secrets.token_hex(8)
    questions = {
        host.name: wire.Listen(
            run=run, ports=ports[host.name], nonce=nonce, host=host.name, extra=extra, large=_LARGE
        )
        for host in hosts
    }
    answers = fleet.ask(questions)
    listening, bad = answers.good, dict(answers.bad)
    targets = [
        wire.ProbeTarget(host.name, host.address, port)
        for host in hosts
        if (reply := listening.get(host.name))
        for port in (*reply.listening, *([reply.extra] if reply.extra is not None else []))
    ]

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

    connections = connect(dict.fromkeys(listening, targets))
    # Look again, with little load: packets may be lost on a machine that is busy.
    again: dict[str, list[wire.ProbeTarget]] = {}
    for (name, target), probed in connections.items():
        if probed.large is False:
            again.setdefault(name, []).append(target)
    if again:
        connections.update(connect(again))
    bad.update(fleet.ask(wire.Unlisten(), hosts=[name for name in listening if name not in bad]).bad)
    pairs: list[PairReported] = []
    others: list[PairReported] = []
    lost = {name for name, error in bad.items() if error.lost}
    for (name, target), probed in connections.items():
        if target.host in lost:
            continue  # our agent there went with the connection: that is told already
        if target.port != listening[target.host].extra:
            pairs.append(_pair(name, target, probed))
        elif name != target.host:
            others.append(_pair(name, target, probed))
    return Meeting(listening, tuple(pairs), tuple(others), bad)


def _pair(source: str, target: wire.ProbeTarget, probed: wire.Probed) -> PairReported:
    fields = asdict(probed)
    address = endpoint(target.address, target.port)
    return PairReported(source=source, target=fields.pop("host"), address=address, **fields)
