"""Checks that compare machines or test their connections, as rows. Pure."""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TypeAlias

from msgspec.structs import replace

from orchestrator import wire
from orchestrator.checks.gpus import alike
from orchestrator.checks.report import (
    Check,
    Evidence,
    HostReport,
    Judgment,
    Judgments,
    Needs,
    between,
    ip_of,
    minor,
    ok,
    unlike,
)
from orchestrator.events import CheckReported, Closed, Level, PairReported
from orchestrator.frameworks import FRAMEWORKS
from orchestrator.model import OUTSIDE, FrameworkName, Host, Role
from orchestrator.ranges import fold, grouped
from orchestrator.text import count


def _versions(package: str, parts: int = 2, *, strict: bool = False) -> Callable[[Evidence], Judgments]:
    """Return a judgment that names the hosts whose version differs from the majority's.

    The first `parts` of the version must be equal. With `strict`, a different version is a failure for a
    job that needs its framework, and a different patch level is reported too.
    """

    def judge(evidence: Evidence) -> Judgments:
        needs = evidence.needs
        of_job = {"python", "numpy", *FRAMEWORKS[needs.framework].packages}
        if package not in of_job or package == ("keras" if needs.legacy_keras else "tf-keras"):
            return  # the job does not use it
        versions = [(report, version) for report in evidence.reports if (version := report.version(package))]
        hosts = grouped((version, report.name) for report, version in versions)
        if len(hosts) < 2:
            return
        usual = max(hosts, key=lambda version: len(hosts[version]))
        others = "; ".join(
            f"{version} on {fold(names)}" for version, names in hosts.items() if version != usual
        )
        why = f"the usual version is {usual} ({fold(hosts[usual])}), but {others}: all tasks need the same"
        for report, version in versions:
            differs = minor(version, parts) != minor(usual, parts)
            if differs or (strict and version != usual):
                level = Level.FAIL if strict and differs and needs.of(report.name).needed else Level.WARN
                hint = _same(report, package, usual, needs)
                yield report.name, Judgment(level, version, why, hint, between=True)

    return judge


def _same(report: HostReport, package: str, usual: str, needs: Needs) -> str:
    """Return the hint by which a host gets the usual version of a package."""
    if package == "python":
        other = f'set `python = "{".".join(minor(usual))}"` under [env], then run `orchestrate setup`'
        return other if report.is_made(needs) else "set `python` in hosts.toml to one of that version"
    if report.is_made(needs):  # a lock may have other versions for other Pythons
        return "set `python` under [env] to one version for all hosts, then run `orchestrate setup`"
    name = report.distribution or package if package == "tensorflow" else package
    # --no-deps: tf_keras would pull in the full tensorflow beside a tensorflow-cpu.
    return report.pip(*(["--no-deps"] if package == "tf-keras" else []), f"{name}=={usual}")


def _backends(evidence: Evidence) -> Judgments:
    """Compare what the framework was built with, such as CUDA and NCCL, on hosts that report it."""
    built = [(each.imported.built, each.name) for each in evidence.reports if each.imported is not None]
    return unlike(built, "tasks with different builds may be incompatible", shows=True)


def _machines(evidence: Evidence) -> Judgments:
    """Detect entries for the same machine: tasks listen on every address, so their ports must differ."""
    for twins in grouped((report.machine, report) for report in evidence.reports).values():
        first = twins[0]
        for report in twins[1:]:
            both = ", ".join(map(str, sorted({*first.ports} & {*report.ports})))
            if not both:
                yield report.name, ok(f"same as {first.name}")
                continue
            why = f"both have task port {both}, and a task listens on all addresses of the machine"
            hint = f"give {report.name} another `task_port`, or write the machine once with `tasks = 2`"
            text = f"is {first.name} under another name"
            yield report.name, _failed(text, why, hint)


SAME_STATE = "they are one machine, and each host of a run needs its own state folder"


def _states(evidence: Evidence) -> Judgments:
    """Detect entries for the same machine: only one of its agents can hold the lock of a run's keeper."""
    for name, first in same_state((report.name, report.hello) for report in evidence.reports).items():
        yield name, _failed(f"is also used by {first}", SAME_STATE, other_state(name))


