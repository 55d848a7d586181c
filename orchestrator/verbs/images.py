"""The images of hosts with `container`: pulled by each host's engine, or copied from another machine."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping

from msgspec.structs import replace

from orchestrator.connectors import Connectors
from orchestrator.errors import HostError, HostErrors
from orchestrator.events import Noted, Stepped
from orchestrator.fleet import Fleet, containers
from orchestrator.fleet.containers import Entered
from orchestrator.model import DEFAULT_PYTHON, LOCAL, Host
from orchestrator.node.serve.container import is_sif
from orchestrator.phases.context import Emit
from orchestrator.ranges import fold, grouped
from orchestrator.text import cut, plain
from orchestrator.transport import Channel, Link
from orchestrator.value import Value
from orchestrator.verbs import Caller
from orchestrator.verbs.asking import logins

_CONNECT = 15.0  # seconds
_READ = 262_144
_SECONDS = 60.0  # that an engine may take to end
_HERE = "this machine"
_PROCESSORS = {"amd64": "x86_64", "arm64": "aarch64"}  # as engines and as kernels call them


class _Place(Value):
    """A machine that may have the image of its host entry."""

    host: Host
    link: Link
    report: Entered

    @property
    def image(self) -> tuple[str, bool]:
        """Return the image's name, and True for a file."""
        return self.host.container, is_sif(self.report.engine)

    def gives(self, other: _Place) -> bool:
        """Return True if the other machine can run this one's image."""
        if not self.report.image or self.image != other.image:
            return False
        processor = self.report.image.partition(" ")[2].partition(" ")[0]
        return processor in ("", "any") or _PROCESSORS.get(processor, processor) == other.report.machine


def bring(hosts: tuple[Host, ...], emit: Emit, caller: Caller) -> HostErrors:
    """Pull or copy the image of each host with `container`; return the errors of hosts that lack theirs."""
    entries = {host.name: host for host in hosts if host.container}
    if not entries:
        return {}
    connector = Connectors(logins(tuple(entries.values()), caller))
    with contextlib.closing(Fleet(connector, lambda _: None)) as fleet:

        def inspect(host: Host) -> _Place:
            link = connector.connect(host, _CONNECT)
            return _Place(host, link, containers.step(link, host, "look")[1])

        emit(Stepped("", "look for images"))
        own = {"name": _HERE, "ssh": LOCAL, "agent_python": DEFAULT_PYTHON, "container_engine": None}
        here = fleet.each({host.container: replace(host, **own) for host in entries.values()}, inspect).good
        places = fleet.each(entries, inspect)
        emit(Stepped("", ""))
        bad = dict(places.bad)
        lacking = {name: place for name, place in places.good.items() if not place.report.image}
        # Images that came from no registry: pulling their names may fetch other images.
        built = [place for place in here.values() if re.search(r" \[\]$|localhost/", place.report.image)]
        # A copy from another host is used only if pulling fails: it could give any image that name.
        pulls = {name: lack for name, lack in lacking.items() if not any(copy.gives(lack) for copy in built)}
        pulled = fleet.each(pulls, lambda place: _pull(place, emit))
        for image, names in grouped((lacking[name].host.container, name) for name in pulled.good).items():
            emit(Noted(f"{fold(names)}: pulled {image}"))
        sources = [*here.values(), *places.good.values(), *pulled.good.values()]
        rest = [place for name, place in lacking.items() if name not in pulled.good]
        while rest:
            source = next((place for place in sources if place.gives(rest[0])), None)
            together = [place for place in rest if source and source.gives(place)] or rest[:1]
            rest = [place for place in rest if place not in together]
            name = together[0].host.name
            bad.update(_copy(source, together, emit) if source else {name: pulled.bad[name]})
    return bad


def _pull(place: _Place, emit: Emit) -> _Place:
    """Have the engine pull the image; return the place with it; raise HostError."""
    host = place.host
    emit(Stepped(host.name, f"pull {host.container}"))
    channel, _ = containers.step(place.link, host, "pull")
    try:
        while channel.recv(_READ):
            pass
        if channel.wait(_SECONDS) != 0:
            hint = (
                "use `docker login`, `podman login`, or `apptainer registry login` there if its registry"
                " requires it; or pull or build it on this machine or on a host: setup copies it from there"
            )
            raise _failure(host, f"has no image {host.container}, and cannot pull it", channel, hint)
    finally:
        channel.close()
        emit(Stepped(host.name, ""))
    return replace(place, report=containers.step(place.link, host, "look")[1])


def _failure(host: Host, what: str, channel: Channel, hint: str) -> HostError:
    """Return an error whose reason is the end of what an engine printed."""
    lines = channel.stderr_tail().decode(errors="replace").strip().splitlines()
    return HostError(host.name, what, kind="image", why=cut(plain(" / ".join(lines[-2:])), 400), hint=hint)


def _copy(source: _Place, places: list[_Place], emit: Emit) -> Mapping[str, HostError]:
    """Copy an image from one machine to others in parallel, through this one; return the errors."""
    image, bad, sinks = source.host.container, HostErrors(), dict[str, Channel]()
    origin, _ = containers.step(source.link, source.host, "save")
    try:
        for place in places:
            try:
                sinks[place.host.name], _ = containers.step(place.link, place.host, "load")
            except HostError as error:
                bad[place.host.name] = error
        size = 0
        while data := origin.recv(_READ):
            size += len(data)
            for name, sink in list(sinks.items()):
                emit(Stepped(name, f"receive {image}", size))
                try:
                    sink.send(data)
                except HostError as error:
                    bad[name] = error
                    del sinks[name]
        saved = origin.wait(_SECONDS) == 0
        what = f"did not accept the image {image} from {source.host.name}"
        for place in places:
            if place.host.name in sinks:
                sink = sinks[place.host.name]
                sink.send_eof()
                while sink.recv(_READ):
                    pass
                if sink.wait(_SECONDS) != 0 or not saved:
                    end = sink if saved else origin
                    bad[place.host.name] = _failure(place.host, what, end, "run `df -h` on both")
    finally:
        for place in places:
            emit(Stepped(place.host.name, ""))
        for channel in (origin, *sinks.values()):
            channel.close()
    if came := [place.host.name for place in places if place.host.name not in bad]:
        emit(Noted(f"{fold(came)}: copied {image} from {source.host.name}"))
    return bad
