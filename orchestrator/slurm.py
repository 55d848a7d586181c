"""Slurm from inside a job: its nodes, a client that reaches one, and how a job ends."""

import contextlib
import os
import re
import socket
from collections.abc import Collection, Mapping
from typing import Any

from orchestrator import processes
from orchestrator.errors import HostError, Trouble, UsageError
from orchestrator.model import Host
from orchestrator.orchestrate_rank import expand, per_node
from orchestrator.text import plain
from orchestrator.value import Value

# Variables of the job, not of the current step or batch script: srun would treat those as its options
# (SLURM_GPUS_PER_TASK limits a step to one GPU, SLURM_MEM_PER_CPU conflicts with --mem).
_OF_JOB = (
    "SLURM_CONF", "SLURM_JOB_", "SLURM_JOBID", "SLURM_SUBMIT_", "SLURM_CLUSTER_", "SLURM_ARRAY_",
    "SLURM_RESTART_",
)  # fmt: skip
_RUNNING = {"RUNNING", "SUSPENDED", "STOPPED", "RESIZING", "SIGNALING", "CONFIGURING", "STAGE_OUT"}
_ENDS = {
    "CANCELLED": "was cancelled (scancel)",
    "TIMEOUT": "reached its time limit",
    "PREEMPTED": "was preempted by another job",
    "NODE_FAIL": "was ended by Slurm when a node failed",
    # Slurm gives the reason only after all of it is gone.
    "COMPLETING": "was cancelled (scancel), preempted, or at its time limit",
}
_SHOW = ("scontrol", "--oneliner", "show")
_PATIENCE = 5.0  # seconds for Slurm to reply
_MOST = 8 << 20  # bytes of a reply
_FIRST_PORT, _PLACES = 20_000, 187  # below the ports that systems assign by themselves, above Slurm's own
_ROOM = 64  # task ports of one job on a node


class Fate(Value):
    """The state of a job: why it ended ("" while it runs), and why nodes of it are gone, by node."""

    over: str = ""
    down: Mapping[str, str] = {}


def job_here() -> str:
    """Return the ID of the job that this process runs in, or SLURM_JOB_ID; "" if there is none."""
    return os.environ.get("SLURM_JOB_ID", "")


def client(host: Host) -> list[str]:
    """Return the srun command for another step of the host's job on its node; raise HostError."""
    job = host.job or job_here()
    if not job:
        raise HostError(
            host.name,
            "cannot be reached with srun",
            kind="config",
            why='`via = "srun"` works only inside a Slurm job, and SLURM_JOB_ID is not set',
            hint="start it inside `salloc` or `sbatch`",
        )
    step = ["srun", "--overlap", f"--jobid={job}", "-N1", "-n1", "-w", host.ssh]
    # exec: Slurm signals only the process that it started, and waits for it.
    at_home = ["sh", "-c", 'cd; eval "exec $0"']
    return [*step, "--unbuffered", "--cpu-bind=none", "--mem=0", "--quiet", *at_home]


def environment() -> dict[str, str]:
    """Return the environment for srun: ours, without variables that it would treat as options."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("SLURM_", "SRUN_", "SBATCH_", "SALLOC_", "PMI")) or name.startswith(_OF_JOB)
    }


def explain(host: Host, stderr: bytes) -> HostError | None:
    """Return srun's own error from its last output; None if there is none."""
    lines = [
        line for line in stderr.decode(errors="replace").splitlines() if line.startswith("srun: error: ")
    ]
    if not lines:
        return None
    return HostError(
        host.name,
        "cannot be reached with srun",
        kind=Trouble.NO_ROUTE,
        why=plain(lines[0].removeprefix("srun: error: "))[:300],
        hint=f"`scontrol show job {host.job or job_here()}` and `scontrol show node {host.ssh}`",
    )


def allocation(job: str) -> list[dict[str, Any]]:
    """Return the nodes of a job from Slurm, each with its hosts.toml keys; raise UsageError."""
    if not re.fullmatch(r"\d+", job):
        raise UsageError(
            "--hosts slurm works only inside a Slurm job",
            why=f"SLURM_JOB_ID is {job!r}" if job else "SLURM_JOB_ID is not set",
            hint="start it in `salloc -N4` or in a batch file; `SLURM_JOB_ID=7 orchestrate ...` reaches into"
            " a running job, and `--hosts ./slurm` is the file of that name",
        )
    record = _record(_slurm(*_SHOW, "job", job))
    if over := _end(job, record):
        raise UsageError(f"--hosts slurm: {over}", hint="`squeue --me` shows the jobs that run")
    names = expand(record.get("NodeList", ""))
    records = {
        node["NodeName"]: node
        for node in map(_record, _slurm(*_SHOW, "node", ",".join(names)).splitlines())
        if node
    }
    tasks = dict(zip(names, _tasks(os.environ, len(names)), strict=True)) if job == job_here() else {}
    devices = _devices(job, names) if re.search("gres[/:]gpu", " ".join(record.values())) else {}
    port = _FIRST_PORT + int(job) % _PLACES * _ROOM
    nodes: list[dict[str, Any]] = []
    for name in names:
        node = {"name": name, "ssh": name, "via": "srun", "tasks": tasks.get(name, 1), "task_port": port}
        node["address"] = _address(name, records.get(name, {}))
        nodes.append(node | ({"devices": devices[name]} if name in devices else {}))
    return nodes


