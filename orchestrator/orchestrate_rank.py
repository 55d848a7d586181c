"""Find a task's rank, size and hosts, set the variables of the frameworks, and exec the program.

    srun python orchestrate_rank.py -- python train.py

Rank and size are those of torchrun, of mpirun, of PMIx, of a Slurm step, of a Kubernetes Job or of
ORCHESTRATE_RANK. TF_CONFIG and the variables of torch, JAX and Keras are set. Python 3.8, no packages.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import socket
import sys
import time
from pathlib import Path
from typing import Any, Iterable, Mapping, NoReturn, Sequence

# Launchers, with their variables for rank and size; the last two leave those to --hosts or --roles.
# A launcher that runs inside another one comes first.
ENGINES = (
    ("orchestrate", "ORCHESTRATE_RANK", "ORCHESTRATE_SIZE"),
    ("torchrun", "RANK", "WORLD_SIZE"),
    ("mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
    ("PMIx", "PMIX_RANK", ""),
    ("Kubernetes", "JOB_COMPLETION_INDEX", ""),
)
# The variables that programs read, by contract, with one of `values` for each. An IPv6 address has
# brackets where a program appends ":PORT", and none where the port is separate.
CONTRACTS = {
    "orchestrate": {
        "ORCHESTRATE_ROLE": "role",
        "ORCHESTRATE_RANK": "rank",
        "ORCHESTRATE_SIZE": "size",
        "ORCHESTRATE_LOCAL_RANK": "local rank",
        "ORCHESTRATE_HOSTS": "addresses",
    },
    "torch": {
        "MASTER_ADDR": "host",
        "MASTER_PORT": "port",
        "RANK": "rank",
        "WORLD_SIZE": "size",
        "LOCAL_RANK": "local rank",
        "LOCAL_WORLD_SIZE": "local size",
        "GROUP_RANK": "node",
        "NODE_RANK": "node",  # shell scripts pass this and the next two on to torchrun
        "NNODES": "nodes",
        "NUM_NODES": "nodes",
    },
    # Options of torchrun, and of `accelerate launch`, which calls it; they replace torch's variables.
    "torchrun": {
        "PET_MASTER_ADDR": "host",
        "PET_MASTER_PORT": "port",
        "PET_NNODES": "nodes",
        "PET_NODE_RANK": "node",
    },
    "torchrun processes": {"PET_NPROC_PER_NODE": "processes"},
    # JAX itself reads only the first one; node/hook/site_meeting.py provides the others.
    "jax": {
        "JAX_COORDINATOR_ADDRESS": "first",
        "JAX_NUM_PROCESSES": "size",
        "JAX_PROCESS_ID": "rank",
    },
    # Kubeflow's JAXJob: its programs build f"{COORDINATOR_ADDRESS}:{COORDINATOR_PORT}".
    "kubeflow": {
        "COORDINATOR_ADDRESS": "[host]",
        "COORDINATOR_PORT": "port",
        "NUM_PROCESSES": "size",
        "PROCESS_ID": "rank",
    },
    "keras": {
        "KERAS_DISTRIBUTION_JOB_ADDRESSES": "addresses",
        "KERAS_DISTRIBUTION_NUM_PROCESSES": "size",
        "KERAS_DISTRIBUTION_PROCESS_ID": "rank",
    },
    "dtensor": {
        "DTENSOR_JOBS": "addresses",
        "DTENSOR_CLIENT_ID": "rank",
        "DTENSOR_NUM_CLIENTS": "size",
        "DTENSOR_JOB_NAME": "worker",
    },
    # Rank 0 only hands out trials. Set if the program shares a search, see `shares_search`.
    "keras_tuner": {
        "KERASTUNER_TUNER_ID": "tuner",
        "KERASTUNER_ORACLE_IP": "[host]",
        "KERASTUNER_ORACLE_PORT": "port",
    },
}
SEVERAL = ("dtensor", "keras_tuner")  # a single task runs in local mode without them
OUTSIDE = {"evaluator", "service"}  # not in the cluster of TF_CONFIG; their ranks count within their role
ROLES = {"chief", "worker", "ps", *OUTSIDE}


def main() -> NoReturn:
    """Parse the command line and exec the program."""
    import argparse  # noqa: PLC0415 - not where only the tables are needed

    argv = sys.argv[1:]
    at = argv.index("--") if "--" in argv else len(argv)
    parser = argparse.ArgumentParser(usage="%(prog)s [options] -- PROGRAM ...", allow_abbrev=False)
    option = parser.add_argument
    option("--roles", default="", metavar="chief=1,worker=2", help="tasks by role, in rank order")
    option("--first", type=int, default=0, help="the rank of the task with index 0, in a Kubernetes Job")
    option("--hosts", default="", metavar="NAMES", help="the host of each rank: job-worker-[0-3].job")
    option("--port", type=int, help="port of the first task on a machine; others use the next ones")
    option("--wait", type=float, default=60, metavar="SECONDS", help="for a pod to have an address (60)")
    options, program = parser.parse_args(argv[:at]), argv[at + 1 :]
    try:
        if not program:
            raise ValueError("no program follows --")
        env = {**os.environ, **variables(os.environ, options, program)}
        os.execvpe(program[0], program, env)
    except (ValueError, OSError) as error:
        parser.exit(2, f"orchestrate_rank: {error}\n")


def variables(env: Mapping[str, str], options: Any, program: Sequence[str] = ()) -> dict[str, str]:
    """Return the variables for the program; raise ValueError."""
    roles = [(role, int(count)) for role, count in re.findall(r"(\w+)=(\d+)", options.roles)]
    given = len(expand(options.hosts)) or sum(count for _, count in roles)
    engine, rank, size = find_place(env, given, options.first)
    roles = roles or [("worker", size)]
    if sum(count for _, count in roles) != size or not ROLES.issuperset(role for role, _ in roles):
        raise ValueError(f"--roles {options.roles} are not the roles of {size} tasks")
    port = 2222
    if engine == "srun":  # a node may run several steps
        port = 10_000 + (int(env["SLURM_JOB_ID"]) + int(env["SLURM_STEP_ID"])) % 300 * 64
    hosts = with_ports(find_hosts(env, options, engine, rank, size), options.port or port)
    if len(hosts) != size or rank >= size:
        raise ValueError(f"{engine} says rank {rank} of {size}, for {len(hosts)} hosts")
    names = [role for role, count in roles for _ in range(count)]
    own = names[rank]
    among = [at for at, name in enumerate(names) if name == own or not {name, own} & OUTSIDE]
    chosen = [hosts[at] for at in among]
    others = (("keras_tuner", not tunes(program)), ("torchrun", is_standalone(" ".join(program))))
    made = of_frameworks(among.index(rank), chosen, {name for name, other in others if other}, own)
    addresses = _joined(tuple(hosts)).split(",")
    if "service" in names:
        services = (address for address, name in zip(addresses, names) if name == "service")
        made["ORCHESTRATE_SERVICE"] = ",".join(services)
    if size > 1 and own != "service":
        made["TF_CONFIG"] = tf_config(rank, roles, addresses)
    kept = made if engine == "torchrun" else ["PET_NPROC_PER_NODE"]
    return {**made, **{name: env[name] for name in kept if name in env}}


def find_place(env: Mapping[str, str], given: int, first: int) -> tuple[str, int, int]:
    """Return the engine, the rank and the number of tasks: `given` where the environment has none."""
    namespace = env.get("PMIX_NAMESPACE", "slurm.")  # otherwise the step of srun is one of their daemons
    for engine, rank, size in ENGINES:
        total = int(env.get(size, 0)) if size else given
        if rank in env and total and (engine != "srun" or namespace.startswith("slurm.")):
            return engine, first + int(env[rank]), total
    names = ", ".join(f"{rank} and {size or '--hosts or --roles'}" for _, rank, size in ENGINES)
    raise ValueError(f"no launcher has set a rank and the number of tasks, as srun does: {names}")


def find_hosts(env: Mapping[str, str], options: Any, engine: str, rank: int, size: int) -> list[str]:
    """Return the host of each rank, some with a port. Raise ValueError if nothing lists them."""
    if options.hosts or "ORCHESTRATE_HOSTS" in env:
        hosts, deadline = expand(options.hosts or env["ORCHESTRATE_HOSTS"]), time.monotonic() + options.wait
        for host, _ in with_ports(hosts, 0) if engine == "Kubernetes" else ():
            await_address(host.strip("[]"), deadline)
        return hosts
    if engine == "srun":
        return of_step(env, rank)
    if size > 1:
        raise ValueError(f"{engine} does not list the hosts: pass --hosts with that of each rank, as n[1-4]")
    return ["127.0.0.1"]


def await_address(host: str, deadline: float) -> None:
    """Wait until a name resolves, as a pod's does once it is placed. Raise ValueError."""
    while True:
        with contextlib.suppress(OSError):
            socket.getaddrinfo(host, None)
            return
        if time.monotonic() > deadline:
            raise ValueError(f"{host} has no address, after all of --wait")
        time.sleep(0.5)


