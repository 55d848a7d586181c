"""Checks of all machines together, as rows: what must be equal, and what must not. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from orchestrator import wire
from orchestrator.checks.report import (
    Check,
    Evidence,
    HostReport,
    Judgement,
    Judgements,
    Needs,
    ip_of,
    minor,
    ok,
)
from orchestrator.events import Level
from orchestrator.groups import grouped
from orchestrator.model import Role
from orchestrator.ranges import fold
from orchestrator.text import count


def _versions(package: str, parts: int, *, strict: bool = False) -> Callable[[Evidence], Judgements]:
    """Make the judgement that names the hosts without the version that most have.

    So many `parts` of it must be equal; `strict`: where not, a job that needs TensorFlow cannot run, and
    a different patch level is told, too.
    """

    def judge(evidence: Evidence) -> Judgements:
        needs = evidence.needs
        if package == ("keras" if needs.legacy_keras else "tf-keras"):
            return  # the job does not use it
        versions = [
            (report, version) for report in evidence.reports if (version := _version(report, package))
        ]
        hosts = grouped((version, report.name) for report, version in versions)
        if len(hosts) < 2:
            return
        usual = max(hosts, key=lambda version: len(hosts[version]))
        others = "; ".join(
            f"{version} on {fold(names)}" for version, names in hosts.items() if version != usual
        )
        why = (
            f"the usual version here is {usual} ({fold(hosts[usual])}), and {others}: tasks must agree on it"
        )
        for report, version in versions:
            differs = minor(version, parts) != minor(usual, parts)
            if differs or (strict and version != usual):
                level = Level.FAIL if strict and differs and needs.tensorflow else Level.WARN
                hint = _same(report, package, usual, needs)
                yield report.name, Judgement(level, version, why, hint, between=True)

    return judge


def _version(report: HostReport, package: str) -> str | None:
    if package == "python":
        return report.facts.python.version
    return report.tensorflow if package == "tensorflow" else report.version(package)


def _same(report: HostReport, package: str, usual: str, needs: Needs) -> str:
    """Say how a host gets the usual version of what it has."""
    if package == "python":
        other = f'set `python = "{".".join(minor(usual))}"` under [env], then `orchestrate setup`'
        return other if report.is_made(needs) else "set `python` for it in hosts.toml to one of that version"
    if report.is_made(needs):
        return "`orchestrate setup`"
    name = report.distribution or package if package == "tensorflow" else package
    # --no-deps: tf_keras would pull in the full tensorflow beside a tensorflow-cpu.
    return report.pip(*(["--no-deps"] if package != "tensorflow" else []), f"{name}=={usual}")


def _machines(evidence: Evidence) -> Judgements:
    """Two entries may be one machine; TensorFlow listens on every address, so their ports must differ."""
    for twins in grouped((report.machine, report) for report in evidence.reports).values():
        first = twins[0]
        for report in twins[1:]:
            both = ", ".join(map(str, sorted({*first.ports} & {*report.ports})))
            if not both:
                yield report.name, ok(f"same as {first.name}")
                continue
            why = f"both have task port {both}, and TensorFlow listens on all addresses of the machine"
            hint = f"give {report.name} another `task_port`, or write the machine once with `tasks = 2`"
            text = f"is {first.name} under another name"
            yield report.name, Judgement(Level.FAIL, text, why, hint, between=True)


SAME_STATE = "they are one machine, and in a state folder one host of a run can be kept"


def _states(evidence: Evidence) -> Judgements:
    """Two entries may be one machine; of its agents only one can hold the lock of a run's keeper."""
    for name, first in same_state((report.name, report.hello) for report in evidence.reports).items():
        yield (
            name,
            Judgement(Level.FAIL, f"is that of {first} too", SAME_STATE, other_state(name), between=True),
        )


def same_state(hellos: Iterable[tuple[str, wire.Hello]]) -> dict[str, str]:
    """Map the hosts whose state folder an earlier one has to that one."""
    # Without a boot id two machines of one image look alike.
    places = grouped(
        ((hello.boot_id, hello.state_place), name)
        for name, hello in hellos
        if hello.boot_id and hello.state_place
    )
    return {name: names[0] for names in places.values() for name in names[1:]}


def other_state(name: str) -> str:
    return f'write state = "{state_for(name)}" for it in hosts.toml'


def state_for(name: str) -> str:
    """Name a state folder of its own for an entry, beside the default one."""
    return f"/var/tmp/orchestrate-{name}"  # noqa: S108 - the node takes none that is not ours


def _shared(evidence: Evidence) -> Judgements:
    for group in evidence.shared:
        for name in group if len(group) > 1 else ():
            yield name, ok(f"workdir of {fold(group)}")


def _exposure(evidence: Evidence) -> Judgements:
    for report in evidence.reports:
        addresses = (report.host.address, *report.addresses)
        public = next(
            (text for text in addresses if (ip := ip_of(text)) and ip.version == 4 and ip.is_global), ""
        )
        if public:
            why = "TensorFlow's port has no authentication: whoever reaches it can run code there"
            yield report.name, Judgement(Level.WARN, f"{public} is a public address", why)


def _devices(evidence: Evidence) -> Judgements:
    """Compare the GPUs per task: TensorFlow's behaviour is undefined where they differ."""
    numbers = {
        report.name: len(report.facts.gpus if report.host.devices is None else report.host.devices)
        // max(1, report.host.tasks)
        for report in evidence.reports
        if report.host.role in (Role.CHIEF, Role.WORKER)
    }
    absent = any(
        device.isdigit() and int(device) not in {gpu.index for gpu in report.facts.gpus}
        for report in evidence.reports
        for device in report.host.devices or ()
    )
    if absent or len({*numbers.values()}) < 2:
        return  # what is not there is told by `gpu`
    usual = Counter(numbers.values()).most_common(1)[0][0]
    others = fold(name for name, number in numbers.items() if number == usual)
    for name, number in numbers.items():
        if number != usual:
            why = f"{others}: {usual}; TensorFlow calls unequal numbers undefined behaviour"
            yield name, Judgement(Level.WARN, f"{count(number, 'GPU')} per task", why)


CHECKS = (
    Check("tensorflow", _versions("tensorflow", 2, strict=True)),
    Check("tf_keras", _versions("tf-keras", 2, strict=True)),
    Check("keras", _versions("keras", 2, strict=True)),
    Check("python", _versions("python", 2)),
    Check("numpy", _versions("numpy", 1)),
    Check("protobuf", _versions("protobuf", 1)),
    Check("tensorflow_datasets", _versions("tensorflow-datasets", 2)),
    Check("machine", _machines),
    Check("state", _states),
    Check("shared", _shared),
    Check(
        "exposure",
        _exposure,
        fix="let only the cluster's hosts reach the task ports (firewall), or use private addresses",
    ),
    Check("devices", _devices, fix="set `devices` in hosts.toml so that all have equally many per task"),
)
