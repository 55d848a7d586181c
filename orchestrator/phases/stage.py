"""Bringing the code to every host: one immutable tree per digest, one work folder per run."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Collection, Mapping
from concurrent.futures import Future
from types import MappingProxyType

from orchestrator import wire
from orchestrator.errors import HostError, RunError
from orchestrator.events import Noted, Phase, TreeSynced
from orchestrator.fleet import Session
from orchestrator.node.disk.removing import remove as discard
from orchestrator.phases import have
from orchestrator.phases.context import PhaseFailed, Run, fail_on, log, phase
from orchestrator.planning.plan import is_builtin
from orchestrator.sync import ChangedError, Contents, Meter, fetch, push, read_folder, read_tree
from orchestrator.sync.builtin import read_builtin

_SHOWN = 3
_LIMIT = 600.0  # seconds, for what a host needs and for the copy of a large tree


def stage(run: Run, shared: Mapping[str, str]) -> None:
    """Push the trees and make the work folders; raise PhaseFailed.

    `shared` maps a host to the first host that sees the same workdir: one push serves them all.
    """
    run.staged.shared = dict(shared)
    with phase(run, Phase.STAGE):
        is_shared = any(first != host for host, first in shared.items())
        for note in run.plan.if_shared if is_shared else ():
            run.bus.emit(Noted(note))
        needs = have.needs(run.plan)
        for last in (False, True):
            run.staged.trees = _trees(run)
            _record(run, noted=not last)
            try:
                _stage(run, run.staged.trees, shared, needs)
                break
            except ChangedError as error:
                if last:
                    raise
                needs = {}  # they have them
                run.bus.emit(Noted(f"{', '.join(error.paths[:_SHOWN])} changed while it was sent: once more"))
    run.staged.made.clear()


def _record(run: Run, *, noted: bool) -> None:
    """Write down which code it is, and what is to be known about it."""
    run.plan = dataclasses.replace(run.plan, tree=run.staged.trees[0].digest)
    try:
        run.folder.write_plan(run.plan)
    except RunError as error:  # a full disk here; whoever takes over finds the digest in the events
        log.warning("%s: %s", error.what, error.why)
    for note in (note for tree in run.staged.trees for note in tree.notes if noted):
        run.bus.emit(Noted(note))


def stage_again(run: Run, joined: Collection[str]) -> None:
    """Bring the same code as in the first attempt to hosts that have not got it; raise PhaseFailed.

    What lay here then may have been edited since; the hosts that continue have it as it was. Those that
    have joined are asked for what the job needs.
    """
    with phase(run, Phase.STAGE):
        trees = run.staged.trees
        if not trees or trees[0].digest != run.plan.tree or trees[0].changed():
            run.staged.trees = _trees_of_a_host(run)
        needs = {name: one for name, one in have.needs(run.plan).items() if name in joined}
        _stage(run, run.staged.trees, run.staged.shared, needs)


def _trees_of_a_host(run: Run) -> list[Contents]:
    """The run's code from a host where it is verified, and our own worker_entry for a validation."""
    builtin = read_builtin()
    if builtin.digest == run.plan.tree:
        return [builtin]
    for name in run.names:
        session, copy = run.fleet.sessions[name], run.folder.path / "code"
        try:
            fetch(session, f"{session.host.workdir}/trees/{run.plan.tree}", copy, any_link=True)
        except HostError as error:
            log.info("%s: no code from it: %s: %s", name, error.what, error.why)
            continue
        tree = read_folder(copy)
        if tree.digest == run.plan.tree:
            return [tree, builtin] if run.plan.admission.validate else [tree]
        log.warning("%s: what it has as trees/%s is something else", name, run.plan.tree)
        discard(str(copy))
    raise PhaseFailed(
        Phase.STAGE,
        f"none of the remaining hosts has the run's code (trees/{run.plan.tree})",
        "launch it again from the folder of the code",
    )


def _trees(run: Run) -> list[Contents]:
    """List the trees that every host needs, the user's code first."""
    builtin = read_builtin()
    if is_builtin(run.plan.command):
        return [builtin]
    code = _read(run)
    return [code, builtin] if run.plan.admission.validate else [code]


