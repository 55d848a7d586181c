"""The checks of all machines together: what must be equal, and what must not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from operator import attrgetter

from orchestrator.checks.limits import of_processors
from orchestrator.checks.seen import IpKind, Needs, Seen, kinds_of, minor
from orchestrator.checks.states import SAME_STATE, other_state, same_state
from orchestrator.config.targets import is_loopback
from orchestrator.events import Check, CheckReported, Level
from orchestrator.groups import grouped
from orchestrator.model import Role
from orchestrator.ranges import fold
from orchestrator.text import count


def across(seen: Sequence[Seen], needs: Needs, shared: Iterable[tuple[str, ...]]) -> Iterator[CheckReported]:
    yield from _versions(seen, needs)
    yield from _machines(seen)
    yield from _states(seen)
    yield from _loopback(seen)
    yield from _public(seen)
    yield from _devices(seen)
    yield from of_processors(seen)
    for group in shared:
        if len(group) > 1:
            known = (one for one in seen if one.name in group)
            yield from (one.says(Check.SHARED, Level.OK, f"workdir of {fold(group)}") for one in known)


def _versions(seen: Sequence[Seen], needs: Needs) -> Iterator[CheckReported]:
    """Another minor version of TensorFlow or Keras breaks collectives; a patch level rarely does."""
    severe = Level.FAIL if needs.tensorflow else Level.WARN
    same = partial(_same, needs, "tensorflow")
    yield from _odd(seen, "tensorflow", lambda one: one.tensorflow, severe, same)
    keras = "tf-keras" if needs.legacy_keras else "keras"
    yield from _odd(seen, keras, lambda one: one.version(keras), severe, partial(_same, needs, keras))
    version = attrgetter("facts.python.version")
    yield from _odd(seen, "python", version, Level.WARN, partial(_same_python, needs), patches=False)
    for package, parts in (("numpy", 1), ("protobuf", 1), ("tensorflow-datasets", 2)):
        release, same = _release_of(package, parts), partial(_same, needs, package)
        yield from _odd(seen, package, release, Level.WARN, same)


def _release_of(package: str, parts: int) -> Callable[[Seen], str | None]:
    """The part of its version that matters between tasks."""

    def version(one: Seen) -> str | None:
        found = one.version(package)
        return ".".join(found.split(".")[:parts]) if found else None

    return version


def _odd(
    seen: Sequence[Seen],
    what: str,
    version: Callable[[Seen], str | None],
    severe: Level,
    same: Callable[[Seen, str], tuple[str, tuple[str, ...]]],
    *,
    patches: bool = True,
) -> Iterator[CheckReported]:
    """Name those that do not have the version that most have; without `patches` its patch level is nothing.

    `same` says how a host gets the usual version.
    """
    versions = [(one, found) for one in seen if (found := version(one))]
    if len({found for _, found in versions}) < 2:
        return
    usual = Counter(found for _, found in versions).most_common(1)[0][0]
    who = grouped((found, one.name) for one, found in versions)
    listed = "; ".join(f"{found} on {fold(names)}" for found, names in who.items() if found != usual)
    for one, found in versions:
        if found == usual or (not patches and minor(found) == minor(usual)):
            continue
        level = severe if minor(found) != minor(usual) else Level.WARN
        why = f"the usual version here is {usual} ({fold(who[usual])}), and {listed}: tasks must agree on it"
        hint, fix = same(one, usual)
        yield one.says(Check(what.replace("-", "_")), level, found, why, hint, between=True, fix=fix)


def _same_python(needs: Needs, one: Seen, usual: str) -> tuple[str, tuple[str, ...]]:
    if one.is_made(needs):
        return f'set `python = "{".".join(minor(usual))}"` under [env], then `orchestrate setup`', ()
    return "set `python` for it in hosts.toml to one of that version", ()


def _same(needs: Needs, what: str, one: Seen, usual: str) -> tuple[str, tuple[str, ...]]:
    """How a host gets the usual version of the distribution that it has: another beside it breaks both."""
    if one.is_made(needs):
        return "`orchestrate setup`", ()
    if what == "tensorflow":
        name = one.distribution or "tensorflow"
        if name not in ("tensorflow", "tensorflow-cpu"):
            return f"install the {name} that is built from TensorFlow {usual}, or leave the host out", ()
        return one.pip(f"{name}=={usual}")
    # --no-deps: tf_keras would pull in the full tensorflow beside a tensorflow-cpu.
    exact = usual if usual.count(".") > 1 else f"{usual}.*"
    return one.pip("--no-deps", f"{what.replace('-', '_')}=={exact}")


def clashing(seen: Sequence[Seen]) -> frozenset[str]:
    """The hosts that share a machine and a task port with another entry."""
    users = Counter((one.machine, port) for one in seen for port in one.ports)
    return frozenset(one.name for one in seen for port in one.ports if users[one.machine, port] > 1)


def _machines(seen: Sequence[Seen]) -> Iterator[CheckReported]:
    """Two entries may be one machine; TensorFlow listens on every address, so their ports must differ."""
    for place, one in enumerate(seen):
        twins = [other for other in seen[:place] if other.machine == one.machine]
        rivals = [other for other in twins if set(other.ports) & set(one.ports)]
        if rivals:
            yield _rivals(rivals[0], one)
        elif twins:
            yield one.says(Check.MACHINE, Level.OK, f"same as {twins[0].name}")


def _rivals(first: Seen, one: Seen) -> CheckReported:
    both = ", ".join(map(str, sorted(set(first.ports) & set(one.ports))))
    why = f"both have task port {both}, and TensorFlow listens on all addresses of the machine"
    hint = f"give {one.name} another `task_port`, or write the machine once with `tasks = 2`"
    return one.says(Check.MACHINE, Level.FAIL, f"is {first.name} under another name", why, hint, between=True)


def _states(seen: Sequence[Seen]) -> Iterator[CheckReported]:
    """Two entries may be one machine; of its agents only one can hold the lock of a run's keeper."""
    for one, first in same_state([(one.name, one.hello) for one in seen]).items():
        report = next(each for each in seen if each.name == one)
        yield report.says(
            Check.STATE, Level.FAIL, f"is that of {first} too", SAME_STATE, other_state(one), between=True
        )


