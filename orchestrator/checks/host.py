"""The checks of one machine by itself."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from orchestrator import wire
from orchestrator.checks.imports import of_imports
from orchestrator.checks.limits import of_limits
from orchestrator.checks.r import of_r
from orchestrator.checks.seen import Needs, Seen, minor, release
from orchestrator.events import Check, CheckReported, Level
from orchestrator.names import is_run
from orchestrator.text import duration, size

OLDEST_PYTHON = (3, 8)  # that our agent runs on
LITTLE_DISK, NO_DISK = 5e9, 200e6  # bytes: below them a warning, a failure
SKEW = 1.0  # seconds
_KERAS_3 = (2, 16)  # the TensorFlow from which on tf_keras is what makes `fit` work on several tasks


def alone(seen: Seen, needs: Needs, *, own_ports: bool = True) -> Iterator[CheckReported]:
    """Without `own_ports` its ports are not looked at: another entry for the same machine wants them too."""
    yield seen.says(Check.LOGIN, Level.OK, seen.hello.user)
    yield _agent(seen)
    yield _python(seen, needs)
    if seen.facts.python.ok:
        yield from _packages(seen, needs)
        yield from of_imports(seen, needs)
        if needs.r:
            yield from of_r(seen)
    yield from of_limits(seen, needs)
    yield _rsync(seen)
    yield _state(seen)
    yield _workdir(seen)
    yield from _disk(seen)
    yield _clock(seen)
    if own_ports:
        yield from _ports(seen)
    yield from _linger(seen)
    yield from _gpus(seen)


def _agent(seen: Seen) -> CheckReported:
    found = seen.hello.python
    if release(found) >= OLDEST_PYTHON:
        return seen.says(Check.AGENT, Level.OK, found)
    why = "our agent needs Python 3.8 or newer; the training may use another one"
    return seen.says(
        Check.AGENT, Level.FAIL, f"Python {found}", why, _set("agent_python", "a newer Python there")
    )


def _python(seen: Seen, needs: Needs) -> CheckReported:
    python = seen.facts.python
    if python.ok and python.version and release(python.version) < (3, needs.python):
        why = f"its grammar needs Python 3.{needs.python} or newer"
        wanted = _set("python", "a newer Python that trains")
        if seen.is_made(needs):
            wanted = f'set `python = "3.{needs.python}"` under [env], then `orchestrate setup`'
        hint = f"{wanted}, or write that for the older one"
        return seen.says(
            Check.PYTHON, Level.FAIL, f"{python.version} cannot compile {needs.python_at}", why, hint
        )
    if python.ok:
        return seen.says(Check.PYTHON, Level.OK, python.version or "?")
    found = f"{seen.host.python} does not run"
    hint = "`orchestrate setup`" if seen.is_made(needs) else _set("python", "the Python that trains")
    if needs.setup:
        found, hint = (
            f"{found} behind the `setup` of [job]",
            f"run that `setup` there, in `bash -l`; or {hint}",
        )
    return seen.says(Check.PYTHON, Level.FAIL, found, python.error, hint)


def _packages(seen: Seen, needs: Needs) -> Iterator[CheckReported]:
    version = seen.tensorflow
    if version is None:
        level = Level.FAIL if needs.tensorflow else Level.WARN
        why = f"{seen.facts.python.path} does not have it"
        hint, fix = seen.pip("tensorflow")
        hint = _or(hint, "set `python` or `setup`, so that the right one is used")
        if seen.is_made(needs):
            hint = "add tensorflow to the `packages` of [env], then `orchestrate setup`"
        if seen.is_made(needs) or level is not Level.FAIL:
            fix = ()
        yield seen.says(Check.TENSORFLOW, level, "not installed", why, hint, fix=fix)
    else:
        yield seen.says(Check.TENSORFLOW, Level.OK, version)
        if needs.legacy_keras and release(version) >= _KERAS_3:
            yield _legacy_keras(seen, version, needs)


def _legacy_keras(seen: Seen, tensorflow: str, needs: Needs) -> CheckReported:
    """Keras 3 cannot `fit` on several tasks; what does is tf_keras, of TensorFlow's own minor version."""
    found = seen.version("tf-keras")
    if found is not None and minor(found) == minor(tensorflow):
        return seen.says(Check.TF_KERAS, Level.OK, found)
    # --no-deps: it would pull in the full tensorflow beside a tensorflow-cpu.
    wanted = ".".join(minor(tensorflow))
    hint, fix = seen.pip("--no-deps", f"tf_keras=={wanted}.*")
    hint = _or(hint, "set `legacy_keras = false` under [job]")
    if seen.is_made(needs):
        hint, fix = "add tf-keras to the `packages` of [env], then `orchestrate setup`", ()
    why = "TF_USE_LEGACY_KERAS=1 is set, since tf.keras in the program is Keras 2"
    level = Level.FAIL if needs.tensorflow else Level.WARN
    if found is None:
        return seen.says(Check.TF_KERAS, level, "not installed", why, hint, fix=fix)
    beside = f"{found} beside tensorflow {tensorflow}"
    return seen.says(Check.TF_KERAS, level, beside, f"{why}; the two must match", hint, fix=fix)