def look(job: str, nodes: Collection[str]) -> Fate:
    """Return the state of a job and some of its nodes from Slurm; empty if Slurm does not reply."""
    try:
        text = _slurm(*_SHOW, "job", job)
    except UsageError as error:
        unknown = "Invalid job id" in error.why
        return Fate(f"Slurm job {job} is over: Slurm has no record of it any more") if unknown else Fate()
    record = _record(text)
    down: dict[str, str] = {}
    with contextlib.suppress(UsageError):
        inside = expand(record.get("NodeList", ""))
        for line in _slurm(*_SHOW, "node", ",".join(nodes)).splitlines() if nodes else ():
            node = _record(line)
            name, state, reason = node["NodeName"], node.get("State", ""), node.get("Reason", "")
            because = f" ({plain(reason)[:200]})" if reason else ""
            if re.match(r"DOWN|FAIL|.*\+(FAIL|POWERED_DOWN)\b", state):
                down[name] = f"{name} is {state} in Slurm{because}"
            elif name not in inside:
                down[name] = f"Slurm took {name} out of job {job}{because}"
    over = _end(job, record)
    if down and over and not record.get("JobState", "").startswith("CANCEL"):
        over = f"Slurm ended job {job}, since {', '.join(down.values())}"
    return Fate(over, down)


def _end(job: str, record: Mapping[str, str]) -> str:
    """Return why a job ended, "" while it runs; its nodes may belong to another job, or to none."""
    state = record.get("JobState", "RUNNING")
    if state in _RUNNING:
        return ""
    limit = f" ({record.get('TimeLimit', '')})" if state == "TIMEOUT" else ""
    reason = _ENDS.get(state, f"is over: Slurm calls it {plain(state)[:40]}")
    return f"Slurm job {job} {reason}{limit}"


def _tasks(environ: Mapping[str, str], nodes: int) -> list[int]:
    """Return the number of tasks per node if the job requested tasks, otherwise one for each."""
    if not environ.get("SLURM_NTASKS") and not environ.get("SLURM_NTASKS_PER_NODE"):
        return [1] * nodes  # in that case SLURM_TASKS_PER_NODE may be the number of cores
    counts = per_node(environ, "SLURM_TASKS_PER_NODE")
    return counts if len(counts) == nodes else [1] * nodes


def _devices(job: str, names: Collection[str]) -> dict[str, tuple[str, ...]]:
    """Return the job's GPUs on each node; only a step on the node receives this from Slurm."""
    step = ["srun", "--overlap", f"--jobid={job}", f"-N{len(names)}", f"-n{len(names)}", "--quiet"]
    output = _slurm(
        *step, "--mem=0", "sh", "-c", 'echo "$SLURMD_NODENAME $CUDA_VISIBLE_DEVICES"', patience=30.0
    )
    rows = (line.partition(" ") for line in output.splitlines())
    return {name: tuple(gpus.split(",")) for name, _, gpus in rows if name in names and gpus}


def _address(name: str, record: Mapping[str, str]) -> str:
    """Return a node's name if other machines resolve it, otherwise the address that Slurm uses."""
    with contextlib.suppress(OSError):
        if not socket.gethostbyname(name).startswith("127."):
            return name
    return record.get("NodeAddr") or name


def _slurm(*command: str, patience: float = _PATIENCE) -> str:
    """Return the output of a Slurm program; raise UsageError."""
    try:
        done = processes.run(command, patience, most=_MOST, env=environment())
        output = done.why or done.err.decode("utf-8", "replace")
    except OSError as error:
        done, output = None, str(error)
    if done is None or done.status != 0:
        raise UsageError(
            "Slurm does not answer",
            why=f"{command[0]}: {plain(' '.join(output.split()))[:300]}",
            hint="`squeue --me` shows your jobs; SLURM_CONF names a configuration outside /etc/slurm",
        )
    return done.out.decode("utf-8", "replace")


def _record(line: str) -> dict[str, str]:
    """Return one line of scontrol as a mapping: `NodeName=n1 State=DOWN* Reason=Not responding`."""
    parts = re.split(r"(?:^|\s)([A-Z][\w:/]*)=", line.strip())
    return {key: value.strip() for key, value in zip(parts[1::2], parts[2::2], strict=True)}