def same_state(hellos: Iterable[tuple[str, wire.Hello]]) -> dict[str, str]:
    """Map the hosts that share the state folder of an earlier one to that one."""
    # Without a boot id two machines of one image look identical.
    places = grouped(
        ((hello.boot_id, hello.state_place), name)
        for name, hello in hellos
        if hello.boot_id and hello.state_place
    )
    return {name: names[0] for names in places.values() for name in names[1:]}


def other_state(name: str) -> str:
    return f'write state = "{state_for(name)}" for it in hosts.toml'


def state_for(name: str) -> str:
    """Return a separate state folder for an entry, next to the default one."""
    return f"/var/tmp/orchestrate-{name.replace(':', '-')}"  # noqa: S108 - the node takes none that is not ours


def _exposure(evidence: Evidence) -> Judgments:
    for report in evidence.reports:
        addresses = (report.host.address, *report.addresses)
        public = next(
            (text for text in addresses if (ip := ip_of(text)) and ip.version == 4 and ip.is_global), ""
        )
        if public:
            why = "a task's port has no authentication: anyone who reaches it can run code there"
            yield report.name, Judgment(Level.WARN, f"{public} is a public address", why)


def _devices(evidence: Evidence) -> Judgments:
    """Compare the GPUs per task: TensorFlow's behavior is undefined if they differ."""
    numbers = {
        report.name: len(report.facts.gpus if report.host.devices is None else report.host.devices)
        // max(1, report.host.tasks)
        for report in evidence.reports
        if report.host.role in (Role.CHIEF, Role.WORKER)
        and len(report.host.devices or ()) <= len(report.facts.gpus)  # the `gpu` check reports missing ones
    }
    texts = ((f"{count(number, 'GPU')} per task", name) for name, number in numbers.items())
    return unlike(texts, "unequal numbers are undefined behavior in TensorFlow")


_ADDRESS = "check its `address` in hosts.toml"
_OPEN = "open TCP port {port} there: `ufw allow {port}/tcp`, or `firewall-cmd --add-port={port}/tcp`"
_NETWORK = "check the network between them (cable, VLAN, security group, `ip route`), then the firewalls"

Way: TypeAlias = tuple[str, str]  # from, to
_Own: TypeAlias = Mapping[str, Mapping[str, str]]  # the addresses of each host, with their interfaces


def _misaddressed(evidence: Evidence) -> dict[str, Judgment]:
    """Return failures, by host, for addresses that are loopback on another host, which would reach itself."""
    if len({report.machine for report in evidence.reports}) < 2:
        return {}
    strays = grouped(
        (pair.target, pair) for pair in evidence.pairs if (ip := ip_of(pair.resolved)) and ip.is_loopback
    )
    wrong: dict[str, Judgment] = {}
    for report in evidence.reports:
        if pairs := strays.get(report.name):
            where = fold(dict.fromkeys(pair.source for pair in pairs))
            usable = [ip for ip, name in report.addresses.items() if ":" not in ip and between(name)]
            others = {ip for other in evidence.reports if other is not report for ip in other.addresses}
            own = _near(others, usable) or next(iter(usable), "its address in the cluster's network")
            hint = (
                f"set `address` to an IP address such as {own}; or, for a name, delete it from the line of "
                f"{pairs[0].resolved} in /etc/hosts on {where}"
            )
            text = f"{report.host.address} resolves to {pairs[0].resolved} on {where}"
            wrong[report.name] = Judgment(Level.FAIL, text, "a task there would connect to itself", hint)
    return wrong


def _at_fault(ways: Mapping[Way, bool]) -> dict[str, list[Way]]:
    """Map hosts to the directions that fail (False) because of them.

    The source is to blame if it reaches nobody while others reach its target; otherwise the target is.
    """
    reaches, reached = ({way[end] for way, passes in ways.items() if passes} for end in (0, 1))
    return grouped(
        (way[0] if way[0] not in reaches and way[1] in reached else way[1], way)
        for way, passes in ways.items()
        if not passes
    )


