"""Placing the data in [data] on every host before training.

Data leaves this machine once and is passed along a chain of hosts. Each host fetches what it lacks from its
predecessor while that is still receiving; the first one gets it from here. A host whose predecessor
delivers nothing asks the one before, and finally this machine. An interrupted transfer can be resumed.
"""

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from orchestrator import wire
from orchestrator.clock import SYSTEM
from orchestrator.errors import HostError, HostErrors, UsageError
from orchestrator.events import DataPlaced, Phase, Stepped
from orchestrator.fleet import Answers, Fleet
from orchestrator.model import Data, Host
from orchestrator.phases.context import Emit, PhaseFailed, Run, fail_on, log, phase
from orchestrator.phases.preflight import shared_workdirs
from orchestrator.plainfile import at_home
from orchestrator.planning.environ import of_data as env_of_data
from orchestrator.ranges import grouped
from orchestrator.sync.contents import Contents, DataPath, read_data
from orchestrator.sync.conversation import Throttle, one_time_key
from orchestrator.sync.sending import Sending

_LOOK = 3600.0  # seconds for a host to look for the data, which may mean reading all of it
_SHOWN_EVERY = 1.0  # seconds between two progress events
_GLANCE, _MOST_GLANCE = 0.25, 2.0  # seconds between two queries of a host's progress: least, most
_PER_PIECE = 20e-6  # seconds of the same, for each piece that a reply lists
_STALL = 15.0  # seconds without any progress


def place(run: Run, joined: Sequence[str] | None = None) -> None:
    """Place the data on all hosts of a run, or on those that joined it; raise PhaseFailed.

    A later attempt reads exactly the data of the first one: changes on this machine since then are an error.
    """
    if run.plan.data is None or joined == []:
        return
    with phase(run, Phase.DATA):
        hosts = [host for host in run.hosts if host.name in run.fleet.sessions]
        digest, named = run.plan.data_digest, run.plan.data
        if digest and run.placed.contents is None:  # another keeper has sent it
            looked = look(run.fleet, hosts, digest)
            copies = looked.good.values()
            if not looked.bad and all(copy.state is not wire.StoreState.ABSENT for copy in copies):
                run.placed.env |= {name: env_of_data(copy.path, named) for name, copy in looked.good.items()}
                return
        dataset = run.placed.contents or run.fleet.in_pool(lambda: read_sources(sources(named), run.emit))
        if digest not in ("", dataset.digest):
            raise PhaseFailed(
                Phase.DATA,
                "the files of [data] have changed since the run began",
                "launch it again: all tasks of a run must read the same data",
            )
        run.placed.contents = dataset
        placed, bad = bring(run.fleet, hosts, dataset, run.emit, run=run.id)
        fail_on(run, Phase.DATA, bad)
        run.placed.env |= {name: env_of_data(path, named) for name, path in placed.items()}
        if not digest:  # if the disk is full, a keeper that takes over will use its current data
            run.replan(replace(run.plan, data_digest=dataset.digest), required=False)


_INFO = "dataset_info.json"  # a prepared set is <data_dir>/<name>/[<config>/]<version> with this file
_VERSION = re.compile(r"[0-9]+\.[0-9]+\.[0-9]+")


