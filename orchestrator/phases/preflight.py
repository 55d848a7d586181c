"""Will this cluster train? Every host by itself, then every pair of hosts, both ways."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator import checks, restarts
from orchestrator.bus import Bus
from orchestrator.checks import Needs, Seen
from orchestrator.errors import HostError
from orchestrator.events import CheckReported, Level, PairReported, Phase
from orchestrator.fleet import Answers, Fleet, Reply
from orchestrator.model import Host, RunPlan
from orchestrator.phases.context import PhaseFailed, Run, phase, report_failures
from orchestrator.phases.stage import is_builtin
from orchestrator.plan import is_r

PROBE_TIMEOUT = 5.0  # seconds for one pair; a task waits much longer, but a person should not
FACTS_TIMEOUT = 90.0
_BETWEEN = frozenset({"reach", "machine", "tensorflow", "keras", "tf_keras"})  # of a host and the others


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
        found = examine(run.fleet, run.bus, run.plan)
        if not found.good:
            bad = [check for check in found.checks if check.level is Level.FAIL]
            # Who did not answer at all comes first: what others found out about it follows from that.
            causes = [f"{name} {error.what}" for name, error in found.failed.items()]
            causes += [f"{check.host}: {check.check}: {check.found}" for check in bad]
            hints = [*(error.hint for error in found.failed.values()), *(check.hint for check in bad)]
            more = f" (and {len(causes) - 1} more)" if len(causes) > 1 else ""
            outside = any(error.kind in ("lost", "timeout") for error in found.failed.values())
            new = restarts.joined(run.plan)
            said = {check.host: f"{check.check}: {check.found}" for check in reversed(bad)}
            said.update({name: error.what for name, error in found.failed.items()})
            between = not found.failed and all(check.check in _BETWEEN for check in bad)
            if between and not said.keys() & set(new):
                said.update(dict.fromkeys(new, causes[0]))  # the others got on with each other before
            raise PhaseFailed(Phase.PREFLIGHT, causes[0] + more, hints[0], said, outside=outside)
    return found.shared


def examine(fleet: Fleet, bus: Bus, plan: RunPlan) -> Findings:
    """Ask the connected hosts of a plan everything, emit what was found, conclude."""
    hosts = [host for host in plan.hosts if host.name in fleet.sessions]
    ports = {host.name: [spec.port for spec in plan.tasks if spec.host == host.name] for host in hosts}
    nonce = secrets.token_hex(8)
    failed: dict[str, HostError] = {}

    def ask(op: str, fields: Mapping[str, Mapping[str, Any]], timeout: float = 60.0) -> dict[str, Reply]:
        names = [name for name in fields if name not in failed]
        answers: Answers[Reply] = fleet.ask(op, fields, timeout=timeout, hosts=names)
        failed.update(answers.bad)
        report_failures(bus, Phase.PREFLIGHT, answers.bad)
        return answers.good

    facts = ask("facts", {host.name: _facts(host, plan) for host in hosts}, FACTS_TIMEOUT)
    groups = _shared(fleet, hosts, nonce)
    listening = ask(
        "listen",
        {
            host.name: {"run": plan.run, "ports": ports[host.name], "nonce": nonce, "host": host.name}
            for host in hosts
        },
    )
    targets = [
        {"host": host.name, "address": host.address, "port": port}
        for host in hosts
        if host.name in listening
        for port in listening[host.name].result["listening"]  # a taken port has a check of its own
    ]
    probed = ask(
        "probe",
        {name: {"nonce": nonce, "timeout": PROBE_TIMEOUT, "targets": targets} for name in listening},
        PROBE_TIMEOUT + 30.0,
    )
    ask("unlisten", {name: {} for name in listening})
    pairs = [
        _pair(name, target, one) for name, reply in probed.items() for target, one in _rows(targets, reply)
    ]
    seen = [
        Seen(
            host,
            tuple(ports[host.name]),
            fleet.sessions[host.name].hello,
            facts[host.name].result,
            listening[host.name].result,
            fleet.sessions[host.name].clock_offset,
        )
        for host in hosts
        if host.name in facts and host.name in listening
    ]
    found = [*checks.of_hosts(seen, needs(plan), tuple(groups)), *checks.of_pairs(pairs)]
    for pair in pairs:
        bus.emit(pair)
    for check in found:
        bus.emit(check)
    shared = {name: group[0] for group in groups for name in group}
    return Findings(shared, tuple(found), tuple(pairs), failed)


def needs(plan: RunPlan) -> Needs:
    """What the job asks of the hosts."""
    argv = plan.tasks[0].argv
    python = is_builtin(plan.command) or any(word.endswith(".py") for word in argv[:2])
    r = is_r(argv)
    return Needs(tensorflow=python or r, legacy_keras="TF_USE_LEGACY_KERAS" in plan.tasks[0].env, r=r)


def _facts(host: Host, plan: RunPlan) -> dict[str, Any]:
    spec = next(spec for spec in plan.tasks if spec.host == host.name)
    r = is_r(spec.argv)
    return {
        # An R script uses the one that is named to it.
        "python": spec.env.get("RETICULATE_PYTHON", host.python) if r else host.python,
        "r": r,
        "workdir": host.workdir,
        "packages": list(checks.PACKAGES),
        "setup": spec.setup,
    }


def _shared(fleet: Fleet, hosts: Sequence[Host], nonce: str) -> list[tuple[str, ...]]:
    """The groups of hosts that see one and the same workdir, in inventory order."""
    if len(hosts) < 2:
        return []
    fields = {host.name: {"workdir": host.workdir, "nonce": nonce, "host": host.name} for host in hosts}
    names = list(fields)
    # A workdir that cannot be written is told by its own check.
    fleet.ask("share_write", fields, hosts=names)
    read = fleet.ask("share_read", fields, hosts=names)
    fleet.ask("share_clean", fields, hosts=names)
    groups: dict[frozenset[str], None] = {}
    for name, reply in read.good.items():
        group = frozenset(host for host in reply.result["hosts"] if host in read.good)
        if len(group) > 1 and name in group:
            groups[group] = None
    order = {host.name: number for number, host in enumerate(hosts)}
    return [tuple(sorted(group, key=order.__getitem__)) for group in groups]


def _rows(targets: list[dict[str, Any]], reply: Reply) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    return list(zip(targets, reply.result["results"], strict=True))


def _pair(source: str, target: Mapping[str, Any], found: Mapping[str, Any]) -> PairReported:
    address = target["address"]
    shown = f"[{address}]" if ":" in address else address
    return PairReported(
        source=source,
        target=target["host"],
        address=f"{shown}:{target['port']}",
        tcp=found["tcp"],
        tcp_ms=found["tcp_ms"],
        icmp=found["icmp"],
        icmp_ms=found["icmp_ms"],
        why=found["why"] or "",
    )
