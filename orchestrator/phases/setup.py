"""Creating the environment of [env] on hosts that lack it.

The controller sends uv, a Python if the packages have no wheels for the host's own ones, and wheels if the
host cannot reach a package index.
"""

from __future__ import annotations

import contextlib
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
    allowed_by,
    available,
    fetch,
    fitting,
    name_of,
    specifier,
    standalone,
    uv_for,
)
from orchestrator.errors import ClusterError, HostError, HostErrors, Trouble
from orchestrator.events import DataPlaced, EnvironmentMade, Event, Noted, Phase, Stepped
from orchestrator.fleet import Fleet, Session
from orchestrator.model import EnvironmentPlan, Host, Via, environment_name, interpreter
from orchestrator.phases.context import Emit, PhaseFailed, Run, fail_on, phase
from orchestrator.phases.data import bring, look
from orchestrator.phases.preflight import shared_workdirs
from orchestrator.ranges import fold, grouped
from orchestrator.store.known import read_lock
from orchestrator.sync.contents import DataPath, read_data

_LIMIT = 2 * 3600.0  # seconds; allows for a slow connection
_GLANCE = 1.0  # seconds between two queries of a host's progress
_HELP = 60.0  # seconds for hosts to report that they already have it; afterwards it is sent from here
_WHEELS = "wheels"  # in the data folder on a host
_UV = "tools/uv"  # in another one, which is kept
_PYTHON = "python"  # in a third one, kept while an environment uses it
_ANY = ">=3.11"  # the Python of a lock that names none


def setup(run: Run, hosts: Sequence[Host] | None) -> None:
    """Create the environment of [env], if there is one, on all hosts of a run or some; raise PhaseFailed."""
    plan = run.plan.environment
    if plan is None or hosts == []:
        return
    with phase(run, Phase.SETUP):
        if (lock := kept_lock(plan)) is None:
            what = "this machine does not have the lock file of the run's environment"
            raise PhaseFailed(Phase.SETUP, what, "launch the program again from this machine")
        connected = [host for host in (hosts or run.hosts) if host.name in run.fleet.sessions]
        bad = make_environments(run.fleet, connected, plan, lock, run.emit)
        fail_on(run, Phase.SETUP, bad)


def kept_lock(plan: EnvironmentPlan) -> Lock | None:
    """Return the lock of an environment; None if this machine has none, or a damaged one."""
    text = read_lock(plan.name)
    return None if text is None or name_of(text, plan.python) != plan.name else Lock(text, plan.name)


def make_environments(
    fleet: Fleet, hosts: Sequence[Host], plan: EnvironmentPlan, lock: Lock, emit: Emit
) -> HostErrors:
    """Create the environment where it is missing, once per shared disk; return the errors."""
    trainers = [host for host in hosts if runs_in(host, plan)]
    leaders = shared_workdirs(fleet, trainers)
    first = [host for host in trainers if leaders.get(host.name, host.name) == host.name]
    bad = _make(fleet, first, plan, lock, emit)
    others = [host for host in trainers if host not in first and leaders[host.name] not in bad]
    return {**bad, **_make(fleet, others, plan, lock, emit)}


def runs_in(host: Host, plan: EnvironmentPlan) -> bool:
    """Return True if a host trains in the environment of [env] and not with a Python of its own."""
    return host.python == interpreter(host, plan)


def _make(fleet: Fleet, hosts: list[Host], plan: EnvironmentPlan, lock: Lock, emit: Emit) -> HostErrors:
    """Create it with the Python and index of each host; hosts that lack one receive it from here."""
    makers = {
        host.name: _Maker(fleet.sessions[host.name], plan, lock, emit, fleet.clock.now()) for host in hosts
    }
    bad: HostErrors = {}

    def each(step: Callable[[_Maker], None]) -> None:
        going = {name: maker for name, maker in makers.items() if name not in bad and not maker.is_done}
        bad.update(fleet.each(going, step).bad)

    def supply(part: str, what: str, get: Callable[[Platform], list[DataPath]]) -> None:
        """Send a part to the hosts that lack it: the same files for all hosts of one platform."""
        going = ((maker.lacks, maker.session.host) for name, maker in makers.items() if name not in bad)
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

    def python(platform: Platform) -> list[DataPath]:
        folder = standalone(platform)
        program = DataPath(
            f"{_PYTHON}/bin/python3", folder / "bin" / f"python{platform.minor}", executable=True
        )
        return [program, DataPath(f"{_PYTHON}/lib", folder / "lib")]

    each(_Maker.look)
    supply(_UV, "uv", lambda arch: [DataPath(_UV, uv_for(arch, plan.index, on_bytes), executable=True)])
    fits: dict[Platform, Compatibility] = {}  # without an index that is reachable from here, none
    for platform in {maker.platform for maker in makers.values()}:
        with contextlib.suppress(ClusterError):
            fits[platform] = fleet.in_pool(functools.partial(fitting, lock, platform, plan))
    each(lambda maker: maker.find(fits.get(maker.platform)))
    going = [maker for name, maker in makers.items() if name not in bad]
    fleet.in_pool(lambda: _choose(going, emit))
    supply(_PYTHON, "Python", python)
    each(_Maker.begin)
    supply(_WHEELS, "packages", wheels)
    each(_Maker.finish)
    return bad