def _reach(evidence: Evidence) -> Judgments:
    """Judge the connections to task ports; consequences of a wrong address are not reported."""
    wrong = _misaddressed(evidence).keys()
    pairs = [pair for pair in evidence.pairs if pair.target not in wrong]
    closed: dict[Way, PairReported] = {}
    for pair in pairs:
        if not pair.tcp:
            closed.setdefault((pair.source, pair.target), pair)
    ways = [(pair.source, pair.target) for pair in pairs if pair.source != pair.target]
    findings: dict[str, list[Judgment]] = {name: [] for pair in pairs for name in (pair.target, pair.source)}
    own = {report.name: report.addresses for report in evidence.reports}
    peers = len({pair.source for pair in pairs}) - 1
    tried = Counter(target for _, target in dict.fromkeys(ways))
    for name, failing in _at_fault({way: way not in closed for way in ways}).items():
        missed = grouped((closed[way].why or "no answer", closed[way]) for way in failing if way[1] == name)
        for reason, some in missed.items():
            sources = dict.fromkeys(pair.source for pair in some)
            who = f"{fold(sources)} cannot reach"
            many = len(sources)
            if 1 < many == tried[name]:
                who = "no other host reaches" if many == peers else f"none of {many} hosts reaches"
            ports = ", ".join(dict.fromkeys(map(_port_of, some)))
            text = f"{who} its task port {ports}: {reason}"
            findings[name].append(_failed(text, *_meaning(some[0], own)))
        if not missed:
            text = f"reaches no other host: {closed[failing[0]].why or 'no answer'}"
            why = "others reach those hosts, so this one or its network blocks outgoing connections"
            hint = "check its routes (`ip route`) and its firewall's outgoing rules"
            findings[name].append(_failed(text, why, hint))
    waits = evidence.needs.framework in (FrameworkName.TORCH, FrameworkName.JAX)
    for name, late in grouped((pair.target, pair) for pair in pairs if pair.tcp and pair.why).items():
        why, hint = _meaning(late[0], own)
        text = f"{late[0].address} leads to {late[0].resolved} first: {late[0].why}"
        why += "; PyTorch and JAX wait for it instead of trying another address"
        findings[name].append(replace(_failed(text, why, hint), level=Level.FAIL if waits else Level.WARN))
    for name, failures in findings.items():
        if not failures and (to_itself := closed.get((name, name))):
            why = "a task also connects to itself: a firewall drops that, or a NAT does not route it back"
            hint = (
                "`iptables -I INPUT -i lo -j ACCEPT` on it, as root; or set `address` to one that leads to "
                "this host from all hosts, itself included"
            )
            if to_itself.why == Closed.UNRESOLVED:
                why, hint = _reason(to_itself)
            text = f"cannot reach its own address {to_itself.address}: {to_itself.why}"
            failures.append(_failed(text, why, hint))
        for finding in failures or ([] if name in wrong else [ok()]):
            yield name, finding


def _meaning(pair: PairReported, own: _Own) -> tuple[str, str]:
    """Return the reason for a failed connection to a listening agent, and a fix."""
    why, hint = _reason(pair)
    has = own.get(pair.target)
    if has and pair.resolved and pair.resolved not in has:
        carriers = [f"{ip} on {name}" if name else ip for ip, name in has.items() if ":" not in ip]
        why = f"{why}; {pair.resolved} is not one of its addresses: it has {', '.join(carriers[:8])}"
        hint = f"{_ADDRESS}: it must lead to that host from all other hosts"
    elif near := _near(own.get(pair.source, {}), {*(has or ())} - {pair.resolved}):
        hint = f'{hint}; or set `address` to "{near}", in a network of {pair.source}'
    return why, hint


def _near(source: Collection[str], target: Collection[str]) -> str:
    """Return an IPv4 address of the target that probably is in a network of the source; "" if none is."""
    networks = {ip.rpartition(".")[0] for ip in source} - {""}
    others = (ip for ip in sorted(target) if ip not in source)  # a bridge of containers has the same on both
    return next((ip for ip in others if ip.rpartition(".")[0] in networks), "")


