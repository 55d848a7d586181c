"""Sending the code to every host: one immutable tree per digest, one work folder per run."""

import hashlib
import shlex
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import Future
from functools import partial
from pathlib import Path, PurePosixPath
from types import MappingProxyType

from msgspec.structs import replace

from orchestrator import wire
from orchestrator.errors import HostError, HostErrors
from orchestrator.events import Noted, Phase, TreeSynced
from orchestrator.fleet import Session
from orchestrator.model import RunPlan
from orchestrator.node.disk.removing import remove as discard
from orchestrator.phases.context import PhaseFailed, Run, fail_on, log, phase
from orchestrator.phases.data import unseen_error
from orchestrator.phases.resume import resume
from orchestrator.plainfile import write_atomically
from orchestrator.planning.commands import command_of, is_builtin
from orchestrator.program.invocation import script_of
from orchestrator.ranges import fold
from orchestrator.store.folder import CodeRecord
from orchestrator.sync.contents import Contents, read_builtin, read_folder
from orchestrator.sync.files import fetch
from orchestrator.sync.listing import git_state
from orchestrator.sync.sending import push
from orchestrator.text import json_of

_PAGE = "docs/lint.md"
_FILES = 20_000  # in code with more, no digests of files are recorded
_LIMIT = 600.0  # seconds, for a host's requirements and for copying a large tree


def stage(run: Run, shared: Mapping[str, str]) -> None:
    """Push the trees and create the work folders; raise PhaseFailed.

    `shared` maps a host to the first host with the same workdir: one push serves them all.
    """
    run.staged.shared = dict(shared)
    with phase(run, Phase.STAGE):
        is_shared = any(first != host for host, first in shared.items())
        for note in run.plan.if_shared if is_shared else ():
            run.emit(Noted(note))
        trees = [read_builtin()]
        if not is_builtin(run.plan.command):  # the user's code comes first
            assert run.staged.reading is not None
            code, _ = run.fleet.in_pool(run.staged.reading.result)
            trees = [code, *trees] if run.plan.admission.validate else [code]
        run.staged.trees, digest = trees, trees[0].digest
        if run.plan.tree not in ("", digest):  # of a replay
            raise PhaseFailed(Phase.STAGE, "the code has changed since the launch", "launch again")
        # On a full disk a takeover finds the digest in the events.
        run.replan(replace(run.plan, tree=digest), required=False)
        _record(run)
        if run.plan.resumed is not None:
            resume(run, run.plan.resumed, run.staged.shared)
        for note in (note for tree in run.staged.trees for note in tree.notes):
            run.emit(Noted(note))
        _stage(run, run.staged.trees, shared, _needs(run.plan))
    run.staged.made.clear()


def _record(run: Run) -> None:
    """Record the code's state; a launch does not fail because of it."""
    tree, reading = run.staged.trees[0], run.staged.reading
    rows = tree.manifest.files if tree.files <= _FILES else []
    files = {file.path: hashlib.sha256(file.digests.encode()).hexdigest()[:16] for file in rows}
    try:
        record = CodeRecord(files, *(reading.result()[1] if reading else ()))
        write_atomically(run.folder.code, json_of(record))
    except OSError as error:
        log.warning("the state of the code is not kept: %s", error)


def stage_again(run: Run, joined: Collection[str]) -> None:
    """Send the first attempt's code to hosts that lack it; raise PhaseFailed.

    The local copy may have been edited since; the hosts that continue have the original. Hosts that have
    joined are checked for the job's requirements.
    """
    with phase(run, Phase.STAGE):
        trees = run.staged.trees
        if not trees or trees[0].digest != run.plan.tree or trees[0].changed():
            run.staged.trees = _trees_of_a_host(run)
        needs = {name: need for name, need in _needs(run.plan).items() if name in joined}
        _stage(run, run.staged.trees, run.staged.shared, needs)


def _trees_of_a_host(run: Run) -> list[Contents]:
    """Return the run's code from a host that has verified it, and our own worker_entry for a validation."""
    builtin = read_builtin()
    if builtin.digest == run.plan.tree:
        return [builtin]
    sessions = [run.fleet.sessions[name] for name in run.names if run.plan.tree]
    if (tree := code_of_a_host(sessions, run.plan.tree, run.folder.path / "code")) is None:
        raise PhaseFailed(
            Phase.STAGE,
            f"none of the remaining hosts has the run's code (trees/{run.plan.tree})",
            "launch it again from the folder of the code",
        )
    return [tree, builtin] if run.plan.admission.validate else [tree]


def code_of_a_host(sessions: Iterable[Session], digest: str, copy: Path) -> Contents | None:
    """Fetch the code of a digest into `copy` from a host that has verified it; None if there is none."""
    for session in sessions:
        name = session.host.name
        try:
            fetch(session, f"{session.host.workdir}/trees/{digest}", copy, any_link=True)
        except HostError as error:
            log.info("%s: no code from it: %s: %s", name, error.what, error.why)
            continue
        tree = read_folder(copy)
        if tree.digest == digest:
            return tree
        log.warning("%s: its trees/%s has other contents", name, digest)
        discard(str(copy))
    return None


def _stage(
    run: Run, trees: list[Contents], shared: Mapping[str, str], needs: Mapping[str, wire.JobNeeds]
) -> None:
    leaders = [host.name for host in run.hosts if shared.get(host.name, host.name) == host.name]
    others = [host.name for host in run.hosts if host.name not in leaders]
    missing = _make_work(run, trees, leaders, needs)
    if missing:
        _push(run, trees, missing)
    unseen = _make_work(run, trees, [*missing, *others]) if missing or others else {}
    bad = {name: unseen_error(run.plan.host(name), f"trees/{t[0].digest}") for name, t in unseen.items()}
    fail_on(run, Phase.STAGE, bad)
    tree = trees[0]
    for host in run.hosts:
        if tree not in missing.get(host.name, ()):
            run.emit(TreeSynced(host.name, tree.digest, tree.files, 0, 0.0, reused=True))


