"""Bringing the code to every host: one immutable tree per digest, one work folder per run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from orchestrator.events import Phase, TreeSynced
from orchestrator.fleet import Session
from orchestrator.model import Host
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
    leaders = [host for host in run.hosts if shared.get(host.name, host.name) == host.name]
    _push(run, leaders, trees)
    _make_work(run, trees[0].digest, leaders)
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


def _push(run: Run, leaders: list[Host], trees: list[Tree]) -> None:
    digests = [tree.digest for tree in trees]
    present = run.fleet.ask(
        "tree_has",
        lambda session: {"workdir": session.host.workdir, "digests": digests},
        hosts=[host.name for host in leaders],
    )
    fail_on(run.bus, Phase.STAGE, present.bad)
    work: list[tuple[Session, Tree]] = []
    for name, reply in present.good.items():
        for tree in trees:
            if tree.digest in reply.result["present"]:
                run.bus.emit(TreeSynced(name, tree.digest, tree.files, 0, 0.0, reused=True))
            else:
                work.append((run.fleet.sessions[name], tree))

    def one(item: tuple[Session, Tree]) -> TreeResult:
        session, tree = item
        result = push(session, tree, session.host.workdir)
        run.bus.emit(
            TreeSynced(session.host.name, tree.digest, tree.files, result.sent, result.seconds, result.reused)
        )
        return result

    for tree in trees:  # two trees of one host go one after the other, hosts side by side
        items = [item for item in work if item[1] is tree]
        answers = run.fleet.each(items, lambda item: item[0].host.name, one)
        fail_on(run.bus, Phase.STAGE, answers.bad)


def _make_work(run: Run, digest: str, leaders: list[Host]) -> None:
    answers = run.fleet.ask(
        "work_make",
        lambda session: {"workdir": session.host.workdir, "run": run.id, "digests": [digest]},
        hosts=[host.name for host in leaders],
    )
    fail_on(run.bus, Phase.STAGE, answers.bad)
    others = [host.name for host in run.hosts if host.name not in answers.good]
    follow = run.fleet.ask(
        "work_make",
        lambda session: {"workdir": session.host.workdir, "run": run.id, "digests": [digest]},
        hosts=others,
    )
    fail_on(run.bus, Phase.STAGE, follow.bad)
    for name, reply in (answers.good | follow.good).items():
        run.work[name] = reply.result["work"]