def _reason(pair: PairReported) -> tuple[str, str]:
    port = _port_of(pair)
    open_it = _OPEN.format(port=port)
    match pair.why:
        case Closed.TIMED_OUT | Closed.NO_ROUTE if pair.icmp is False:
            why = "no reply to TCP or ping: the network is down, or a firewall drops all traffic"
            return why, _NETWORK
        case Closed.TIMED_OUT:
            why = f"packets to TCP port {port} are lost: a firewall on that host or on the path drops them"
            return why + ("; pings arrive" if pair.icmp else ""), open_it
        case Closed.NO_ROUTE:
            why = "pings arrive, so" if pair.icmp else "the network has no route, or"
            return f"{why} a firewall rejects it (as firewalld does)", open_it
        case Closed.REFUSED:
            reason = "the address belongs to another machine, or a firewall rejects the connection"
            return f"orchestrate listens on {port} there, so {reason}", f"{_ADDRESS}, then {open_it}"
        case Closed.UNRESOLVED:
            hint = "set an IP address as `address` in hosts.toml, or add the name to /etc/hosts of all hosts"
            return "that name is unknown there; every host must resolve every address to the same host", hint
    why = "another program or another machine has that address and port"
    return why, f"{_ADDRESS}: it must lead to that host from all other hosts"


def _packets(evidence: Evidence) -> Judgments:
    """Judge large packets: if connections open and large packets vanish, the path MTU is wrong."""
    ways: dict[Way, bool] = {}
    slowest: dict[str, float] = {}
    for pair in evidence.pairs:
        if pair.large is not None and pair.source != pair.target:
            way = (pair.target, pair.source)  # the target sends them back
            ways[way] = ways.get(way, True) and pair.large
            for name in way:
                slowest[name] = max(slowest.get(name, 0.0), pair.large_ms or 0.0)
    holes = _at_fault(ways)
    why = (
        "connections open, but 64 kB do not arrive: something on the path drops large packets"
        " silently (an MTU mismatch); training would hang in its first step"
    )
    for name, slow in slowest.items():
        if name in holes:
            sources = dict.fromkeys("it" if way[0] == name else way[0] for way in holes[name])
            hint = (
                f"`ip link set INTERFACE mtu 1400` on {name} as root, then preflight again; or let ICMP"
                " `fragmentation needed` through"
            )
            yield name, _failed(f"large packets from {fold(sources)} are lost", why, hint)
        else:
            yield name, ok(f"64 kB in {slow:.1f} ms")


def _nccl(evidence: Evidence) -> Judgments:
    """Judge the ports that the kernel assigns to NCCL: with GPUs, open task ports are not enough."""
    missed = grouped((pair.target, pair) for pair in evidence.extra if not pair.tcp)
    for name, pairs in missed.items():
        who = fold(dict.fromkeys(pair.source for pair in pairs))
        why = "NCCL listens on ports that the kernel chooses, beside the task port: training would hang"
        yield name, _failed(f"{who} cannot reach its other ports: {pairs[0].why}", why)


def _interface(evidence: Evidence) -> Judgments:
    """Check hosts with GPUs and several networks: by default NCCL uses the first interface it finds."""
    for report in evidence.reports if len(evidence.reports) > 1 else ():
        carrier = report.addresses.get(report.host.address)
        names = {name for ip, name in report.addresses.items() if ":" not in ip and name and between(name)}
        given = (*report.host.env, *FRAMEWORKS[evidence.needs.framework].interfaces)
        chosen = "NCCL_SOCKET_IFNAME" in given
        if report.facts.gpus and carrier and len(names) > 1 and not chosen:
            others = ", ".join(sorted(names - {carrier}))
            why = f"its address is on {carrier}, and NCCL may choose {others}"
            hint = f'set `env = {{ NCCL_SOCKET_IFNAME = "{carrier}" }}` under [[host]]'
            yield report.name, Judgment(Level.WARN, f"{len(names)} networks", why, hint)


