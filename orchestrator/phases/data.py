"""Having what [data] names on every host, before anything trains: looked for, sent, found by the tasks.

It leaves this machine once, and goes on along a line of the hosts. Each takes what it lacks from the one
before it, as it comes there; the first takes it from here. A host to which its neighbour gives nothing asks
the one before that one, at last this machine. What has come stays when it is interrupted.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from orchestrator import wire
from orchestrator.clock import SYSTEM, Clock
from orchestrator.errors import HostError, RunError, UsageError
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

_LOOK = 3600.0  # seconds that reading all of it may take
_TOLD = 1.0  # seconds between two words about how much was read, or has come
_GLANCE = 0.25  # seconds between two looks at what a host has
_STALL = 15.0  # seconds in which nothing comes of what could

_USABLE = (wire.StoreState.WHOLE, wire.StoreState.UNSURE)


def place(run: Run, joined: Sequence[str] | None = None) -> None:
    """Have the data on all hosts of a run, or on those that joined it; raise PhaseFailed.

    A later attempt reads the very data of the first one: what was changed here since is an error.
    """
    if run.plan.data is None or joined == []:
        return
    with phase(run, Phase.DATA):
        hosts = [host for host in run.hosts if host.name in run.fleet.sessions]
        digest = run.plan.data_digest
        if digest and run.placed.contents is None:  # another keeper has sent it
            seen = look(run.fleet, hosts, digest)
            if all(one.state in _USABLE for one in seen.good.values()) and not seen.bad:
                _found(run, run.plan.data, {name: one.path for name, one in seen.good.items()})
                return
        named = run.plan.data
        dataset = run.placed.contents or run.fleet.in_pool(lambda: read_sources(sources(named), run.emit))
        if digest not in ("", dataset.digest):
            raise PhaseFailed(
                Phase.DATA,
                "what [data] names is not what it was when the run began",
                "launch it again: tasks of one run must read the same",
            )
        run.placed.contents = dataset
        placed, bad = bring(run.fleet, hosts, dataset, run.emit, run=run.id)
        fail_on(run, Phase.DATA, bad)
        _found(run, run.plan.data, placed)
        if digest:
            return
        run.plan = replace(run.plan, data_digest=dataset.digest)
        try:
            run.folder.write_plan(run.plan)
        except RunError as error:  # a full disk here: a keeper that takes over looks for today's data
            log.warning("%s: %s", error.what, error.why)


def _found(run: Run, data: Data, placed: Mapping[str, str]) -> None:
    """From now on tasks are told where it is."""
    for name, path in placed.items():
        run.placed.env[name] = env_of_data(path, data)


_INFO = "dataset_info.json"  # a prepared set is <data_dir>/<name>/[<config>/]<version> with this file
_VERSION = re.compile(r"[0-9]+\.[0-9]+\.[0-9]+")


def sources(data: Data) -> list[DataPath]:
    """Return what [data] names, as files of this machine; raise UsageError for a set that is not prepared."""
    named = [("files", given) for given in data.paths] + [("keras/datasets", given) for given in data.keras]
    found = [DataPath(f"{below}/{given.rpartition('/')[2]}", at_home(given)) for below, given in named]
    root = at_home(data.tfds_dir or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets")
    for wanted in data.sets:
        if (folder := find_set(root, wanted)) is None:
            raise UsageError(
                f"[data] names the set {wanted}, which is not in {root}",
                why="a set is sent as tensorflow-datasets has prepared it, and here is none of that name",
                hint="copy it there, name its folder (`tfds_dir` under [data]), or leave it out: hosts then"
                " prepare their own",
            )
        found.append(DataPath(f"tfds/{folder.relative_to(root)}", folder))
    return found


def find_set(root: Path, wanted: str) -> Path | None:
    """Find the prepared set `name/config:version` below a data_dir, the newest where no version is named."""
    place, _, version = wanted.partition(":")
    for above in (place, f"{place}/*"):  # a set whose only form has a name is named without it
        infos = root.glob(f"{above}/{version or '*'}/{_INFO}")
        found = [info.parent for info in infos if _VERSION.fullmatch(info.parent.name)]
        if len({folder.parent for folder in found}) == 1:
            return max(found, key=lambda folder: tuple(map(int, folder.name.split("."))))
    return None


def read_sources(found: Sequence[DataPath], emit: Emit, clock: Clock = SYSTEM) -> Contents:
    """Read them with a word about it once a second; raise UsageError."""
    said = clock.now()

    def on_bytes(done: int, total: int) -> None:
        nonlocal said
        if clock.now() - said > _TOLD:
            said = clock.now()
            emit(Stepped("", "reads the data", done, total))

    return read_data(found, on_bytes)


def bring(
    fleet: Fleet,
    hosts: Sequence[Host],
    dataset: Contents,
    emit: Emit,
    *,
    run: str,
    limit: float | None = None,
    helpers: Sequence[Host] = (),
) -> tuple[dict[str, str], dict[str, HostError]]:
    """Make the hosts have it, once on a disk that hosts share; the folder on each, and what failed.

    `run` holds the leases of ports that are our own, `limit` is how many bytes leave this machine per second.
    `helpers` are others that have the data, and give it to these.
    """
    began = fleet.clock.now()
    looked = look(fleet, hosts, dataset.digest)
    bad = dict(looked.bad)
    whole = {name for name, one in looked.good.items() if one.state is wire.StoreState.WHOLE}
    asked = [host for host in hosts if host.name in looked.good]
    rest = [host for host in asked if host.name not in whole]
    disks = grouped((first, name) for name, first in shared_workdirs(fleet, asked if rest else ()).items())
    # Of those that see one disk, one gets it, unless one has it.
    leaders = {one: min(disk, key=lambda name: name not in whole) for disk in disks.values() for one in disk}
    lacking = [host for host in rest if leaders.get(host.name, host.name) == host.name]
    came: dict[str, Participant] = {}
    if lacking:
        givers = [*(host for host in asked if host.name in whole), *helpers]
        came, failed = Transfer(fleet, dataset, emit, run, limit).run(lacking, givers)
        bad.update(failed)
    others = [host for host in rest if host not in lacking]
    seen = look(fleet, others, dataset.digest)
    for host in others:
        if (error := bad.get(leaders[host.name])) is not None:
            what = f"shares its disk with {error.host}, which did not get the data"
            bad[host.name] = HostError(host.name, what, kind="data", why=error.what, hint=error.hint)
        elif host.name in seen.bad or seen.good[host.name].state is wire.StoreState.ABSENT:
            bad[host.name] = seen.bad.get(host.name) or unseen_error(host, f"data/{dataset.digest}")
    paths = {host.name: looked.good[host.name].path for host in asked if host.name not in bad}
    seconds = fleet.clock.now() - began
    for name, path in paths.items():
        part = came.get(name)
        figures = (part.sending.sent, part.from_peers, part.seconds) if part else (0, 0, seconds)
        emit(DataPlaced(name, dataset.digest, path, dataset.size, *figures, reused=part is None))
    return paths, bad


def look(
    fleet: Fleet, hosts: Sequence[Host], digest: str, seconds: float = _LOOK
) -> Answers[wire.StoreLooked]:
    """Ask hosts for data by its digest; changes nothing there but the time of its last use."""
    questions = {host.name: wire.StoreLook(path=f"{host.workdir}/data/{digest}") for host in hosts}
    return fleet.ask(questions, timeout=seconds)


def unseen_error(host: Host, folder: str) -> HostError:
    """Return the error of a host that shares a disk, and does not see what is on it."""
    return HostError(
        host.name,
        "does not see what was sent to the disk that it shares",
        kind="data",
        why=f"there is no {folder} in {host.workdir}",
        hint="try again: a shared folder that is slow to show new files does this",
    )


# --- along a line of hosts ---


class Participant(Struct):
    """One host of a transfer."""

    host: Host
    sending: Sending
    port: int = 0  # where it gives pieces to peers
    lacked: int = 0  # bytes, at the beginning
    seconds: float = -1.0  # until it had all; below 0: it has not
    told_at: float = 0.0

    @property
    def from_peers(self) -> int:
        return max(0, self.lacked - self.sending.sent)


class Transfer:
    """One data set on its way to the hosts that lack it; `run` is whose leases of ports are our own."""

    def __init__(self, fleet: Fleet, data: Contents, emit: Emit, run: str, limit: float | None) -> None:
        self._fleet = fleet
        self._data = data
        self._run = run
        self._emit = emit
        self._key = one_time_key()
        self._throttle = Throttle(limit)
        self._began = self._fleet.clock.now()
        self._line: list[Participant] = []
        self._bad: dict[str, HostError] = {}

    def run(
        self, lacking: Sequence[Host], whole: Sequence[Host]
    ) -> tuple[dict[str, Participant], dict[str, HostError]]:
        """Make `lacking` have it, with the help of those that are `whole`; what came, and what went wrong."""
        takers, givers = self._parts(lacking), self._parts(whole)
        try:
            rest = [part for part in self._each(takers, self._begin) if part.seconds < 0]
            if rest:
                helping = self._each(givers, lambda part: self._begin(part, serve=True))
                helping = [part for part in helping if not part.sending.lacks]
                self._line = [*helping, *sorted(rest, key=lambda part: len(part.sending.lacks))]
                for part in self._each(self._each(rest, self._fill), lambda part: part.sending.seal()):
                    part.seconds = self._fleet.clock.now() - self._began
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
        """Work side by side; return those without an error: the others take no further part."""
        answers = self._fleet.each({part.host.name: part for part in parts}, work, pool=max(1, len(parts)))
        for name, error in answers.bad.items():
            log.warning("data: %s %s: %s", name, error.what, error.why)
            self._bad.setdefault(name, error)
        return [part for part in parts if part.host.name not in answers.bad]

    def _begin(self, part: Participant, *, serve: bool = False) -> None:
        """Have a host look at what it has."""
        host = part.host
        self._emit(Stepped(host.name, "looks at what is there", 0, self._data.size))
        ports = [host.task_port + place for place in range(host.tasks)]
        begun = part.sending.begin(run=self._run, key=self._key, ports=ports, serve=serve)
        part.port = begun.port
        part.lacked = sum(map(self._data.manifest.length, part.sending.lacks))
        if begun.present:
            part.seconds = self._fleet.clock.now() - self._began

    def _fill(self, part: Participant) -> None:
        """Give a host what it lacks: from those before it in the line, at last from here."""
        try:
            for giver in reversed(self._line[: self._line.index(part)]):
                self._take(part, giver)
            self._send(part)
        except BaseException:
            part.port = 0  # nobody waits for what it would have given
            raise

    def _take(self, part: Participant, giver: Participant) -> None:
        """Have a host take what it lacks from another one, until it has it or nothing comes any more."""
        lacks = part.sending.lacks
        if not lacks or not giver.port:
            return
        host = giver.host
        part.sending.have(wire.StoreSource(host.name, host.address, giver.port, sorted(lacks)))
        since = self._fleet.clock.now()
        while giver.port and not self._look(part) and part.sending.lacks:
            if part.sending.lacks != lacks or lacks <= giver.sending.lacks:
                lacks, since = part.sending.lacks, self._fleet.clock.now()
            elif self._fleet.clock.now() - since > _STALL:
                log.warning("data: nothing comes from %s to %s any more", host.name, part.host.name)
                return
            self._fleet.clock.sleep(_GLANCE)

    def _send(self, part: Participant) -> None:
        """Send a host what it lacks."""

        def before(size: int) -> None:
            if self._fleet.clock.now() - part.told_at > _TOLD:
                self._look(part)
            self._throttle.wait(size)

        part.sending.put(part.sending.lacks, before)
        part.sending.lacks = set()  # what is still in a pipe there comes before the seal

    def _look(self, part: Participant) -> bool:
        """Learn what a host has by now; return True when it takes nothing from another one any more."""
        held = part.sending.have()
        part.sending.lacks &= part.sending.absent(held.bits)  # a host that forgets is not sent to for ever
        if held.trouble:
            log.warning("data: %s gets nothing from the host before it: %s", part.host.name, held.trouble)
        if self._fleet.clock.now() - part.told_at > _TOLD:
            part.told_at = self._fleet.clock.now()
            left = sum(map(self._data.manifest.length, part.sending.lacks))
            step = Stepped(part.host.name, "receives data", self._data.size - left, self._data.size)
            self._emit(step)
        return held.idle