def _loopback(seen: Sequence[Seen]) -> Iterator[CheckReported]:
    if len({one.machine for one in seen}) < 2:
        return
    for one in seen:
        if is_loopback(one.host.address):
            why = "the tasks on the other machines would connect to themselves"
            hint = "set `address` to one that the others reach, such as " + _own_address(one)
            yield one.says(Check.ADDRESS, Level.FAIL, f"{one.host.address} is a loopback address", why, hint)


def _public(seen: Sequence[Seen]) -> Iterator[CheckReported]:
    for one in seen:
        addresses = (one.host.address, *(ip for ip in one.ips if ":" not in ip))
        public = next((ip for ip in addresses if IpKind.GLOBAL in kinds_of(ip)), None)
        if public:
            why = "TensorFlow's port has no authentication: whoever reaches it can run code there"
            hint = "let only the cluster's hosts reach the task ports (firewall), or use private addresses"
            yield one.says(Check.EXPOSURE, Level.WARN, f"{public} is a public address", why, hint)


def _devices(seen: Sequence[Seen]) -> Iterator[CheckReported]:
    """MultiWorkerMirroredStrategy's behaviour with unequal device counts is undefined."""
    training = [one for one in seen if one.host.role in (Role.CHIEF, Role.WORKER)]
    if any(_absent(one) for one in training):
        return  # that is told already
    counts = {one.name: _per_task(one) for one in training}
    if len(set(counts.values())) < 2:
        return
    usual = Counter(counts.values()).most_common(1)[0][0]
    others = fold(name for name, number in counts.items() if number == usual)
    for one in training:
        if counts[one.name] != usual:
            found = f"{count(counts[one.name], 'GPU')} per task"
            why = f"{others}: {usual}; TensorFlow calls unequal numbers undefined behaviour"
            yield one.says(
                Check.DEVICES,
                Level.WARN,
                found,
                why,
                "set `devices` in hosts.toml so that all have equally many per task",
            )


def _absent(seen: Seen) -> bool:
    """Whether `devices` names a GPU that is not there."""
    known = {str(gpu.index) for gpu in seen.facts.gpus}
    return any(device.isdigit() and device not in known for device in seen.host.devices or ())


def _per_task(seen: Seen) -> int:
    devices = seen.host.devices
    return len(seen.facts.gpus if devices is None else devices) // max(1, seen.host.tasks)


def _own_address(seen: Seen) -> str:
    own = [ip for ip in seen.ips if IpKind.LOOPBACK not in kinds_of(ip) and ":" not in ip]
    return own[0] if own else "its address in the cluster's network"