# Prints the name and its addresses; nothing without getent. Without a reply of a name server this takes 10 s
# or more.
OWN_NAME = ("sh", "-c", 'command -v getent >/dev/null || exit; uname -n; getent ahosts "$(uname -n)"; :')
_HOST_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def _hostname(evidence: Evidence) -> Judgments:
    """Judge the host's own name, whose address gloo announces to other tasks if no interface is set."""
    framework = FRAMEWORKS[evidence.needs.framework]
    if not framework.gloo or len({report.machine for report in evidence.reports}) < 2:
        return
    resolved = {pair.source: pair.resolved for pair in evidence.pairs if pair.source == pair.target}
    for report in evidence.reports:
        target = resolved.get(report.name) or report.host.address
        carrier = report.addresses.get(target)
        name, *lines = report.facts.answers.get("hostname", "").split("\n")
        given = framework.interfaces and (carrier or framework.interfaces[0] in report.host.env)
        if given or not _HOST_NAME.fullmatch(name):
            continue
        has = [word for line in lines for word in line.split()[:1] if ip_of(word)]
        # gloo uses the first address that it can listen on.
        own = next((word for word in has if word in report.addresses or word.startswith("127.")), "")
        if carrier and report.addresses.get(own) == carrier and (":" in own) == (":" in target):
            yield report.name, ok(own)
            continue
        text = f"{name} resolves to {own or has[0]}" if has else f"{name} does not resolve"
        text += f" on {report.addresses[own]}" if own in report.addresses else ""
        why = "would connect to themselves" if own else "cannot use it"
        why = "connect to another network" if own in report.addresses else why
        why = f"{framework.title}'s gloo announces the address of the host's own name: other tasks {why}"
        hint = (
            f"add the line `{target} {name}` to /etc/hosts there as root, and remove {name} from other lines"
        )
        if framework.interfaces:
            key = f'{framework.interfaces[0]} = "INTERFACE"'
            hint = f"set `env = {{ {key} }}` under [[host]], with the interface that leads to the other hosts"
        # NCCL has its own rules for GPUs.
        level = Level.WARN if own in report.addresses or report.facts.gpus else Level.FAIL
        yield report.name, Judgment(level, text, why, hint)


def without(
    hosts: Sequence[Host], checks: Sequence[CheckReported], failed: Collection[str]
) -> tuple[str, ...]:
    """Return the hosts to exclude; () if none would remain, or a role would be missing."""
    bad = {*failed, *(check.host for check in checks if check.level is Level.FAIL)}
    roles = {host.role for host in hosts} - {*OUTSIDE}
    if not bad or roles - {host.role for host in hosts if host.name not in bad}:
        return ()
    return tuple(host.name for host in hosts if host.name in bad)


def _failed(text: str, why: str, hint: str = "") -> Judgment:
    return Judgment(Level.FAIL, text, why, hint, between=True)


def _port_of(pair: PairReported) -> str:
    return pair.address.rpartition(":")[2]


CHECKS = (
    *(
        Check(package.replace("-", "_"), _versions(package, strict=True))
        for package in ("tensorflow", "tf-keras", "keras", "torch", "jax", "jaxlib")
    ),
    Check("backend", _backends, fix="install the same build on all, from the same package index"),
    Check("python", _versions("python")),
    Check("numpy", _versions("numpy", 1)),
    Check("machine", _machines),
    Check("state", _states),
    Check(
        "exposure",
        _exposure,
        fix="let only the cluster's hosts reach the task ports (firewall), or use private addresses",
    ),
    Check(
        "model",
        alike,
        fix="use hosts with equal GPUs (`--only`), and install the same driver on all, as root",
    ),
    Check("devices", _devices, fix="set `devices` in hosts.toml so that every task has the same number"),
    Check("address", lambda evidence: _misaddressed(evidence).items()),
    Check("reach", _reach),
    Check("packets", _packets),
    Check("nccl", _nccl, fix="let the cluster's hosts reach all TCP ports of each other"),
    Check("interface", _interface),
    Check("hostname", _hostname),
)