def of_step(env: Mapping[str, str], rank: int) -> list[str]:
    """Return the node of each rank of a Slurm step."""
    nodes, counts = expand(env.get("SLURM_STEP_NODELIST", "")), per_node(env, "SLURM_STEP_TASKS_PER_NODE")
    hosts = [node for node, count in zip(nodes, counts) for _ in range(count)]
    here = env.get("SLURMD_NODENAME")
    if here and hosts[rank : rank + 1] != [here]:
        raise ValueError(f"Slurm put rank {rank} on {here}; pass --distribution=block to srun")
    return hosts


def per_node(env: Mapping[str, str], name: str) -> list[int]:
    """Return the number of tasks on each node: Slurm writes `2(x3),1`."""
    runs = re.findall(r"(\d+)(?:\(x(\d+)\))?", env.get(name, ""))
    return [int(count) for count, times in runs for _ in range(int(times or 1))]


def expand(text: str) -> list[str]:
    """List the names in `n[1-3,07],login`; an IPv6 address in brackets is not a range."""
    names: list[str] = []
    for word in re.findall(r"(?:\[[^\]]*\]|[^,\[])+", text):
        match = re.search(r"\[([0-9]+(?:[-,][0-9]+)*)\]", word)
        if not match:
            names.append(word)
            continue
        for piece in match[1].split(","):
            first, _, last = piece.partition("-")
            for at in range(int(first), int(last or first) + 1):
                names += expand(word.replace(match[0], str(at).zfill(len(first)), 1))
    return names


