"""Will this cluster train? Every host by itself, then every pair of hosts, both ways."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from orchestrator import checks, wire
from orchestrator.checks import Needs, Seen
from orchestrator.errors import HostError, Trouble
from orchestrator.events import Check, CheckReported, Level, Noted, PairReported, Phase
from orchestrator.fleet import Answers, Fleet
from orchestrator.model import Host, RunPlan
from orchestrator.phases.context import PhaseFailed, Run, phase, report_failures
from orchestrator.phases.imports import ImportChecks
from orchestrator.phases.mesh import meet
from orchestrator.planning.plan import is_builtin, is_r
from orchestrator.run import restarts
from orchestrator.store.bus import Bus

R = TypeVar("R", bound=wire.Reply)

PROBE_TIMEOUT = 5.0  # seconds for one pair; a task waits much longer, but a person should not
FACTS_TIMEOUT = 90.0


@dataclass(frozen=True)
class PreflightOptions:
    """How closely to look, and who is told what takes its time."""

    imports: bool = False  # import what trains, where the job needs TensorFlow
    bandwidth: bool = False
    patience: float = PROBE_TIMEOUT
    busy_load: float = checks.BUSY
    on_step: Callable[[str], None] = lambda _: None
    on_wait: Callable[[Mapping[str, str]], None] = lambda _: None  # host -> whose preflight is there


DEFAULT = PreflightOptions()


@dataclass(frozen=True)
class Findings:
    shared: dict[str, str]  # host -> the first host that sees the same workdir
    checks: tuple[CheckReported, ...]
    pairs: tuple[PairReported, ...]
    failed: dict[str, HostError]  # hosts that could not answer at all

    @property
    def good(self) -> bool:
        return not self.failed and all(check.level is not Level.FAIL for check in self.checks)


def preflight(run: Run) -> dict[str, str]:
    """Examine the run's hosts; raise PhaseFailed when they cannot train. Return the shared workdirs."""
    with phase(run, Phase.PREFLIGHT):
        found = examine(run.fleet, run.bus, run.plan, _look(run))
        if not found.good:
            bad = [check for check in found.checks if check.level is Level.FAIL]
            # Who did not answer at all comes first: what others found out about it follows from that.
            causes = [f"{name} {error.what}" for name, error in found.failed.items()]
            causes += [f"{check.host}: {check.check}: {check.found}" for check in bad]
            hints = [*(error.hint for error in found.failed.values()), *(check.hint for check in bad)]
            more = f" (and {len(causes) - 1} more)" if len(causes) > 1 else ""
            outside = any(error.lost or error.kind == Trouble.TIMEOUT for error in found.failed.values())
            new = restarts.joined(run.plan)
            said = {check.host: f"{check.check}: {check.found}" for check in reversed(bad)}
            said.update({name: error.what for name, error in found.failed.items()})
            between = not found.failed and all(check.between for check in bad)
            if between and not said.keys() & set(new):
                said.update(dict.fromkeys(new, causes[0]))  # the others got on with each other before
            raise PhaseFailed(Phase.PREFLIGHT, causes[0] + more, hints[0], said, outside=outside)
    return found.shared


def _look(run: Run) -> PreflightOptions:
    """Nothing is imported for it: the local training does that, and who leaves that out wants to start."""

    def waits(others: Mapping[str, str]) -> None:
        name, user = next(iter(others.items()))
        run.bus.emit(Noted(f"waiting for a preflight of {user}, which looks at the ports of {name}"))

    return PreflightOptions(on_wait=waits)


