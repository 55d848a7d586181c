"""Bringing the code to every host: one immutable tree per digest, one work folder per run."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

from orchestrator.errors import HostError, RunError
from orchestrator.events import Noted, Phase, TreeSynced
from orchestrator.fleet import Session
from orchestrator.phases.context import PhaseFailed, Run, fail_on, log, phase
from orchestrator.sync import Tree, TreeResult, fetch, push, read_folder, read_package, read_tree

_PACKAGE = Path(__file__).resolve().parents[2] / "worker_entry"


def stage(run: Run, shared: Mapping[str, str]) -> None:
    """Push the trees and make the work folders; raise PhaseFailed.

    `shared` maps a host to the first host that sees the same workdir: one push serves them all.
    """
    run.shared = dict(shared)
    with phase(run, Phase.STAGE):
        run.trees = _trees(run)
        run.plan = dataclasses.replace(run.plan, tree=run.trees[0].digest)
        try:
            run.folder.write_plan(run.plan)
        except RunError as error:  # a full disk here; whoever takes over finds the digest in the events
            log.warning("%s: %s", error.what, error.why)
        for note in (note for tree in run.trees for note in tree.notes):
            run.bus.emit(Noted(note))
        _stage(run, run.trees, shared)
    run.made.clear()


def stage_again(run: Run) -> None:
    """Bring the same code as in the first attempt to hosts that have not got it; raise PhaseFailed.

    What lay here then may have been edited since; the hosts that go on have it as it was.
    """
    with phase(run, Phase.STAGE):
        if not run.trees or run.trees[0].digest != run.plan.tree or run.trees[0].changed():
            run.trees = _trees_of_a_host(run)
        _stage(run, run.trees, run.shared)


def _trees_of_a_host(run: Run) -> list[Tree]:
    """The run's code from a host where it is verified, and our own worker_entry for a validation."""
    builtin = read_package(_PACKAGE)
    if builtin.digest == run.plan.tree:
        return [builtin]
    for name in run.names:
        session, copy = run.fleet.sessions[name], run.folder.path / "code"
        try:
            fetch(session, f"{session.host.workdir}/trees/{run.plan.tree}", copy)
        except HostError as error:
            log.info("%s: no code from it: %s: %s", name, error.what, error.why)
            continue
        tree = read_folder(copy)
        if tree.digest == run.plan.tree:
            return [tree, builtin] if run.plan.admission.validate else [tree]
    raise PhaseFailed(
        Phase.STAGE,
        f"no host that goes on has the run's code (trees/{run.plan.tree})",
        "launch it again from the folder of the code",
    )


def _trees(run: Run) -> list[Tree]:
    """What every host needs, the user's code first."""
    builtin = read_package(_PACKAGE)
    if is_builtin(run.plan.command):
        return [builtin]
    return [_read(run), builtin] if run.plan.admission.validate else [_read(run)]


def _stage(run: Run, trees: list[Tree], shared: Mapping[str, str]) -> None:
    leaders = [host.name for host in run.hosts if shared.get(host.name, host.name) == host.name]
    others = [host.name for host in run.hosts if host.name not in leaders]
    missing = _make_work(run, trees, leaders)
    if missing:
        _push(run, trees, missing)
    unseen = _make_work(run, trees, [*missing, *others]) if missing or others else {}
    fail_on(run.bus, Phase.STAGE, {name: _unseen(run, name, trees) for name, trees in unseen.items()})
    for host in run.hosts:
        run.builtin[host.name] = f"{host.workdir}/trees/{trees[-1].digest}"


def _read(run: Run) -> Tree:
    """The user's code; from the pool, since reading all of a large tree takes long and may be cancelled."""
    answers = run.fleet.each([run.source], lambda _: "", lambda source: read_tree(source.root, source.ignore))
    tree: Tree = answers.good[""]
    return tree


def is_builtin(command: Sequence[str]) -> bool:
    """Whether worker_entry runs: no command, or only options."""
    return not command or command[0].startswith("-")


def _make_work(run: Run, trees: list[Tree], hosts: list[str]) -> dict[str, list[Tree]]:
    """Make the run's folder from the first tree where all trees are there; return what is missing where."""
    fields = {"run": run.id, "digests": [trees[0].digest], "also": [tree.digest for tree in trees[1:]]}
    answers = run.fleet.ask(
        "work_make", lambda session: {"workdir": session.host.workdir, **fields}, hosts=hosts
    )
    fail_on(run.bus, Phase.STAGE, answers.bad)
    missing: dict[str, list[Tree]] = {}
    for name, reply in answers.good.items():
        run.work[name] = reply.result["work"]
        if reply.result["made"]:
            run.made.add(name)
        absent = [tree for tree in trees if tree.digest in reply.result["missing"]]
        if absent:
            missing[name] = absent
        for tree in trees:
            if tree not in absent and tree.digest not in run.synced.setdefault(name, set()):
                run.synced[name].add(tree.digest)
                run.bus.emit(TreeSynced(name, tree.digest, tree.files, 0, 0.0, reused=True))
    return missing


def _unseen(run: Run, name: str, trees: list[Tree]) -> HostError:
    return HostError(
        name,
        "does not see the code that was synced",
        kind="tree",
        why=f"there is no trees/{trees[0].digest} in {run.plan.host(name).workdir}",
        hint="a shared folder that is slow to show new files does this: launch again",
    )


def _push(run: Run, trees: list[Tree], missing: Mapping[str, list[Tree]]) -> None:
    def one(item: tuple[Session, Tree]) -> TreeResult:
        session, tree = item
        result = push(session, tree, session.host.workdir)
        run.synced.setdefault(session.host.name, set()).add(tree.digest)
        run.bus.emit(
            TreeSynced(session.host.name, tree.digest, tree.files, result.sent, result.seconds, result.reused)
        )
        return result

    for tree in trees:  # two trees of one host go one after the other, hosts side by side
        items = [(run.fleet.sessions[name], tree) for name, absent in missing.items() if tree in absent]
        answers = run.fleet.each(items, lambda item: item[0].host.name, one)
        fail_on(run.bus, Phase.STAGE, answers.bad)
