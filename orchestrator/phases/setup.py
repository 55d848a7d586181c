"""Making the environment of [env] on hosts that lack it; uv is sent, and wheels where there is no index."""

from __future__ import annotations

import functools
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import wait
from pathlib import Path

import msgspec

from orchestrator import wire
from orchestrator.envs import Lock, Platform, fetch, name_of, uv
from orchestrator.errors import ClusterError, HostError, Trouble
from orchestrator.events import DataStepped, EnvironmentMade, EnvironmentStepped, Event, Phase
from orchestrator.fleet import Fleet, Session, host_name
from orchestrator.groups import grouped
from orchestrator.model import EnvironmentPlan, Host, Via, interpreter
from orchestrator.phases.context import Emit, PhaseFailed, Run, fail_on, phase
from orchestrator.phases.data import bring, data_cache, look
from orchestrator.phases.preflight import shared_workdirs
from orchestrator.phases.transfer import TransferOptions
from orchestrator.store.locks import read_lock
from orchestrator.sync import Contents, DataPath, read_data

_LIMIT = 2 * 3600.0  # seconds; a slow line takes its time
_GLANCE = 1.0  # seconds between two looks at how far a host has come
_HELP = 60.0  # seconds in which hosts tell that they have it already; without them it goes from here
_ANY = ">=3.11"  # the Python of a lock that names none


def setup(run: Run, hosts: Sequence[Host] | None = None) -> None:
    """Have the environment of [env], if there is one, on all hosts of a run or on some; raise PhaseFailed."""
    plan = run.plan.environment
    if plan is None or hosts == []:
        return
    with phase(run, Phase.SETUP):
        text = read_lock(plan.name)
        if text is None or name_of(text, plan.python) != plan.name:
            raise PhaseFailed(
                Phase.SETUP,
                "this machine does not have the lock of its environment",
                "`orchestrate launch`, here",
            )
        wanted = [host for host in (hosts or run.hosts) if host.name in run.fleet.sessions]
        bad = make_environments(run.fleet, wanted, plan, Lock(text, plan.name), run.bus.emit)
        fail_on(run.bus, Phase.SETUP, bad)


def make_environments(
    fleet: Fleet, hosts: Sequence[Host], plan: EnvironmentPlan, lock: Lock, emit: Emit
) -> dict[str, HostError]:
    """Make the environment where it is missing, once on a disk that hosts share; return what failed."""
    trainers = [host for host in hosts if runs_in(host, plan)]
    leaders = {
        name: group[0] for group in shared_workdirs(fleet, trainers, secrets.token_hex(8)) for name in group
    }
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
    bad = _errors(fleet, hosts, lambda host: makers[host.name].look())
    tools: dict[str, str] = {}
    for program, group in grouped((makers[host.name].program, host) for host in hosts).items():
        if program is not None:
            places, failed = bring_uv(fleet, group, program, emit)
            tools.update(places)
            bad.update(failed)
    equipped = [host for host in hosts if host.name in tools]
    bad.update(_errors(fleet, equipped, lambda host: makers[host.name].begin(tools[host.name])))
    rest = [host for host in hosts if host.name not in bad]
    for platform, group in grouped((makers[host.name].lacks, host) for host in rest).items():
        if platform is not None:
            places, failed = bring_wheels(fleet, group, _fetching(group, lock, platform, plan, emit), emit)
            bad.update(failed)
            for host in group:
                makers[host.name].wheels = places.get(host.name, "")
    supplied = [host for host in rest if makers[host.name].wheels]
    bad.update(_errors(fleet, supplied, lambda host: makers[host.name].finish()))
    return bad


def _fetching(
    hosts: Sequence[Host], lock: Lock, platform: Platform, plan: EnvironmentPlan, emit: Emit
) -> Callable[[], Path]:
    """Fetch the wheels of a platform here, and show it at the hosts that wait for them."""

    def on_bytes(size: int) -> None:
        for host in hosts:
            emit(EnvironmentStepped(host.name, "fetch here", size, 0))

    return functools.partial(fetch, lock, platform, plan.index, on_bytes)


def _errors(fleet: Fleet, hosts: list[Host], work: Callable[[Host], None]) -> dict[str, HostError]:
    return fleet.each(hosts, host_name, work).bad