def _rsync(seen: Seen) -> CheckReported:
    if seen.facts.rsync:
        return seen.says(Check.RSYNC, Level.OK, "ok")
    why = "a changed file of more than 2 MB is sent whole, not only the parts that changed"
    hint = "`apt install rsync` there as root, or `dnf install rsync`"
    return seen.says(Check.RSYNC, Level.WARN, "not installed", why, hint)


def _state(seen: Seen) -> CheckReported:
    trouble = seen.hello.state_error
    if not trouble:
        return seen.says(Check.STATE, Level.OK, "ok")
    hint = _set("state", "a folder of your own on a local disk")
    return seen.says(
        Check.STATE, Level.FAIL, "cannot be used", f"the host {trouble.said}\n{trouble.told}", hint
    )


def _workdir(seen: Seen) -> CheckReported:
    workdir = seen.facts.disk.workdir
    if workdir.writable:
        return seen.says(Check.WORKDIR, Level.OK, "ok")
    return seen.says(
        Check.WORKDIR,
        Level.FAIL,
        f"{workdir.path} cannot be written",
        workdir.error,
        _set("workdir", "a folder that this user may write"),
    )


@dataclass(frozen=True)
class _Room:
    free: int  # bytes
    setting: str  # the key of hosts.toml that moves it
    path: str | None
    holds: str


def _disk(seen: Seen) -> Iterator[CheckReported]:
    """The fuller one of the two places we write to."""
    disks = seen.facts.disk
    if not disks.workdir.writable:
        return  # that is told already, and the folder above it is not where anything will be written
    least = _Room(disks.workdir.free, "workdir", disks.workdir.path, "code and checkpoints")
    if disks.state is not None and disks.state.free <= least.free:
        least = _Room(disks.state.free, "state", seen.hello.state, "the tasks' logs")
    free = least.free
    found = f"{size(free)} free"
    if free >= LITTLE_DISK:
        yield seen.says(Check.DISK, Level.OK, found)
        return
    why = f"{least.path} needs room for {least.holds}"
    level = Level.FAIL if free < NO_DISK else Level.WARN
    hint = _set(least.setting, "another disk, or make room there (`orchestrate clean`)")
    yield seen.says(Check.DISK, level, found, why, hint)


def _clock(seen: Seen) -> CheckReported:
    ahead = seen.clock
    if abs(ahead) <= SKEW:
        return seen.says(Check.CLOCK, Level.OK, f"{ahead * 1000:+.0f} ms")
    found = f"{duration(abs(ahead))} {'ahead' if ahead > 0 else 'behind'}"
    why = "orchestrate corrects the times of log lines; certificates and tools such as make may fail"
    return seen.says(
        Check.CLOCK, Level.WARN, found, why, "`timedatectl set-ntp true` there as root, or `chronyc makestep`"
    )


