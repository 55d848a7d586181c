"""Making the environment of [env] on hosts that lack it; uv is sent, and wheels where there is no index."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import wait
from pathlib import Path

import msgspec
from msgspec import Struct, field

from orchestrator import wire
from orchestrator.envs import Lock, Platform, fetch, name_of, uv
from orchestrator.errors import ClusterError, HostError, Trouble
from orchestrator.events import EnvironmentMade, Event, Phase, Stepped
from orchestrator.fleet import Fleet, Session
from orchestrator.model import EnvironmentPlan, Host, Via, interpreter
from orchestrator.phases.context import Emit, PhaseFailed, Run, fail_on, phase
from orchestrator.phases.data import bring, look
from orchestrator.phases.preflight import shared_workdirs
from orchestrator.ranges import grouped
from orchestrator.store.known import read_lock
from orchestrator.sync.contents import DataPath, read_data

_LIMIT = 2 * 3600.0  # seconds; a slow line takes its time
_GLANCE = 1.0  # seconds between two looks at how far a host has come
_HELP = 60.0  # seconds in which hosts tell that they have it already; without them it goes from here
_WHEELS = "wheels"  # in the folder of data on a host
_UV = "tools/uv"  # in another one, which stays
_ANY = ">=3.11"  # the Python of a lock that names none


def setup(run: Run, hosts: Sequence[Host] | None = None) -> None:
    """Have the environment of [env], if there is one, on all hosts of a run or on some; raise PhaseFailed."""
    plan = run.plan.environment
    if plan is None or hosts == []:
        return
    with phase(run, Phase.SETUP):
        if (lock := kept_lock(plan)) is None:
            what = "this machine does not have the lock of its environment"
            raise PhaseFailed(Phase.SETUP, what, "`orchestrate launch`, here")
        wanted = [host for host in (hosts or run.hosts) if host.name in run.fleet.sessions]
        bad = make_environments(run.fleet, wanted, plan, lock, run.emit)
        fail_on(run, Phase.SETUP, bad)


def kept_lock(plan: EnvironmentPlan) -> Lock | None:
    """Return the lock of an environment; None where this machine has none, or a damaged one."""
    text = read_lock(plan.name)
    return None if text is None or name_of(text, plan.python) != plan.name else Lock(text, plan.name)


def make_environments(
    fleet: Fleet, hosts: Sequence[Host], plan: EnvironmentPlan, lock: Lock, emit: Emit
) -> dict[str, HostError]:
    """Make the environment where it is missing, once on a disk that hosts share; return what failed."""
    trainers = [host for host in hosts if runs_in(host, plan)]
    leaders = shared_workdirs(fleet, trainers)
    first = [host for host in trainers if leaders.get(host.name, host.name) == host.name]
    bad = _make(fleet, first, plan, lock, emit)
    others = [host for host in trainers if host not in first and leaders[host.name] not in bad]
    return {**bad, **_make(fleet, others, plan, lock, emit)}


def runs_in(host: Host, plan: EnvironmentPlan) -> bool:
    """Return True if a host trains in the environment of [env] and not with a Python of its own."""
    return host.python == interpreter(host, plan)


def _make(
    fleet: Fleet, hosts: list[Host], plan: EnvironmentPlan, lock: Lock, emit: Emit
) -> dict[str, HostError]:
    """First from the hosts' own index; those that reach none get wheels together."""
    makers = {host.name: _Maker(fleet.sessions[host.name], plan, lock, emit) for host in hosts}
    bad = fleet.each(makers, _Maker.look).bad
    equipped: dict[str, tuple[_Maker, str]] = {}  # each with the uv there
    for program, group in grouped((makers[host.name].program, host) for host in hosts).items():
        if program is not None:
            source = functools.partial(list[DataPath], [DataPath(_UV, program, executable=True)])
            places, failed = _bring(fleet, group, source, emit)
            bad.update(failed)
            equipped.update({name: (makers[name], f"{folder}/{_UV}") for name, folder in places.items()})
    bad.update(fleet.each(equipped, lambda one: one[0].begin(one[1])).bad)
    rest = [host for host in hosts if host.name not in bad]
    supplied: dict[str, tuple[_Maker, str]] = {}
    for platform, group in grouped((makers[host.name].lacks, host) for host in rest).items():
        if platform is not None:
            get = functools.partial(
                _wheels, lock, platform, plan.index, lambda size: emit(Stepped("", "fetches packages", size))
            )
            places, failed = _bring(fleet, group, get, emit)
            bad.update(failed)
            supplied.update({name: (makers[name], f"{folder}/{_WHEELS}") for name, folder in places.items()})
    bad.update(fleet.each(supplied, lambda one: one[0].finish(one[1])).bad)
    return bad


