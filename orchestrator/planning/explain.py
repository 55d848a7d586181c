"""A plan as text for users: the output of `launch --dry-run`."""

from collections.abc import Iterator, Mapping, Sequence

from orchestrator import ranges
from orchestrator.frameworks import FRAMEWORKS
from orchestrator.model import OUTSIDE, Completion, Role, RunPlan, TaskSpec
from orchestrator.planning.environ import TF_CONFIG
from orchestrator.quoting import shown as quoted
from orchestrator.text import count, endpoint


def dry_run(plan: RunPlan) -> Iterator[str]:
    """Yield the whole plan; each task's TF_CONFIG has its own line, as TensorFlow will read it."""
    first, *others = [task.env for task in plan.tasks]
    common = {
        name: value
        for name, value in first.items()
        if name != TF_CONFIG and all(env.get(name) == value for env in others)
    }
    helped = any(task.id.role in OUTSIDE for task in plan.tasks)
    ending = f"done when every task {'that trains ' if helped else ''}has exited with 0"
    if plan.completion is Completion.CHIEF:
        ending = "done when the chief has exited with 0"
    if plan.completion is Completion.CHIEF or helped:
        ending += "; the others are then stopped"
    if any(task.id.role is Role.EVALUATOR for task in plan.tasks):
        ending += f", evaluator/0 after {plan.evaluator_timeout:g} s at most"
    yield f"{count(len(plan.tasks), 'task')} on {count(len(plan.hosts), 'host')}; {ending}"
    for task in plan.tasks:
        yield ""
        yield f"{task.id} on {task.host}"
        if FRAMEWORKS[plan.recipe.framework].has_config and task.id.role is not Role.SERVICE:
            yield task.env.get(
                TF_CONFIG, "no TF_CONFIG: it is the only task, and its program does not read it"
            )
        yield from _task(plan, task, common)
    yield ""
    yield "environment of every task"
    yield from (f"  {line}" for line in _environment(common))
    yield from (f"  {name}=***" for name in plan.secrets)
    yield ""
    yield f"stop: {plan.grace:g} s between TERM and KILL, {plan.failure_grace:g} s after a failure"
    if plan.resumed is not None:
        yield f"continues in the folder of run {plan.folder}"
    policy, spares = plan.restarts, ranges.fold(host.name for host in plan.spares)
    if policy.most:
        fewer = f", or on {count(policy.min_hosts, 'host')}" if policy.min_hosts else ""
        backup = f"; {quoted(policy.backup)} of {plan.leader.id} is copied to all" if policy.backup else ""
        yield f"restarts: {count(policy.most, 'time')} at most{fewer}{backup}"
    if spares:
        yield f"spare: {spares}" + ("" if policy.most else " (not used without --max-restarts)")
    if plan.hang_timeout:
        yield f"hangs: {plan.hang_timeout:g} s without output; then stacks are collected, and: {plan.on_hang}"
    if plan.keep_warm:
        modules = ", ".join(dict.fromkeys(name.replace("/", ".") for name in plan.ahead.imports))
        what = f"nothing is imported early: {plan.ahead.why}" if plan.ahead.why else modules
        yield f"keep warm: {plan.keep_warm:g} s after the run; {what}"
    yield from (f"note: {note}" for note in plan.notes)


def _task(plan: RunPlan, task: TaskSpec, common: Mapping[str, str]) -> Iterator[str]:
    host = plan.host(task.host)
    way = (f"{host.user}@" if host.user else "") + endpoint(host.ssh, host.port)
    own = {name: value for name, value in task.env.items() if name not in common and name != TF_CONFIG}
    rows = {
        "ssh": "local (this machine, without SSH)" if host.is_local else way,
        "address": host.address,
        "port": str(task.port),
        "run": shown(task.argv),
        "workdir": host.workdir,
        "setup": quoted(task.setup) if task.setup else "",
    }
    yield from (f"  {label:<8} {text}" for label, text in rows.items() if text)
    yield from (f"  {'env':<8} {line}" for line in _environment(own))


def _environment(env: Mapping[str, str]) -> Iterator[str]:
    return (f"{name}={quoted(value) if value else ''}" for name, value in sorted(env.items()))


def shown(argv: Sequence[str]) -> str:
    """Return a command as a user would type it; a leading `~` expands, as it does on the node."""
    program, *arguments = argv
    home = "~/" if program.startswith("~/") else ""
    return " ".join([home + quoted(program.removeprefix(home)), *map(quoted, arguments)])