def examine(fleet: Fleet, bus: Bus, plan: RunPlan, look: PreflightOptions = DEFAULT) -> Findings:
    """Ask the connected hosts of a plan everything, emit what was found, conclude."""
    hosts = [host for host in plan.hosts if host.name in fleet.sessions]
    wanted = needs(plan)
    failed: dict[str, HostError] = {}

    def fails(bad: Mapping[str, HostError]) -> None:
        failed.update(bad)
        report_failures(bus, Phase.PREFLIGHT, bad)

    def ask(questions: Mapping[str, wire.Request[R]], timeout: float = 60.0) -> dict[str, R]:
        names = [name for name in questions if name not in failed]
        return collect(fleet.ask(questions, timeout=timeout, hosts=names))

    def collect(answers: Answers[R]) -> dict[str, R]:
        fails({name: error for name, error in answers.bad.items() if name not in failed})
        return answers.good

    look.on_step("looking at the hosts")
    # A Python has to start for the facts: meanwhile the shared folders are looked for.
    questions = {host.name: _facts(host, plan) for host in hosts}
    gather_facts = fleet.begin(questions, timeout=FACTS_TIMEOUT, hosts=list(questions))
    groups = shared_workdirs(fleet, hosts, secrets.token_hex(8))
    facts = collect(gather_facts())
    known = [host for host in hosts if host.name in facts]
    # Many imports at once keep a machine busy: those of hosts that are one machine are made once, and while
    # the network is looked at.
    imports = ImportChecks(fleet, plan, known, facts, wanted) if look.imports else None
    look.on_step("looking at every pair of hosts")
    met = meet(
        fleet,
        ask,
        known,
        _ports(fleet, plan, known),
        run=plan.run,
        patience=look.patience,
        bandwidth=look.bandwidth,
        extra=[name for name, fact in facts.items() if fact.gpus] if len(known) > 1 else [],
        on_wait=look.on_wait,
        on_failure=fails,
    )
    imported: Mapping[str, wire.Imported] = {}
    if imports is not None:
        look.on_step("importing what trains")
        imported, bad = imports.wait()
        fails(bad)
    lost = {name for name, error in failed.items() if error.lost}
    # Our agent there went with the connection: that is told already.
    pairs = [pair for pair in met.pairs if pair.target not in lost]
    seen = [
        Seen(
            host,
            tuple(spec.port for spec in plan.tasks_on(host.name)),
            fleet.sessions[host.name].hello,
            facts[host.name],
            met.listening[host.name],
            fleet.sessions[host.name].clock_offset,
            imported.get(host.name),
        )
        for host in known
        if host.name in met.listening
    ]
    found = checks.of_hosts(seen, wanted, tuple(groups))
    explained = [check.host for check in found if check.check == Check.ADDRESS and check.level is Level.FAIL]
    found += checks.of_network(seen, pairs, explained, look.busy_load)
    found += checks.of_extra([pair for pair in met.extra if pair.target not in lost])
    for pair in pairs:
        bus.emit(pair)
    for check in found:
        bus.emit(check)
    shared = {name: group[0] for group in groups for name in group}
    return Findings(shared, tuple(found), tuple(pairs), failed)


def _ports(fleet: Fleet, plan: RunPlan, hosts: Sequence[Host]) -> dict[str, list[int]]:
    """The task ports on which each host is to listen; of two entries of one machine only the first one's."""
    taken: set[tuple[object, ...]] = set()
    ports: dict[str, list[int]] = {}
    for host in hosts:
        hello = fleet.sessions[host.name].hello
        ports[host.name] = []
        for port in (spec.port for spec in plan.tasks_on(host.name)):
            if (hello.boot_id, hello.netns, port) not in taken:
                taken.add((hello.boot_id, hello.netns, port))
                ports[host.name].append(port)
    return ports


def needs(plan: RunPlan) -> Needs:
    """What the job asks of the hosts."""
    argv = plan.tasks[0].argv
    python = is_builtin(plan.command) or any(word.endswith(".py") for word in argv[:2])
    r = is_r(argv)
    return Needs(
        tensorflow=python or r,
        legacy_keras="TF_USE_LEGACY_KERAS" in plan.tasks[0].env,
        r=r,
        setup=bool(plan.tasks[0].setup),
        environment=plan.environment,
        tasks=len(plan.tasks),
        python=plan.needs_python,
        python_at=plan.needs_python_at,
    )


def _facts(host: Host, plan: RunPlan) -> wire.Facts:
    spec = plan.tasks_on(host.name)[0]
    r = is_r(spec.argv)
    return wire.Facts(
        # An R script uses the one that is named to it.
        python=spec.env.get("RETICULATE_PYTHON", host.python) if r else host.python,
        r=r,
        workdir=host.workdir,
        packages=checks.PACKAGES,
        setup=spec.setup,
    )


def shared_workdirs(fleet: Fleet, hosts: Sequence[Host], nonce: str) -> list[tuple[str, ...]]:
    """The groups of hosts that see one and the same workdir, in inventory order."""
    if len(hosts) < 2:
        return []
    names = [host.name for host in hosts]
    # A workdir that cannot be written is told by its own check.
    fleet.ask(
        lambda one: wire.ShareWrite(workdir=one.host.workdir, nonce=nonce, host=one.host.name), hosts=names
    )
    read = fleet.ask(lambda one: wire.ShareRead(workdir=one.host.workdir, nonce=nonce), hosts=names)
    fleet.ask(lambda one: wire.ShareClean(workdir=one.host.workdir, nonce=nonce), hosts=names)
    groups: dict[frozenset[str], None] = {}
    for name, reply in read.good.items():
        group = frozenset(host for host in reply.hosts if host in read.good)
        if len(group) > 1 and name in group:
            groups[group] = None
    order = {host.name: number for number, host in enumerate(hosts)}
    return [tuple(sorted(group, key=order.__getitem__)) for group in groups]