def _ports(seen: Seen) -> Iterator[CheckReported]:
    if seen.listen.waits_for is not None:
        whose = "yours" if seen.listen.waits_for == seen.hello.user else seen.listen.waits_for
        why = "it uses the task ports now, so this one measured nothing"
        hint = "run `orchestrate preflight` again when it has ended"
        yield seen.says(Check.PORT, Level.FAIL, f"another preflight of {whose} is there", why, hint)
        return
    if busy := sorted(seen.listen.busy, key=lambda taken: taken.port):
        found = f"{', '.join(str(taken.port) for taken in busy)} taken"
        why = _of_one_run(busy) or "; ".join(f"{taken.port}: {taken.words}" for taken in busy)
        yield seen.says(Check.PORT, Level.FAIL, found, why, _free([taken.holder for taken in busy]))
        return
    low, high = seen.facts.ephemeral
    unsafe = [port for port in seen.ports if low <= port <= high]
    listed = ", ".join(map(str, seen.ports))
    if not unsafe:
        yield seen.says(Check.PORT, Level.OK, listed)
        return
    why = (
        f"the kernel hands out {low} to {high} to outgoing connections: one may hold it when the task starts"
    )
    reserve = f"`sysctl net.ipv4.ip_local_reserved_ports={','.join(map(str, unsafe))}`"
    hint = f"set `task_port` below {low} in hosts.toml, or run {reserve} there as root"
    yield seen.says(Check.PORT, Level.WARN, listed, why, hint)


def _of_one_run(busy: list[wire.Busy]) -> str:
    """Which run has them all; "" where that is not so, or not known. Its tasks differ from host to host."""
    runs = {
        f"run {one.holder.run} ({one.holder.owner}) holds {'it' if len(busy) == 1 else 'them'}"
        if isinstance(one.holder, wire.Lessee) and one.holder.run is not None
        else ""
        for one in busy
    }
    return runs.pop() if len(runs) == 1 else ""


def _free(holders: list[wire.Lessee | str | None]) -> str:
    """How the ports become free; a run's name is a node's word, and a command line takes only such a one."""
    runs = {one.run for one in holders if isinstance(one, wire.Lessee)}
    if len(runs) == 1 and len(holders) == len([one for one in holders if isinstance(one, wire.Lessee)]):
        run = runs.pop()
        if run is not None and is_run(run):
            return f"`orchestrate stop {run}`; or set another `task_port` in hosts.toml"
        return "`orchestrate launch --other-ports`; or set another `task_port` in hosts.toml"
    return "end what holds it, or change `task_port` in hosts.toml"


def _linger(seen: Seen) -> Iterator[CheckReported]:
    if seen.facts.kill_user_processes:
        user = seen.hello.user
        why = "systemd ends what a user leaves behind (KillUserProcesses): a cut connection ends the run"
        hint = f"`loginctl enable-linger {shlex.quote(user)}` there"
        yield seen.says(Check.LINGER, Level.WARN, "off", why, hint)


def _gpus(seen: Seen) -> Iterator[CheckReported]:
    gpus, devices = seen.facts.gpus, seen.host.devices
    if gpus:
        names = dict.fromkeys(gpu.name for gpu in gpus)
        yield seen.says(Check.GPU, Level.OK, f"{len(gpus)} x {', '.join(names)}")
    elif devices:
        why = f"`devices` names {', '.join(devices)}, and nvidia-smi shows none (or is not there)"
        hint = "run `nvidia-smi` on that host: it shows why; or leave `devices` out"
        yield seen.says(Check.GPU, Level.FAIL, "none seen", why, hint)
        return
    known = {str(gpu.index) for gpu in gpus}
    missing = [device for device in devices or () if device.isdigit() and device not in known]
    if missing:
        why = f"`devices` names {', '.join(missing)}; the machine has {', '.join(sorted(known))}"
        yield seen.says(
            Check.GPU,
            Level.FAIL,
            f"no GPU {', '.join(missing)}",
            why,
            _set("devices", "numbers of GPUs that it has"),
        )


def _or(hint: str, other: str) -> str:
    return f"{hint}; or {other}" if hint else other


def _set(key: str, to: str) -> str:
    return f"set `{key}` for it in hosts.toml to {to}"
