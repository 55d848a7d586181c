"""The batch file of a run for Slurm: `orchestrate launch` in the job, or srun and orchestrate_rank.py."""

import shlex
from collections.abc import Sequence

from orchestrator import ranges
from orchestrator.errors import UsageError
from orchestrator.export import common
from orchestrator.frameworks import FRAMEWORKS
from orchestrator.model import Role, RunPlan, Way
from orchestrator.quoting import command_line
from orchestrator.ranges import grouped


def batch(plan: RunPlan, folder: str, launch: Sequence[str]) -> str:
    """Return a batch file that launches the run in its job with these arguments, in `folder`."""
    own = {(host.command, host.args) for host in plan.hosts}
    alike = {task.id.role for task in plan.tasks} == {Role.WORKER} and len(own) == 1
    if not alike and not by_name(plan):
        raise UsageError(
            "the nodes of a job have no roles and no commands of their own",
            why="`--hosts slurm` makes every node a worker, and hosts.toml has more than that",
            hint='name the nodes in hosts.toml, with via = "srun" under [defaults]; or give --plain',
        )
    lines = [
        *_head(plan, ()),
        "#SBATCH --signal=B:USR1@120",
        "",
        f"cd {shlex.quote(folder)} || exit",
        f"exec {shlex.join(launch)}",
    ]
    return "\n".join(lines) + "\n"


def plain_batch(plan: RunPlan, folder: str, remarks: Sequence[str]) -> str:
    """Return a batch file that needs nothing but orchestrate_rank.py next to it."""
    host, task = plan.hosts[0], plan.tasks[0]
    by_role = grouped((task.id.role, task.argv) for task in plan.tasks)
    argvs = {role: common.only(those, f"the command of role {role}") for role, those in by_role.items()}
    program = command_line(task.argv)
    if len({*argvs.values()}) > 1:  # orchestrate_rank.py tells each its role
        cases = "; ".join(f"{role}) exec {command_line(argv)};" for role, argv in argvs.items())
        program = command_line(("bash", "-c", f"case $ORCHESTRATE_ROLE in {cases} esac"))
    several = common.only((host.tasks for host in plan.hosts), "how many there are on a host") > 1
    srun = ["srun", "--kill-on-bad-exit=1", "--distribution=block", "--cpu-bind=none"]
    if host.devices and several and not FRAMEWORKS[plan.recipe.framework].shows_all:
        srun.append(f"--gpus-per-task={len(host.devices) // host.tasks}")
    counts = common.roles(plan)
    roles = ",".join(f"{role}={count}" for role, count in counts.items())
    rank = [] if counts.keys() == {Role.WORKER.value} else ["--roles", roles]
    lines = [
        *_head(plan, remarks),
        "",
        f"cd {shlex.quote(folder)} || exit",
        *(f"export {name}={shlex.quote(value)}" for name, value in common.environment(plan.tasks).items()),
        *filter(None, [task.setup]),
        "exec "
        + " ".join(map(command_line, (srun, (host.python, common.RANK_FILE.name, *rank, "--"))))
        + f" {program}",
    ]
    return "\n".join(lines) + "\n"


def by_name(plan: RunPlan) -> bool:
    """Return True if hosts are the nodes of a Slurm cluster."""
    return all(host.via is Way.SRUN for host in plan.hosts)


def _head(plan: RunPlan, remarks: Sequence[str]) -> list[str]:
    name = common.name_of(plan, 60)
    tasks = common.only((host.tasks for host in plan.hosts), "how many there are on a host")
    gpus = common.only((len(host.devices or ()) for host in plan.hosts), "the GPUs of their hosts")
    secrets = ", ".join(plan.secrets)
    rows = [
        "#!/bin/bash",
        *(f"# {remark}" for remark in remarks),
        *([f"# {secrets}: taken from the environment in which sbatch is called"] if secrets else []),
        f"#SBATCH --job-name={name}",
        f"#SBATCH --nodes={len(plan.hosts)}",
        f"#SBATCH --ntasks-per-node={tasks}",
        "#SBATCH --exclusive",
        f"#SBATCH --output={name}-%j.log",
    ]
    if gpus:
        rows.append(f"#SBATCH --gpus-per-node={gpus}")
    if by_name(plan):
        rows.append("#SBATCH --nodelist=" + ranges.fold(host.ssh for host in plan.hosts))
    return rows
