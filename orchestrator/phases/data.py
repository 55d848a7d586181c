"""Having what [data] names on every host, before anything trains: looked for, sent, found by the tasks."""

from __future__ import annotations

import dataclasses
import secrets
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from orchestrator import wire
from orchestrator.errors import HostError, RunError
from orchestrator.events import CheckReported, DataPlaced, DataStepped, Level, Phase
from orchestrator.fleet import Answers, Fleet
from orchestrator.model import Data, Host
from orchestrator.phases import prepare
from orchestrator.phases.context import Emit, PhaseFailed, Run, fail_on, log, phase, phase_failed
from orchestrator.phases.preflight import shared_workdirs
from orchestrator.phases.transfer import Came, Transfer, TransferOptions
from orchestrator.plainfile import cache
from orchestrator.planning.environ import of_data as env_of_data
from orchestrator.sync import Contents, DataPath, read_data
from orchestrator.text import count, size

_LOOK = 3600.0  # seconds that reading all of it may take
_TOLD = 1.0  # seconds between two words about how much was read

_USABLE = (wire.StoreState.WHOLE, wire.StoreState.UNSURE)


def data_cache() -> Path:
    """Where digests and prepared sets are kept."""
    return cache("data")


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
            seen = look(run.fleet, hosts, digest, thorough=False)
            if all(one.state in _USABLE for one in seen.good.values()) and not seen.bad:
                _found(run, run.plan.data, {name: one.path for name, one in seen.good.items()})
                return
        dataset = run.placed.contents or _read(run, run.plan.data)
        if digest not in ("", dataset.digest):
            raise PhaseFailed(
                Phase.DATA,
                "what [data] names is not what it was when the run began",
                "launch it again: tasks of one run must read the same",
            )
        run.placed.contents = dataset
        placed, bad = bring(run.fleet, hosts, dataset, run.bus.emit, TransferOptions(run=run.id))
        fail_on(run.bus, Phase.DATA, bad)
        _found(run, run.plan.data, placed)
        if digest:
            return
        run.plan = dataclasses.replace(run.plan, data_digest=dataset.digest)
        try:
            run.folder.write_plan(run.plan)
        except RunError as error:  # a full disk here: a keeper that takes over looks for today's data
            log.warning("%s: %s", error.what, error.why)


def _found(run: Run, data: Data, placed: Mapping[str, str]) -> None:
    """From now on tasks are told where it is."""
    for name, path in placed.items():
        run.placed.env[name] = env_of_data(path, data)


def _read(run: Run, data: Data) -> Contents:
    """Read the contents of [data] on this machine."""

    def read() -> Contents:
        maker = prepare.Maker(run.fleet, run.plan.recipe.setup, run.bus.emit)
        return read_sources(prepare.sources(data, run.hosts, data_cache(), maker), run.bus.emit)

    try:
        return run.fleet.in_pool(read)
    except HostError as error:
        raise phase_failed(run.bus, Phase.DATA, {error.host: error}) from error


def read_sources(found: Sequence[DataPath], emit: Emit) -> Contents:
    """Read them with a word about it once a second; raise UsageError."""
    said = time.monotonic()

    def on_bytes(done: int, total: int) -> None:
        nonlocal said
        if time.monotonic() - said > _TOLD:
            said = time.monotonic()
            emit(DataStepped("", "reads the data", done, total))

    return read_data(found, data_cache() / "digests", on_bytes)


