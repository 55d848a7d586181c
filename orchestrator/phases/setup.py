"""Creation of the environment of [env] on hosts that lack it.

The controller sends uv; a Python where the host has none for which the packages have wheels; and the wheels
where the host reaches no package index.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from orchestrator import wire
from orchestrator.envs import (
    Compatibility,
    Lock,
    Platform,
    available,
    fetch,
    fitting,
    name_of,
    specifier,
    standalone,
    uv_for,
)
from orchestrator.errors import ClusterError, HostError, Trouble
from orchestrator.events import DataPlaced, EnvironmentMade, Event, Noted, Phase, Stepped
from orchestrator.fleet import Fleet, Session
from orchestrator.model import EnvironmentPlan, Host, Via, interpreter
from orchestrator.phases.context import Emit, PhaseFailed, Run, fail_on, phase
from orchestrator.phases.data import bring, look
from orchestrator.phases.preflight import shared_workdirs
from orchestrator.ranges import fold, grouped
from orchestrator.store.known import read_lock
from orchestrator.sync.contents import DataPath, read_data

_LIMIT = 2 * 3600.0  # seconds; a slow line takes its time
_GLANCE = 1.0  # seconds between two looks at how far a host has come
_HELP = 60.0  # seconds in which hosts tell that they have it already; without them it goes from here
_WHEELS = "wheels"  # in the folder of data on a host
_UV = "tools/uv"  # in another one, which stays
_PYTHON = "python"  # in a third one, which stays as long as an environment uses it
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
    """Create it with the Python and index of each host; hosts that lack one get it from here."""
    makers = {
        host.name: _Maker(fleet.sessions[host.name], plan, lock, emit, fleet.clock.now()) for host in hosts
    }
    bad: dict[str, HostError] = {}

    def each(step: Callable[[_Maker], None]) -> None:
        going = {name: one for name, one in makers.items() if name not in bad and not one.is_done}
        bad.update(fleet.each(going, step).bad)

    def supply(part: str, what: str, get: Callable[[Platform], list[DataPath]]) -> None:
        """Bring a part to the hosts that lack it: the same files for hosts of one platform."""
        going = ((one.lacks, one.session.host) for name, one in makers.items() if name not in bad)
        for platform, group in grouped(going).items():
            if platform is not None:
                places, failed = _bring(fleet, group, what, functools.partial(get, platform), emit)
                bad.update(failed)
                for name, folder in places.items():
                    makers[name].supplied(f"{folder}/{part}")

    def on_bytes(size: int) -> None:
        emit(Stepped("", "fetch packages", size))

    def wheels(platform: Platform) -> list[DataPath]:
        folder = fetch(lock, platform, plan.index, on_bytes)
        return [DataPath(f"{_WHEELS}/{path.name}", path) for path in sorted(folder.glob("*.whl"))]

    each(_Maker.look)
    supply(_UV, "uv", lambda one: [DataPath(_UV, uv_for(one, plan.index, on_bytes), executable=True)])
    fits = fleet.in_pool(
        lambda: {one: _fit(lock, one, plan) for one in {m.platform for m in makers.values()}}
    )
    each(lambda one: one.find(fits[one.platform]))
    going = [one for name, one in makers.items() if name not in bad]
    fleet.in_pool(lambda: _choose(going, emit))
    supply(_PYTHON, "Python", _python)
    each(_Maker.begin)
    supply(_WHEELS, "packages", wheels)
    each(_Maker.finish)
    return bad


def _fit(lock: Lock, platform: Platform, plan: EnvironmentPlan) -> Compatibility | None:
    """Return the Pythons for which the packages have wheels; None if no index answers here."""
    try:
        return fitting(lock, platform, plan.index)
    except ClusterError:
        return None


def _choose(makers: Sequence[_Maker], emit: Emit) -> None:
    """Choose the Python for hosts without one that fits: the one most of the others use, or the chosen."""
    common = Counter(Platform("", "", one.version).minor for one in makers if one.version)
    groups: dict[tuple[str, str], list[str]] = {}
    for one in makers:
        if one.candidates:
            choices = available(one.platform).intersection(one.candidates) or one.candidates
            chosen = max(choices, key=lambda choice: (common[f"3.{choice}"], choice))
            one.lacks = msgspec.structs.replace(one.platform, python=f"3.{chosen}")
            groups.setdefault((one.lacks.minor, one.why), []).append(one.session.host.name)
    for (minor, why), names in groups.items():
        emit(Noted(f"{fold(names)}: orchestrate installs Python {minor} in the working folder: {why}"))


def _python(platform: Platform) -> list[DataPath]:
    folder = standalone(platform)
    program = DataPath(f"{_PYTHON}/bin/python3", folder / "bin" / f"python{platform.minor}", executable=True)
    return [program, DataPath(f"{_PYTHON}/lib", folder / "lib")]


class _Maker(Struct):
    """One host's environment, step by step."""

    session: Session
    plan: EnvironmentPlan
    lock: Lock
    emit: Emit
    began: float
    is_done: bool = False
    lacks: Platform | None = None  # what is supplied next is for it
    platform: Platform = Platform("", "")
    candidates: tuple[int, ...] = ()  # minor versions of Python of which it needs one
    why: str = ""  # it has none
    uv: str = ""
    python: str = ""
    version: str = ""
    wheels: str | None = None

    def look(self) -> None:
        """Find out if it is there; if not, it lacks uv. Raise HostError."""
        look = self.session.request(wire.EnvLook(workdir=self.session.host.workdir, name=self.plan.name))
        self.platform = Platform(look.machine, look.libc)
        if look.ready:
            self._made({}, reused=True)
        else:
            self.lacks = self.platform

    def supplied(self, path: str) -> None:
        """Take note of a part that was brought: uv, then a Python, then wheels."""
        assert self.lacks is not None
        if not self.uv:
            self.uv = path
        elif not self.python:
            self.python, self.version = f"{path}/bin/python3", self.lacks.python
        else:
            self.wheels = path
        self.lacks = None

    def find(self, fit: Compatibility | None) -> None:
        """Find its own Python for which the packages have wheels; `candidates` if there is none.

        Raise HostError if no Python fits.
        """
        asked = self.plan.python or _ANY
        minors = fit.allowed(asked) if fit else ()
        if fit and not minors:
            raise self._unfit(asked, fit)
        wanted = specifier(asked, minors)
        try:
            found = self.session.request(wire.EnvFind(uv=self.uv, python=wanted))
        except HostError as error:
            if error.kind != Trouble.NO_PYTHON or "/" in asked or not minors:
                raise
            self.candidates, self.why = minors, f"no Python there fits {wanted}"
            return
        if fit and int(found.version.split(".")[1]) not in minors:
            raise self._unfit(found.version, fit)
        self.python, self.version = found.path, found.version

    def _unfit(self, asked: str, fit: Compatibility) -> HostError:
        others = ", ".join(f"3.{minor}" for minor in fit.minors)
        way = f'set `python = "3.{fit.minors[-1]}"` under [env], or ' if others else ""
        way += "name other packages" if others or not self.platform.is_musl else "use a machine with glibc"
        return HostError(
            self.session.host.name,
            f"cannot have the packages of [env] for Python {asked} on {self.platform.name}",
            kind="env",
            why=f"no wheel of {fit.missing(asked)}{f'; Python {others} has wheels of all' if others else ''}",
            hint=way,
        )

    def begin(self) -> None:
        """Create it from packages that the host can fetch; otherwise it lacks wheels. Raise HostError."""
        if self.plan.via is not Via.CONTROLLER:
            try:
                self._make(ask_first=self.plan.via is Via.AUTO)
                return
            except HostError as error:
                if error.kind != Trouble.NO_INDEX or self.plan.via is Via.NODE:
                    raise
        self.lacks = msgspec.structs.replace(self.platform, python=self.version)

    def finish(self) -> None:
        """Create it from the wheels that were brought; raise HostError."""
        self._make(ask_first=False)

    def _make(self, *, ask_first: bool) -> None:
        session, total = self.session, len(self.lock.names)
        request = wire.EnvMake(
            workdir=session.host.workdir,
            name=self.plan.name,
            uv=self.uv,
            interpreter=self.python,
            index=self.plan.index,
            wheels=self.wheels,
            ask_first=ask_first,
        )
        future = session.submit(request, self.lock.text.encode())
        deadline = session.clock.now() + _LIMIT
        while not session.clock.done(future, _GLANCE) and session.clock.now() < deadline:
            steps = session.request(wire.EnvProgress(workdir=session.host.workdir, name=self.plan.name))
            if steps.step == "install":
                self.emit(Stepped(session.host.name, steps.step, min(steps.done, total), total, "packages"))
            elif steps.step:
                self.emit(Stepped(session.host.name, steps.step, steps.done))
        try:
            self._made(session.wait(future, wire.EnvMake.OP, 1.0).versions)
        except HostError:
            self.emit(Stepped(session.host.name, ""))
            raise

    def _made(self, versions: Mapping[str, str], *, reused: bool = False) -> None:
        self.is_done = True
        host = self.session.host
        seconds = self.session.clock.now() - self.began
        path = str(Path(interpreter(host, self.plan)).parent.parent)
        self.emit(EnvironmentMade(host.name, path, dict(versions), seconds, reused))


def _bring(
    fleet: Fleet, hosts: Sequence[Host], what: str, sources: Callable[[], list[DataPath]], emit: Emit
) -> tuple[dict[str, str], dict[str, HostError]]:
    """Have files of this machine on all of the hosts; the folder on each, and what failed."""
    try:
        dataset = fleet.in_pool(lambda: read_data(sources()))  # with a download
    except ClusterError as error:
        why = {"kind": "env", "why": error.why, "hint": error.hint}
        return {}, {host.name: HostError(host.name, error.what, **why) for host in hosts}
    finally:
        emit(Stepped("", ""))

    def step(event: Event) -> None:  # what is data for a transfer is an environment for people
        if isinstance(event, Stepped) and event.who:
            emit(Stepped(event.who, f"receive {what}", event.done, event.total))
        elif isinstance(event, DataPlaced):
            emit(Stepped(event.host, ""))

    others = [session.host for session in fleet.sessions.values() if session.host not in hosts]
    looked = look(fleet, others, dataset.digest, _HELP).good
    helpers = [
        one for one in others if one.name in looked and looked[one.name].state is wire.StoreState.WHOLE
    ]
    return bring(fleet, hosts, dataset, step, run="setup", helpers=helpers)