def _choose(makers: Sequence[_Maker], emit: Emit) -> None:
    """Choose a Python for hosts without a suitable one: the version that most others use, or the newest."""
    common = Counter(Platform("", "", maker.version).minor for maker in makers if maker.version)
    groups: dict[tuple[str, str], list[str]] = {}
    for maker in makers:
        if maker.candidates:
            choices = available(maker.platform).intersection(maker.candidates) or maker.candidates
            chosen = max(choices, key=lambda choice: (common[f"3.{choice}"], choice))
            maker.lacks = msgspec.structs.replace(maker.platform, python=f"3.{chosen}")
            groups.setdefault((maker.lacks.minor, maker.why), []).append(maker.session.host.name)
    for (minor, why), names in groups.items():
        emit(Noted(f"{fold(names)}: orchestrate installs Python {minor} in the working folder: {why}"))


class _Maker(Struct):
    """One host's environment, step by step."""

    session: Session
    plan: EnvironmentPlan
    lock: Lock
    emit: Emit
    began: float
    is_done: bool = False
    lacks: Platform | None = None  # what the next part must fit; None: it lacks none
    platform: Platform = Platform("", "")
    candidates: tuple[int, ...] = ()  # minor versions of Python, one of which must be sent
    why: str = ""  # a Python must be sent
    uv: str = ""
    python: str = ""
    version: str = ""
    wheels: str | None = None

    @property
    def name(self) -> str:
        return environment_name(self.session.host, self.plan)

    def look(self) -> None:
        """Check whether it exists; if not, it lacks uv. Raise HostError."""
        look = self.session.request(wire.EnvLook(workdir=self.session.host.workdir, name=self.name))
        self.platform = Platform(look.machine, look.libc)
        if look.ready:
            self._made({}, reused=True)
        else:
            self.lacks = self.platform

    def supplied(self, path: str) -> None:
        """Record the path of a part that was sent: first uv, then a Python, then wheels."""
        assert self.lacks is not None
        if not self.uv:
            self.uv = path
        elif not self.python:
            self.python, self.version = f"{path}/bin/python3", self.lacks.python
        else:
            self.wheels = path
        self.lacks = None

    def find(self, fit: Compatibility | None) -> None:
        """Find a Python of the host for which the packages have wheels; `candidates` if there is none.

        Raise HostError if no Python fits.
        """
        version = self.plan.python or _ANY
        minors = fit.allowed(version) if fit else ()
        if fit and not minors:
            raise self._unfit(version, fit)
        version_range = specifier(version, minors)
        try:
            reply = self.session.request(wire.EnvFind(uv=self.uv, python=version_range))
        except HostError as error:
            if error.kind != Trouble.NO_PYTHON or allowed_by(version) is None or not minors:
                raise
            self.candidates, self.why = minors, f"no Python there matches {version_range}"
            return
        if fit and int(reply.version.split(".")[1]) not in minors:
            raise self._unfit(reply.version, fit)
        self.python, self.version = reply.path, reply.version

    def _unfit(self, minor: str, fit: Compatibility) -> HostError:
        others = ", ".join(f"3.{minor}" for minor in fit.minors)
        way = f'set `python = "3.{fit.minors[-1]}"` under [env], or ' if others else ""
        way += "choose other packages" if others or not self.platform.is_musl else "use a machine with glibc"
        return HostError(
            self.session.host.name,
            f"cannot install the packages of [env] for Python {minor} on {self.platform.name}",
            kind="env",
            why=f"no wheel of {fit.missing(minor)}{f'; Python {others} has wheels of all' if others else ''}",
            hint=way,
        )

    def begin(self) -> None:
        """Create it from packages that the host fetches, or record that it lacks wheels. Raise HostError."""
        if self.plan.via is not Via.CONTROLLER:
            try:
                self._make(ask_first=self.plan.via is Via.AUTO)
                return
            except HostError as error:
                if error.kind != Trouble.NO_INDEX or self.plan.via is Via.NODE:
                    raise
        self.lacks = msgspec.structs.replace(self.platform, python=self.version)

    def finish(self) -> None:
        """Create it from the wheels that were sent; raise HostError."""
        self._make(ask_first=False)

    def _make(self, *, ask_first: bool) -> None:
        session, total = self.session, len(self.lock.names)
        request = wire.EnvMake(
            workdir=session.host.workdir,
            name=self.name,
            uv=self.uv,
            interpreter=self.python,
            index=self.plan.index,
            wheels=self.wheels,
            ask_first=ask_first,
        )
        future = session.submit(request, self.lock.text.encode())
        deadline = session.clock.now() + _LIMIT
        while not session.clock.done(future, _GLANCE) and session.clock.now() < deadline:
            steps = session.request(wire.EnvProgress(workdir=session.host.workdir, name=self.name))
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
) -> tuple[dict[str, str], HostErrors]:
    """Copy files of this machine to all of the hosts; return the folder on each, and the errors."""
    try:
        dataset = fleet.in_pool(lambda: read_data(sources()))  # with a download
    except ClusterError as error:
        why = {"kind": "env", "why": error.why, "hint": error.hint}
        return {}, {host.name: HostError(host.name, error.what, **why) for host in hosts}
    finally:
        emit(Stepped("", ""))

    def step(event: Event) -> None:  # the transfer calls it data, users call it an environment
        if isinstance(event, Stepped) and event.who:
            emit(Stepped(event.who, f"receive {what}", event.done, event.total))
        elif isinstance(event, DataPlaced):
            emit(Stepped(event.host, ""))

    others = [session.host for session in fleet.sessions.values() if session.host not in hosts]
    looked = look(fleet, others, dataset.digest, _HELP).good
    helpers = [
        host for host in others if host.name in looked and looked[host.name].state is wire.StoreState.WHOLE
    ]
    return bring(fleet, hosts, dataset, step, run="setup", helpers=helpers)