def bring(
    fleet: Fleet,
    hosts: Sequence[Host],
    dataset: Contents,
    emit: Emit,
    options: TransferOptions,
    *,
    helpers: Sequence[Host] = (),
) -> tuple[dict[str, str], dict[str, HostError]]:
    """Make the hosts have it, once on a disk that hosts share; the folder on each, and what failed.

    `helpers` are others that have it, and give it to these.
    """
    began = time.monotonic()
    looked = look(fleet, hosts, dataset.digest, thorough=options.thorough)
    bad = dict(looked.bad)
    is_whole = {name: one.state is wire.StoreState.WHOLE for name, one in looked.good.items()}
    whole = [host for host in hosts if is_whole.get(host.name)]
    rest = [host for host in hosts if host.name not in bad and host not in whole]
    asked = [host for host in hosts if host.name not in bad]
    groups = shared_workdirs(fleet, asked, secrets.token_hex(8)) if rest else []
    # Of those that see one disk, one gets it, unless one has it.
    leaders = {name: min(group, key=lambda one: not is_whole.get(one)) for group in groups for name in group}
    lacking = [host for host in rest if leaders.get(host.name, host.name) == host.name]
    came: dict[str, Came] = {}
    if lacking:
        came, failed = Transfer(fleet, dataset, options, emit).run(lacking, [*whole, *helpers])
        bad.update(failed)
    # Those that share its disk see what the first of them got, or get nothing either.
    for host in rest:
        if host not in lacking and (error := bad.get(leaders[host.name])) is not None:
            bad[host.name] = _shares(host, error)
    others = [host for host in rest if host not in lacking and host.name not in bad]
    seen = look(fleet, others, dataset.digest, thorough=False)
    bad.update(seen.bad)
    paths = {name: one.path for name, one in looked.good.items() if name not in bad}
    for host in others:
        if host.name in seen.good and seen.good[host.name].state is wire.StoreState.ABSENT:
            bad[host.name] = _unseen(host, dataset)
    seconds = time.monotonic() - began
    for host in hosts:
        if host.name in bad:
            continue
        one = came.get(host.name, Came("", 0, 0, seconds))
        emit(
            DataPlaced(
                host.name,
                dataset.digest,
                paths[host.name],
                dataset.size,
                one.sent,
                one.peers,
                one.seconds,
                reused=host.name not in came,
            )
        )
    return {host.name: paths[host.name] for host in hosts if host.name not in bad}, bad


def look(
    fleet: Fleet, hosts: Sequence[Host], digest: str, *, thorough: bool, seconds: float = _LOOK
) -> Answers[wire.StoreLooked]:
    """Ask hosts for data by its digest; changes nothing there but the time of its last use."""
    return fleet.ask(
        lambda session: wire.StoreLook(path=f"{session.host.workdir}/data/{digest}", thorough=thorough),
        timeout=seconds,
        hosts=[host.name for host in hosts],
    )


def checks(fleet: Fleet, hosts: Sequence[Host], data: Data) -> list[CheckReported]:
    """Return what preflight says of the data of each host; raise UsageError when it cannot be read here."""
    connected = [host for host in hosts if host.name in fleet.sessions]
    try:
        sources = prepare.sources(data, hosts, data_cache())
    except prepare.NotPreparedError as error:
        text = f"{error.what}; launch does it"
        return [CheckReported(host.name, "data", Level.WARN, text, hint=error.hint) for host in connected]
    dataset = read_sources(sources, lambda _: None)
    looked = look(fleet, connected, dataset.digest, thorough=False)
    return [_judged(name, reply, dataset) for name, reply in looked.good.items()]


def _judged(host: str, looked: wire.StoreLooked, dataset: Contents) -> CheckReported:
    """Judge a host that has the data, or has not, and may lack the room."""
    hint, text = "`orchestrate push`", f"lacks {size(dataset.size)} in {count(dataset.files, 'file')}"
    if looked.state in _USABLE:
        return CheckReported(host, "data", Level.OK, size(dataset.size))
    if looked.state is wire.StoreState.DAMAGED:
        text = f"damaged: {', '.join(looked.wrong)}; launch repairs it"
        return CheckReported(host, "data", Level.WARN, text, hint=hint)
    if looked.free < dataset.size:
        hint = "make room there (`orchestrate clean`), or set `workdir` to another disk"
        text += f", and {size(looked.free)} are free"
        return CheckReported(host, "data", Level.FAIL, text, why=looked.path, hint=hint)
    return CheckReported(host, "data", Level.WARN, f"{text}; launch sends it", hint=hint)


def _shares(host: Host, error: HostError) -> HostError:
    what, why = f"shares its disk with {error.host}, which did not get the data", error.what
    return HostError(host.name, what, kind="data", why=why, hint=error.hint)


def _unseen(host: Host, dataset: Contents) -> HostError:
    return HostError(
        host.name,
        "does not see the data that was sent",
        kind="data",
        why=f"there is no data/{dataset.digest} in {host.workdir}",
        hint="try again: a shared folder that is slow to show new files does this",
    )
