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
from orchestrator.errors import HostError, Trouble
from orchestrator.events import EnvironmentMade, EnvironmentStepped, Phase
from orchestrator.fleet import Fleet, Session, host_name
from orchestrator.groups import grouped
from orchestrator.model import EnvironmentPlan, Host, Via, interpreter
from orchestrator.phases.context import Emit, PhaseFailed, Run, fail_on, phase
from orchestrator.phases.preflight import shared_workdirs
from orchestrator.phases.wheels import FOLDER, Brought, bring_uv, bring_wheels
from orchestrator.store.locks import read_lock

_LIMIT = 2 * 3600.0  # seconds; a slow line takes its time
_GLANCE = 1.0  # seconds between two looks at how far a host has come
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
        fail_on(
            run.bus,
            Phase.SETUP,
            make_environments(run.fleet, wanted, plan, Lock(text, plan.name), run.bus.emit),
        )


def make_environments(
    fleet: Fleet, hosts: Sequence[Host], plan: EnvironmentPlan, lock: Lock, emit: Emit
) -> dict[str, HostError]:
    """Make the environment where it is missing, once on a disk that hosts share; return what failed."""
    wanted = [host for host in hosts if runs_in(host, plan)]
    leaders = {
        name: group[0] for group in shared_workdirs(fleet, wanted, secrets.token_hex(8)) for name in group
    }
    first = [host for host in wanted if leaders.get(host.name, host.name) == host.name]
    bad = _make(fleet, first, plan, lock, emit)
    others = [host for host in wanted if host not in first and leaders[host.name] not in bad]
    return {**bad, **_make(fleet, others, plan, lock, emit)}


def runs_in(host: Host, plan: EnvironmentPlan) -> bool:
    """Whether a host trains in the environment of [env] and not with a Python of its own."""
    return host.python == interpreter(host, plan)


def _make(
    fleet: Fleet, hosts: list[Host], plan: EnvironmentPlan, lock: Lock, emit: Emit
) -> dict[str, HostError]:
    """First from the hosts' own index; those that reach none get wheels together."""
    makers = {host.name: _Maker(fleet.sessions[host.name], plan, lock, emit) for host in hosts}
    bad = _errors(fleet, hosts, lambda host: makers[host.name].look())
    tools: dict[str, str] = {}
    for program, group in grouped((makers[host.name].program, host) for host in hosts).items():
        if program is None:
            continue
        places, failed = bring_uv(fleet, group, program, emit)
        tools.update(places)
        bad.update(failed)
    bad.update(
        _errors(
            fleet,
            [host for host in hosts if host.name in tools],
            lambda host: makers[host.name].begin(tools[host.name]),
        )
    )
    left = [host for host in hosts if host.name not in bad]
    for platform, group in grouped((makers[host.name].lacks, host) for host in left).items():
        if platform is None:
            continue
        for host in group:
            emit(EnvironmentStepped(host.name, f"waits for wheels ({platform.name})", 0, 0))
        brought = bring_wheels(fleet, group, functools.partial(fetch, lock, platform, plan.index), emit)
        bad.update(brought.bad)
        rest = [host for host in group if host.name in brought.places]
        bad.update(_errors(fleet, rest, functools.partial(_finish, makers, brought)))
    return bad


def _finish(makers: Mapping[str, _Maker], brought: Brought, host: Host) -> None:
    makers[host.name].finish(brought.places[host.name], keep=host.name in brought.keepers())


def _errors(fleet: Fleet, hosts: list[Host], work: Callable[[Host], None]) -> dict[str, HostError]:
    return fleet.each(hosts, host_name, work).bad


class _Maker:
    """One host's environment, step by step."""

    def __init__(self, session: Session, plan: EnvironmentPlan, lock: Lock, emit: Emit) -> None:
        self.program: Path | None = None  # here: the uv that runs there
        self.lacks: Platform | None = None  # whose wheels it needs
        self._platform = "", ""  # machine and libc
        self._request: wire.EnvMake | None = None
        self._session = session
        self._plan = plan
        self._lock = lock
        self._emit = emit
        self._began = time.monotonic()
        self._said = "", 0.0  # the last step, and when it was emitted
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

    def finish(self, data: str, *, keep: bool) -> None:
        """Make it of wheels in a data folder there, which goes afterwards unless it is to stay.

        Raise HostError.
        """
        assert self._request is not None
        made = self._build(
            msgspec.structs.replace(self._request, wheels=f"{data}/{FOLDER}", ask_first=False, keep=keep)
        )
        if not made.kept:
            self._session.request(wire.FilesRemove(target=data), timeout=_LIMIT)
        self._made(made.versions)

    def _build(self, request: wire.EnvMake) -> wire.EnvMade:
        session = self._session
        total = len(self._lock.names)
        future = session.submit(request, self._lock.text.encode())
        deadline = time.monotonic() + _LIMIT
        while wait([future], _GLANCE).not_done and time.monotonic() < deadline:
            steps = session.request(wire.EnvProgress(workdir=self._workdir, name=self._plan.name))
            self._step(steps.line or "installs", steps.packages, total)
        return session.wait(future, wire.EnvMake.OP, 1.0)

    def _step(self, step: str, done: int = 0, total: int = 0) -> None:
        """Say what is done, not more often than a person can read."""
        now = time.monotonic()
        if step == self._said[0] and now - self._said[1] < _GLANCE:
            return
        self._said = step, now
        self._emit(EnvironmentStepped(self._session.host.name, step, done, total))

    def _made(self, versions: Mapping[str, str], *, reused: bool = False) -> None:
        host = self._session.host
        seconds = time.monotonic() - self._began
        path = str(Path(interpreter(host, self._plan)).parent.parent)
        self._emit(EnvironmentMade(host.name, path, dict(versions), seconds, reused))