def with_ports(hosts: list[str], first: int) -> list[tuple[str, int]]:
    """Give consecutive ports to the tasks of a host that have none."""
    addresses: list[tuple[str, int]] = []
    for name in hosts:
        match = re.fullmatch(r"([^:]+|\[.*\]):([0-9]+)", name)
        seats = sum(host == name for host, _ in addresses)
        addresses.append((match[1], int(match[2])) if match else (name, first + seats))
    return addresses


@functools.lru_cache(maxsize=1)
def _joined(peers: tuple[tuple[str, int], ...]) -> str:
    """Return the addresses of all tasks: one text, which a plan of a thousand tasks has a thousand times."""
    ends = (f"[{name}]:{at}" if ":" in name and name[0] != "[" else f"{name}:{at}" for name, at in peers)
    return ",".join(ends)


def values(
    peers: Sequence[tuple[str, int]],
    rank: int,
    local: tuple[int, int],
    node: tuple[int, int],
    role: str = "worker",
) -> dict[str, str]:
    """Return the values that CONTRACTS refers to; `local` and `node` are pairs of rank and count."""
    addresses = _joined(tuple(peers))
    first = addresses.partition(",")[0]
    host, _, port = first.rpartition(":")
    return {
        "role": role,
        "rank": str(rank),
        "size": str(len(peers)),
        "local rank": str(local[0]),
        "local size": str(local[1]),
        "node": str(node[0]),
        "nodes": str(node[1]),
        "addresses": addresses,
        "first": first,
        "host": host.strip("[]"),
        "[host]": host,
        "port": port,
        "processes": "auto",
        "worker": "worker",
        "tuner": f"tuner{rank - 1}" if rank else "chief",
    }


def of_contracts(names: Iterable[str], place: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of some contracts; those in SEVERAL only for more than one task."""
    chosen = [name for name in names if name not in SEVERAL or place["size"] != "1"]
    return {variable: place[value] for name in chosen for variable, value in CONTRACTS[name].items()}


def of_frameworks(
    rank: int, hosts: list[tuple[str, int]], others: Iterable[str] = (), role: str = "worker"
) -> dict[str, str]:
    """Return the variables of all contracts but some; of none for a task that does not train."""
    names = [host for host, _ in hosts]
    nodes = list(dict.fromkeys(names))
    local = names[:rank].count(names[rank]), names.count(names[rank])
    place = values(hosts, rank, local, (nodes.index(names[rank]), len(nodes)), role)
    trains = [name for name in CONTRACTS if name not in others]
    return of_contracts(["orchestrate"] if role in OUTSIDE else trains, place)


def tunes(program: Sequence[str]) -> bool:
    """Return whether a program's text contains a Keras Tuner search that tasks share."""
    for word in program:
        with contextlib.suppress(OSError, ValueError):
            if word.endswith(".py") and shares_search(Path(word).read_text(encoding="utf-8")):
                return True
    return False


def shares_search(text: str) -> bool:
    """Return whether the text imports Keras Tuner and no strategy that trains one model across tasks."""
    code = re.sub(r"(?m)#.*$", "", text)
    imports = re.search(r"(?m)^\s*(?:import\b.*|from\s+)\b(?:keras_tuner|kerastuner)\b", code)
    return bool(imports) and not re.search(r"MultiWorkerMirrored|ParameterServerStrategy|TF_CONFIG", code)


def is_standalone(text: str) -> bool:
    """Return True if torchrun, in a command or script, joins no other host; PET_NNODES would block it."""
    here = r"\s--(?:standalone\b|rdzv[_-]endpoint[=\s]+[\"']?(?:localhost|127\.))"
    lines = re.sub(r"\\\r?\n", " ", text)
    return bool(re.search(rf"(?m)^[^#\n]*\b(?:torchrun|torch\.distributed\.run)\b[^#\n]*{here}", lines))


def tf_config(rank: int, roles: list[tuple[str, int]], addresses: list[str]) -> str:
    """Return TF_CONFIG; evaluators and services are not part of the cluster."""
    tasks = [(role, index) for role, count in roles for index in range(count)]
    cluster: dict[str, list[str]] = {role: [] for role, _ in roles if role not in OUTSIDE}
    for (role, _), address in zip(tasks, addresses):
        cluster.get(role, []).append(address)
    return json.dumps({"cluster": cluster, "task": {"type": tasks[rank][0], "index": tasks[rank][1]}})


if __name__ == "__main__":
    main()
