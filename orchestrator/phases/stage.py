"""Bringing the code to every host: one immutable tree per digest, one work folder per run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from orchestrator.errors import HostError
from orchestrator.events import Noted, Phase, TreeSynced
from orchestrator.fleet import Session
from orchestrator.phases.context import Run, fail_on, phase
from orchestrator.sync import Tree, TreeResult, push, read_package, read_tree


def stage(run: Run, shared: Mapping[str, str]) -> None:
    """Push the trees and make the work folders; raise PhaseFailed.

    `shared` maps a host to the first host that sees the same workdir: one push serves them all.
    """
    with phase(run, Phase.STAGE):
        _stage(run, shared)


def _stage(run: Run, shared: Mapping[str, str]) -> None:
    builtin = read_package(Path(__file__).resolve().parents[2] / "worker_entry")
    trees = [builtin]
    if not is_builtin(run.plan.command):
        trees.insert(0, _read(run))
    if not run.options.validate and len(trees) > 1:
        trees.pop()  # nothing will run it
    for note in (note for tree in trees for note in tree.notes):
        run.bus.emit(Noted(note))
    leaders = [host.name for host in run.hosts if shared.get(host.name, host.name) == host.name]
    others = [host.name for host in run.hosts if host.name not in leaders]
    missing = _make_work(run, trees, leaders)
    if missing:
        _push(run, trees, missing)
    unseen = _make_work(run, trees, [*missing, *others]) if missing or others else {}
    fail_on(run.bus, Phase.STAGE, {name: _unseen(run, name, trees) for name, trees in unseen.items()})
    for name, session in run.fleet.sessions.items():
        run.builtin[name] = f"{session.host.workdir}/trees/{builtin.digest}"


def _read(run: Run) -> Tree:
    """The user's code; from the pool, since reading all of a large tree takes long and may be cancelled."""
    answers = run.fleet.each(
        [run.options], lambda _: "", lambda options: read_tree(options.root, options.ignore)
    )
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