def _stage(
    run: Run, trees: list[Contents], shared: Mapping[str, str], needs: Mapping[str, wire.JobNeeds]
) -> None:
    leaders = [host.name for host in run.hosts if shared.get(host.name, host.name) == host.name]
    others = [host.name for host in run.hosts if host.name not in leaders]
    missing = _make_work(run, trees, leaders, needs)
    if missing:
        _push(run, trees, missing)
    unseen = _make_work(run, trees, [*missing, *others]) if missing or others else {}
    fail_on(run.bus, Phase.STAGE, {name: _unseen(run, name, trees) for name, trees in unseen.items()})
    for host in run.hosts:
        run.staged.builtin[host.name] = f"{host.workdir}/trees/{trees[-1].digest}"


def begin(run: Run) -> None:
    """Read the user's code while the hosts are connected to and examined."""
    if is_builtin(run.plan.command):
        return
    source, reading = run.source, Future[Contents]()

    def read() -> None:
        try:
            reading.set_result(read_tree(source.root, source.ignore, source.own, listing=source.listing))
        except BaseException as error:  # for whoever asks for it
            reading.set_exception(error)

    # A daemon: a file system that hangs must not keep the process alive.
    threading.Thread(target=read, name="code", daemon=True).start()
    run.staged.reading = reading


def _read(run: Run) -> Contents:
    """The user's code."""
    reading, run.staged.reading, source = run.staged.reading, None, run.source

    def read() -> Contents:
        if reading is not None:
            return reading.result()
        return read_tree(source.root, source.ignore, source.own)

    return run.fleet.in_pool(read)


def _make_work(
    run: Run,
    trees: list[Contents],
    hosts: list[str],
    needs: Mapping[str, wire.JobNeeds] = MappingProxyType({}),
) -> dict[str, list[Contents]]:
    """Make the run's folder from the first tree where all trees are there; return what is missing where.

    Along with it every host is asked for what it needs; raise PhaseFailed where one lacks it.
    """
    answers = run.fleet.ask(
        lambda session: wire.WorkMake(
            workdir=session.host.workdir,
            run=run.id,
            digest=trees[0].digest,
            also=[tree.digest for tree in trees[1:]],
            data=[run.plan.data_digest] if run.plan.data_digest else [],
            needs=needs.get(session.host.name),
            makes=session.host.name in hosts,
        ),
        hosts=dict.fromkeys([*hosts, *needs]),
        timeout=_LIMIT,
    )
    fail_on(run.bus, Phase.STAGE, answers.bad)
    have.check(run, {name: reply.had for name, reply in answers.good.items() if reply.had is not None})
    missing: dict[str, list[Contents]] = {}
    for name in hosts:
        reply = answers.good[name]
        run.staged.work[name] = "/".join(filter(None, (reply.work, run.plan.cwd)))
        if reply.made:
            run.staged.made.add(name)
        absent = [tree for tree in trees if tree.digest in reply.missing]
        if absent:
            missing[name] = absent
        for tree in trees:
            if tree not in absent and tree.digest not in run.staged.synced.setdefault(name, set()):
                run.staged.synced[name].add(tree.digest)
                if tree is trees[0]:
                    run.bus.emit(TreeSynced(name, tree.digest, tree.files, 0, 0.0, reused=True))
    return missing


def _unseen(run: Run, name: str, trees: list[Contents]) -> HostError:
    return HostError(
        name,
        "does not see the code that was synced",
        kind="tree",
        why=f"there is no trees/{trees[0].digest} in {run.plan.host(name).workdir}",
        hint="launch again: a shared folder that is slow to show new files does this",
    )


def _push(run: Run, trees: list[Contents], missing: Mapping[str, list[Contents]]) -> None:
    """Send what is missing."""
    meter = Meter(run.bus.emit)
    first, *others = trees

    def one(item: tuple[Session, Contents]) -> None:
        session, tree = item
        name = session.host.name
        result = push(session, tree, f"{session.host.workdir}/trees/{tree.digest}", progress=meter)
        run.staged.synced.setdefault(name, set()).add(tree.digest)
        if tree is first:
            synced = TreeSynced(name, tree.digest, tree.files, result.bytes, result.seconds, result.reused)
            run.bus.emit(synced)

    for tree in (*others, first):  # two trees of one host go one after the other, hosts side by side
        items = [(run.fleet.sessions[name], tree) for name, absent in missing.items() if tree in absent]
        answers = run.fleet.each(items, lambda item: item[0].host.name, one)
        fail_on(run.bus, Phase.STAGE, answers.bad)