class _Maker:
    """One host's environment, step by step."""

    def __init__(self, session: Session, plan: EnvironmentPlan, lock: Lock, emit: Emit) -> None:
        self.program: Path | None = None  # here: the uv that runs there
        self.lacks: Platform | None = None  # whose wheels it needs
        self.wheels = ""  # the folder of data there that has them
        self._platform = "", ""  # machine and libc
        self._request: wire.EnvMake | None = None
        self._session = session
        self._plan = plan
        self._lock = lock
        self._emit = emit
        self._began = time.monotonic()
        self._workdir = session.host.workdir

    def look(self) -> None:
        """Look whether it is there; else `program` is the uv that makes it. Raise HostError."""
        look = self._session.request(wire.EnvLook(workdir=self._workdir, name=self._plan.name))
        if look.ready:
            self._made({}, reused=True)
            return
        self._platform = look.machine, look.libc
        self.program = uv.binary_for(look.machine, self._session.host.name)

    def begin(self, tool: str) -> None:
        """Make it of packages that the host itself can fetch; else `lacks` tells whose wheels it needs.

        `tool` is the uv there. Raise HostError.
        """
        python = self._session.request(wire.EnvFind(uv=tool, python=self._plan.python or _ANY))
        self._request = wire.EnvMake(
            workdir=self._workdir,
            name=self._plan.name,
            uv=tool,
            interpreter=python.path,
            index=self._plan.index,
            wheels=None,
            ask_first=self._plan.via is Via.AUTO,
        )
        if self._plan.via is not Via.CONTROLLER:
            try:
                self._made(self._build(self._request).versions)
                return
            except HostError as error:
                if error.kind != Trouble.NO_INDEX or self._plan.via is Via.NODE:
                    raise
        self.lacks = Platform(*self._platform, python.version)

    def finish(self) -> None:
        """Make it of the wheels that were brought; raise HostError."""
        assert self._request is not None
        wheels = f"{self.wheels}/{FOLDER}"
        self._made(
            self._build(msgspec.structs.replace(self._request, wheels=wheels, ask_first=False)).versions
        )

    def _build(self, request: wire.EnvMake) -> wire.EnvMade:
        session = self._session
        total = len(self._lock.names)
        future = session.submit(request, self._lock.text.encode())
        deadline = time.monotonic() + _LIMIT
        while wait([future], _GLANCE).not_done and time.monotonic() < deadline:
            steps = session.request(wire.EnvProgress(workdir=self._workdir, name=self._plan.name))
            of = total if steps.step == "unpack" else 0
            self._emit(EnvironmentStepped(session.host.name, steps.step, steps.done, of))
        return session.wait(future, wire.EnvMake.OP, 1.0)

    def _made(self, versions: Mapping[str, str], *, reused: bool = False) -> None:
        host = self._session.host
        seconds = time.monotonic() - self._began
        path = str(Path(interpreter(host, self._plan)).parent.parent)
        self._emit(EnvironmentMade(host.name, path, dict(versions), seconds, reused))


FOLDER = "wheels"  # in the folder of data on a host
UV = "tools/uv"  # in another one, which stays


Placed = tuple[dict[str, str], dict[str, HostError]]  # the folder of data on each host, and what failed


def bring_wheels(fleet: Fleet, hosts: Sequence[Host], fetch: Callable[[], Path], emit: Emit) -> Placed:
    """Have the wheels that `fetch` gets on all of the hosts."""

    def sources() -> list[DataPath]:
        return [DataPath(f"{FOLDER}/{path.name}", path) for path in sorted(fetch().glob("*.whl"))]

    return _bring(fleet, hosts, sources, "send", emit)


def bring_uv(fleet: Fleet, hosts: Sequence[Host], binary: Path, emit: Emit) -> Placed:
    """Have the program on all of the hosts; its path on each, and what failed."""
    source = DataPath(UV, binary, executable=True)
    places, bad = _bring(fleet, hosts, lambda: [source], "send uv", emit)
    return {name: f"{folder}/{UV}" for name, folder in places.items()}, bad


def _bring(
    fleet: Fleet,
    hosts: Sequence[Host],
    sources: Callable[[], list[DataPath]],
    words: str,
    emit: Emit,
) -> Placed:
    def read() -> Contents:
        try:
            return read_data(sources(), data_cache() / "digests")
        except ClusterError as error:
            raise HostError("", error.what, kind="env", why=error.why, hint=error.hint) from error

    try:
        dataset = fleet.in_pool(read)  # with a download
    except HostError as error:
        bad = {
            host.name: HostError(host.name, error.what, kind=error.kind, why=error.why, hint=error.hint)
            for host in hosts
        }
        return {}, bad

    def step(event: Event) -> None:
        if isinstance(event, DataStepped) and event.host:
            emit(EnvironmentStepped(event.host, words, event.done, event.total))

    others = [session.host for session in fleet.sessions.values() if session.host not in hosts]
    looked = look(fleet, others, dataset.digest, thorough=False, seconds=_HELP).good
    helpers = [
        host for host in others if host.name in looked and looked[host.name].state is wire.StoreState.WHOLE
    ]
    return bring(fleet, hosts, dataset, step, TransferOptions(run="setup"), helpers=helpers)