def begin(run: Run) -> None:
    """Start to read the user's code, while hosts are connected and examined."""
    if (source := run.source) is None:
        run.code_read()
        return
    reading = Future[tuple[Contents, list[str]]]()

    def read() -> None:
        try:
            state = git_state(source.root.path) if source.state is None else source.state
            reading.set_result((source.read(), state))
        except BaseException as error:  # for the consumer
            reading.set_exception(error)
        run.code_read()

    run.clock.start("code", read)
    run.staged.reading = reading


def _make_work(
    run: Run,
    trees: list[Contents],
    hosts: list[str],
    needs: Mapping[str, wire.JobNeeds] = MappingProxyType({}),
) -> dict[str, list[Contents]]:
    """Create the run's folder on hosts that have all trees; return the trees that others lack, by host.

    The same request checks every host's requirements; raise PhaseFailed if one lacks something.
    """
    questions = {
        name: wire.WorkMake(
            workdir=run.plan.host(name).workdir,
            run=run.plan.folder,
            user=run.id if run.plan.resumed else "",
            digest=trees[0].digest,
            also=[tree.digest for tree in trees[1:]],
            data=[run.plan.data_digest] if run.plan.data_digest else [],
            needs=needs.get(name),
            makes=name in hosts,
        )
        for name in (*hosts, *needs)
    }
    answers = run.fleet.ask(questions, timeout=_LIMIT)
    fail_on(run, Phase.STAGE, answers.bad)
    _check_needs(run, {name: reply.had for name, reply in answers.good.items() if reply.had is not None})
    missing: dict[str, list[Contents]] = {}
    for name in hosts:
        reply = answers.good[name]
        run.staged.work[name] = "/".join(filter(None, (reply.work, run.plan.cwd)))
        if reply.made:
            run.staged.made.add(name)
        absent = [tree for tree in trees if tree.digest in reply.missing]
        if absent:
            missing[name] = absent
    return missing


def _push(run: Run, trees: list[Contents], missing: Mapping[str, list[Contents]]) -> None:
    first, *others = trees

    def send(tree: Contents, session: Session) -> None:
        name = session.host.name
        result = push(session, tree, f"{session.host.workdir}/trees/{tree.digest}")
        if tree is first:
            synced = TreeSynced(name, tree.digest, tree.files, result.bytes, result.seconds, result.reused)
            run.emit(synced)

    for tree in (*others, first):  # two trees for one host go one after the other, hosts in parallel
        sessions = {name: run.fleet.sessions[name] for name, absent in missing.items() if tree in absent}
        fail_on(run, Phase.STAGE, run.fleet.each(sessions, partial(send, tree)).bad)


# --- what hosts must provide themselves ---


def _needs(plan: RunPlan) -> dict[str, wire.JobNeeds]:
    """Return what each host must provide; hosts without requirements are omitted."""
    needed = dict[str, wire.JobNeeds]()
    for spec in reversed(plan.tasks):  # the first task of a host counts
        name, python = spec.argv[0], plan.host(spec.host).python
        paths = (*plan.own_paths, *_script(plan, spec.host))
        # A relative path may be in the code, the task's PATH may differ, and preflight has tried `python`.
        is_elsewhere = is_builtin(plan.command) or "PATH" in spec.env or name == python
        is_elsewhere |= "/" in name and not name.startswith("/")
        program = None if is_elsewhere else name
        if paths or program:
            needed[spec.host] = wire.JobNeeds(program=program, python=python, setup=spec.setup, paths=paths)
    return needed


def _script(plan: RunPlan, host: str) -> tuple[str, ...]:
    """Return a script with an absolute path, which the host must have, unless `setup` may create it."""
    name = script_of(command_of(plan.host(host), plan.command)) or ""
    return (name,) if name.startswith("/") and not plan.recipe.setup else ()


def _check_needs(run: Run, answers: Mapping[str, wire.Had]) -> None:
    """Raise PhaseFailed with each host that lacks something; hosts that cannot tell are skipped."""
    lacks, plan = HostErrors(), run.plan
    for host, had in answers.items():
        if len(plan.own_paths) in had.paths:
            (what,) = _script(plan, host)
            why = "an absolute path refers to the host's own files: what is sent is the folder of the code"
            hint = f"write {PurePosixPath(what).name} if it is in the folder of the code"
        elif not had.program:
            what = f"program {plan.tasks_on(host)[0].argv[0]}"
            why = "no program of that name is on PATH; the command is"
            why += f" `{shlex.join(command_of(plan.host(host), plan.command))}`"
            hint = "write python3, install it there" if what == "program python" else "install it there"
            hint += f", give its path, or set `setup` in [job] ({_PAGE}#o201)"
        else:
            continue
        lacks[host] = HostError(host, f"has no {what}", kind="program", why=why, hint=hint)
    fail_on(run, Phase.STAGE, lacks)
    for place, (path, at) in enumerate(plan.own_paths.items()):
        if without := [name for name, had in answers.items() if place in had.paths]:
            what = f"{at}: {path}" if at else f"the argument {path}"
            note = f"O203 {what} exists where you launched, but not on {fold(without)}; add it to"
            note += f" [data]: tasks find it as $ORCHESTRATE_DATA/{PurePosixPath(path).name} ({_PAGE}#o203)"
            run.emit(Noted(note))