def _wheels(
    lock: Lock, platform: Platform, index: str | None, on_bytes: Callable[[int], None]
) -> list[DataPath]:
    folder = fetch(lock, platform, index, on_bytes)
    return [DataPath(f"{_WHEELS}/{path.name}", path) for path in sorted(folder.glob("*.whl"))]


class _Maker(Struct):
    """One host's environment, step by step."""

    session: Session
    plan: EnvironmentPlan
    lock: Lock
    emit: Emit
    program: Path | None = None  # here: the uv that runs there
    lacks: Platform | None = None  # whose wheels it needs
    platform: tuple[str, str] = "", ""  # machine and libc
    request: wire.EnvMake | None = None
    began: float = field(default_factory=time.monotonic)

    def look(self) -> None:
        """Look whether it is there; else `program` is the uv that makes it. Raise HostError."""
        look = self.session.request(wire.EnvLook(workdir=self.session.host.workdir, name=self.plan.name))
        if look.ready:
            self._made({}, reused=True)
            return
        self.platform = look.machine, look.libc
        self.program = uv.binary_for(look.machine, self.session.host.name)

    def begin(self, tool: str) -> None:
        """Make it of packages that the host itself can fetch; else `lacks` tells whose wheels it needs.

        `tool` is the uv there. Raise HostError.
        """
        python = self.session.request(wire.EnvFind(uv=tool, python=self.plan.python or _ANY))
        self.request = wire.EnvMake(
            workdir=self.session.host.workdir,
            name=self.plan.name,
            uv=tool,
            interpreter=python.path,
            index=self.plan.index,
            wheels=None,
            ask_first=self.plan.via is Via.AUTO,
        )
        if self.plan.via is not Via.CONTROLLER:
            try:
                self._make(self.request)
                return
            except HostError as error:
                if error.kind != Trouble.NO_INDEX or self.plan.via is Via.NODE:
                    raise
        self.lacks = Platform(*self.platform, python.version)

    def finish(self, wheels: str) -> None:
        """Make it of the wheels that were brought; raise HostError."""
        assert self.request is not None
        self._make(msgspec.structs.replace(self.request, wheels=wheels, ask_first=False))

    def _make(self, request: wire.EnvMake) -> None:
        session, total = self.session, len(self.lock.names)
        future = session.submit(request, self.lock.text.encode())
        deadline = time.monotonic() + _LIMIT
        while wait([future], _GLANCE).not_done and time.monotonic() < deadline:
            steps = session.request(wire.EnvProgress(workdir=self.session.host.workdir, name=self.plan.name))
            if steps.step == "unpack":  # what it counts are packages
                self.emit(Stepped(session.host.name, f"unpack {steps.done} of {total} packages"))
            elif steps.step:
                self.emit(Stepped(session.host.name, steps.step, steps.done))
        self._made(session.wait(future, wire.EnvMake.OP, 1.0).versions)

    def _made(self, versions: Mapping[str, str], *, reused: bool = False) -> None:
        host = self.session.host
        seconds = time.monotonic() - self.began
        path = str(Path(interpreter(host, self.plan)).parent.parent)
        self.emit(EnvironmentMade(host.name, path, dict(versions), seconds, reused))


def _bring(
    fleet: Fleet, hosts: Sequence[Host], sources: Callable[[], list[DataPath]], emit: Emit
) -> tuple[dict[str, str], dict[str, HostError]]:
    """Have files of this machine on all of the hosts; the folder on each, and what failed."""
    try:
        dataset = fleet.in_pool(lambda: read_data(sources()))  # with a download
    except ClusterError as error:
        why = {"kind": "env", "why": error.why, "hint": error.hint}
        return {}, {host.name: HostError(host.name, error.what, **why) for host in hosts}

    def step(event: Event) -> None:  # what is data for a transfer is an environment for people
        if isinstance(event, Stepped) and event.who:
            emit(Stepped(event.who, "receives packages", event.done, event.total))

    others = [session.host for session in fleet.sessions.values() if session.host not in hosts]
    looked = look(fleet, others, dataset.digest, _HELP).good
    helpers = [
        one for one in others if one.name in looked and looked[one.name].state is wire.StoreState.WHOLE
    ]
    return bring(fleet, hosts, dataset, step, run="setup", helpers=helpers)