def sources(data: Data) -> list[DataPath]:
    """Return the files on this machine that [data] names; raise UsageError for a set that is not prepared."""
    named = [("files", given) for given in data.paths] + [("keras/datasets", given) for given in data.keras]
    paths = [DataPath(f"{below}/{given.rpartition('/')[2]}", at_home(given)) for below, given in named]
    root = at_home(data.tfds_dir or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets")
    for name in data.sets:
        if (folder := find_set(root, name)) is None:
            raise UsageError(
                f"[data] names the set {name}, which is not in {root}",
                why="only prepared sets can be sent, and tensorflow-datasets has prepared none of that name",
                hint="copy it there, set `tfds_dir` under [data] to its folder, or remove it: each host then"
                " prepares its own",
            )
        paths.append(DataPath(f"tfds/{folder.relative_to(root)}", folder))
    return paths


def find_set(root: Path, name: str) -> Path | None:
    """Return the prepared set `name/config:version` in a data_dir, the newest if no version is given."""
    place, _, version = name.partition(":")
    for above in (place, f"{place}/*"):  # a set whose only configuration has a name is referred to without it
        infos = root.glob(f"{above}/{version or '*'}/{_INFO}")
        versions = [info.parent for info in infos if _VERSION.fullmatch(info.parent.name)]
        if len({folder.parent for folder in versions}) == 1:
            return max(versions, key=lambda folder: tuple(map(int, folder.name.split("."))))
    return None


def read_sources(paths: Sequence[DataPath], emit: Emit) -> Contents:
    """Read the data, with a progress report every second; raise UsageError."""
    reported = SYSTEM.now()

    def on_bytes(done: int, total: int) -> None:
        nonlocal reported
        if SYSTEM.now() - reported > _SHOWN_EVERY:
            reported = SYSTEM.now()
            emit(Stepped("", "reads the data", done, total))

    return read_data(paths, on_bytes)


def bring(
    fleet: Fleet,
    hosts: Sequence[Host],
    dataset: Contents,
    emit: Emit,
    *,
    run: str,
    limit: float | None = None,
    helpers: Sequence[Host] = (),
) -> tuple[dict[str, str], HostErrors]:
    """Bring the data to the hosts, once per shared disk; return the folder on each, and the errors.

    `run` is the one whose port leases are ours; `limit` bounds the bytes per second that leave this machine.
    `helpers` are other hosts that have the data and pass it on.
    """
    began = fleet.clock.now()
    looked = look(fleet, hosts, dataset.digest)
    bad = dict(looked.bad)
    whole = {name for name, copy in looked.good.items() if copy.state is wire.StoreState.WHOLE}
    answering = [host for host in hosts if host.name in looked.good]
    rest = [host for host in answering if host.name not in whole]
    disks = grouped(
        (first, name) for name, first in shared_workdirs(fleet, answering if rest else ()).items()
    )
    # Of the hosts that share a disk one receives it, unless one already has it.
    leaders = {name: min(disk, key=lambda n: n not in whole) for disk in disks.values() for name in disk}
    lacking = [host for host in rest if leaders.get(host.name, host.name) == host.name]
    came: dict[str, Participant] = {}
    if lacking:
        givers = [*(host for host in answering if host.name in whole), *helpers]
        came, failed = Transfer(fleet, dataset, emit, run, limit).run(lacking, givers)
        bad.update(failed)
    others = [host for host in rest if host not in lacking]
    again = look(fleet, others, dataset.digest)
    for host in others:
        if (error := bad.get(leaders[host.name])) is not None:
            what = f"shares the disk of {error.host}, which did not get the data"
            bad[host.name] = HostError(host.name, what, kind="data", why=error.what, hint=error.hint)
        elif host.name in again.bad or again.good[host.name].state is wire.StoreState.ABSENT:
            bad[host.name] = again.bad.get(host.name) or unseen_error(host, f"data/{dataset.digest}")
    paths = {host.name: looked.good[host.name].path for host in answering if host.name not in bad}
    seconds = fleet.clock.now() - began
    for name, path in paths.items():
        part = came.get(name)
        sent = part.sending.sent if part else 0
        figures = (sent, max(0, part.lacked - sent), part.seconds) if part else (0, 0, seconds)
        emit(DataPlaced(name, dataset.digest, path, dataset.size, *figures, reused=part is None))
    return paths, bad


def look(
    fleet: Fleet, hosts: Sequence[Host], digest: str, seconds: float = _LOOK
) -> Answers[wire.StoreLooked]:
    """Query hosts for data by its digest; this only updates its last use there."""
    questions = {host.name: wire.StoreLook(path=f"{host.workdir}/data/{digest}") for host in hosts}
    return fleet.ask(questions, timeout=seconds)


def unseen_error(host: Host, folder: str) -> HostError:
    """Return the error of a host that shares a disk but does not see its content."""
    return HostError(
        host.name,
        "does not see what was sent to the shared disk",
        kind="data",
        why=f"there is no {folder} in {host.workdir}",
        hint="try again: a shared folder may be slow to show new files",
    )


# --- along a chain of hosts ---


class Participant(Struct):
    """One host of a transfer."""

    host: Host
    sending: Sending
    port: int = 0  # where it serves pieces to peers
    lacked: int = 0  # bytes missing at the start
    seconds: float = -1.0  # until its data was complete; below 0: it is not complete
    shown_at: float = 0.0


class Transfer:
    """One data set on its way to the hosts that lack it; `run` is the one whose port leases are ours."""

    def __init__(self, fleet: Fleet, data: Contents, emit: Emit, run: str, limit: float | None) -> None:
        self._fleet = fleet
        self._clock = fleet.clock
        self._data = data
        self._run = run
        self._emit = emit
        self._key = one_time_key()
        self._glance = max(_GLANCE, min(_MOST_GLANCE, _PER_PIECE * len(data.manifest.pieces)))
        self._throttle = Throttle(limit)
        self._began = self._clock.now()
        self._chain: list[Participant] = []
        self._bad: HostErrors = {}

    def run(
        self, lacking: Sequence[Host], whole: Sequence[Host]
    ) -> tuple[dict[str, Participant], HostErrors]:
        """Bring the data to `lacking` hosts with help from `whole` ones; return what arrived, and errors."""
        takers, givers = self._parts(lacking), self._parts(whole)
        try:
            rest = [part for part in self._each(takers, self._begin) if part.seconds < 0]
            if rest:
                helping = self._each(givers, lambda part: self._begin(part, serve=True))
                helping = [part for part in helping if not part.sending.lacks]
                self._chain = [*helping, *sorted(rest, key=lambda part: len(part.sending.lacks))]
                for part in self._each(self._each(rest, self._fill), lambda part: part.sending.seal()):
                    part.seconds = self._clock.now() - self._began
        finally:
            for part in (*takers, *givers):
                if part.seconds < 0:
                    part.sending.drop()
        came = {part.host.name: part for part in takers if part.seconds >= 0}
        return came, {host.name: self._bad[host.name] for host in lacking if host.name not in came}

    def _parts(self, hosts: Sequence[Host]) -> list[Participant]:
        def make(host: Host) -> Participant:
            path = f"{host.workdir}/data/{self._data.digest}"
            return Participant(host, Sending(self._fleet.session(host.name), self._data, path))

        answers = self._fleet.each({host.name: host for host in hosts}, make)
        self._bad.update(answers.bad)
        return list(answers.good.values())

    def _each(self, parts: Sequence[Participant], work: Callable[[Participant], None]) -> list[Participant]:
        """Call `work` for each in parallel; return those without an error: the others no longer take part."""
        answers = self._fleet.each({part.host.name: part for part in parts}, work, pool=max(1, len(parts)))
        for name, error in answers.bad.items():
            log.warning("data: %s %s: %s", name, error.what, error.why)
            self._bad.setdefault(name, error)
        return [part for part in parts if part.host.name not in answers.bad]

    def _begin(self, part: Participant, *, serve: bool = False) -> None:
        """Have a host check what it already has."""
        host = part.host
        self._emit(Stepped(host.name, "checks existing data", 0, self._data.size))
        ports = [host.task_port + place for place in range(host.tasks)]
        begun = part.sending.begin(run=self._run, key=self._key, ports=ports, serve=serve)
        part.port = begun.port
        part.lacked = sum(map(self._data.manifest.length, part.sending.lacks))
        if begun.present:
            part.seconds = self._clock.now() - self._began

    def _fill(self, part: Participant) -> None:
        """Supply a host: from its predecessors in the chain, and finally from this machine."""
        try:
            for giver in reversed(self._chain[: self._chain.index(part)]):
                self._take(part, giver)
            self._send(part)
        except BaseException:
            part.port = 0  # no other host waits for it
            raise

    def _take(self, part: Participant, giver: Participant) -> None:
        """Have a host fetch from another one until it is complete or makes no progress."""
        lacks = part.sending.lacks
        if not lacks or not giver.port:
            return
        host = giver.host
        part.sending.have(wire.StoreSource(host.name, host.address, giver.port, sorted(lacks)))
        since = self._clock.now()
        while giver.port and not self._look(part) and part.sending.lacks:
            if part.sending.lacks != lacks or lacks <= giver.sending.lacks:
                lacks, since = part.sending.lacks, self._clock.now()
            elif self._clock.now() - since > _STALL:
                log.warning("data: nothing comes from %s to %s any more", host.name, part.host.name)
                return
            self._clock.sleep(self._glance)

    def _send(self, part: Participant) -> None:
        def before(size: int) -> None:
            if self._clock.now() - part.shown_at > _SHOWN_EVERY:
                self._look(part)
            self._throttle.wait(size)

        part.sending.put(part.sending.lacks, before)
        part.sending.lacks = set()  # data still in a pipe there arrives before the seal

    def _look(self, part: Participant) -> bool:
        """Query a host's progress; return True when it no longer fetches from another host."""
        held = part.sending.have()
        # Do not resend forever to a host that loses data.
        part.sending.lacks &= part.sending.absent(held.bits)
        if held.trouble:
            log.warning("data: %s gets nothing from the host before it: %s", part.host.name, held.trouble)
        if self._clock.now() - part.shown_at > _SHOWN_EVERY:
            part.shown_at = self._clock.now()
            remaining = sum(map(self._data.manifest.length, part.sending.lacks))
            step = Stepped(part.host.name, "receives data", self._data.size - remaining, self._data.size)
            self._emit(step)
        return held.idle
