"""Find a task's rank, size and hosts in whatever started it, tell the frameworks, and become the program.

    srun python orchestrate_rank.py -- python train.py

Rank and size are those of torchrun, of mpirun, of a Slurm step, of a Kubernetes Job or of ORCHESTRATE_RANK
and _SIZE. TF_CONFIG and the variables of torch, JAX and Keras are set. Python 3.8, no packages.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import itertools
import json
import os
import re
import secrets
import socket
import sys
import tempfile
import time
from typing import Iterator, Mapping, NamedTuple, NoReturn

# Who starts tasks: rank, size, how many are on this machine. A launcher inside of another one comes first.
ENGINES = (
    ("orchestrate", "ORCHESTRATE_RANK", "ORCHESTRATE_SIZE", ""),
    ("torchrun", "RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),
    ("mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", ""),
)
INDEX = "JOB_COMPLETION_INDEX"  # of a pod in an Indexed Job, which says nothing else
JOB = ("PMIX_NAMESPACE", "OMPI_MCA_orte_precondition_transports", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID")
ROLES = {"chief", "worker", "ps", "evaluator"}


class RankError(Exception):
    """Variables or options that no rank, size and hosts can be made of."""


class RankedTask(NamedTuple):
    """One of the tasks that an engine started."""

    engine: str
    rank: int
    size: int
    together: bool = False  # all of them are on this machine


def main() -> NoReturn:
    """Read the command line, and become the program."""
    words = sys.argv[1:]
    at = words.index("--") if "--" in words else len(words)
    parser = argparse.ArgumentParser(usage="%(prog)s [options] -- PROGRAM ...", allow_abbrev=False)
    parser.add_argument(
        "--roles", default="", metavar="chief=1,worker=2", help="tasks by role, in rank order"
    )
    parser.add_argument("--role", help="the role of this Kubernetes Job, whose indexes begin at 0")
    parser.add_argument("--hosts", metavar="NAMES", help="the host of each rank: job-worker-[0-3].job")
    parser.add_argument("--port", type=int, help="of the first task on a machine; others take the next ones")
    parser.add_argument(
        "--meet", metavar="PLACE", help="HOST:PORT of rank 0's machine, or a folder all share"
    )
    parser.add_argument("--wait", type=float, default=60, metavar="SECONDS", help="for all to meet (60)")
    options, program = parser.parse_args(words[:at]), words[at + 1 :]
    try:
        if not program:
            raise RankError("no program follows --")
        env = {**os.environ, **variables(os.environ, options)}
        os.execvpe(program[0], program, env)
    except (RankError, OSError) as error:
        parser.exit(2, f"orchestrate_rank: {error}\n")


def variables(env: Mapping[str, str], options: argparse.Namespace) -> dict[str, str]:
    """Return what to set for the program; raise RankError."""
    roles = [(role, int(count)) for role, count in re.findall(r"(\w+)=(\d+)", options.roles)]
    task = find_task(env, options, roles)
    roles = roles or [("worker", task.size)]
    if sum(count for _, count in roles) != task.size or not ROLES.issuperset(role for role, _ in roles):
        raise RankError(f"--roles {options.roles} are not the roles of {task.size} tasks")
    hosts = with_ports(find_hosts(env, options, task), options.port or usual_port(env, task))
    if len(hosts) != task.size or task.rank >= task.size:
        raise RankError(f"{task.engine} says rank {task.rank} of {task.size}, for {len(hosts)} hosts")
    made = of_frameworks(task.rank, hosts)
    if task.size > 1:
        made["TF_CONFIG"] = tf_config(task.rank, roles, made["ORCHESTRATE_HOSTS"].split(","))
    kept = made if task.engine == "torchrun" else ["PET_NPROC_PER_NODE"]
    return {**made, **{name: env[name] for name in kept if name in env}}


def find_task(
    env: Mapping[str, str], options: argparse.Namespace, roles: list[tuple[str, int]]
) -> RankedTask:
    """Ask the environment; the index of a Job counts within its role."""
    for engine, rank, size, here in ENGINES:
        if rank in env and size in env:
            return RankedTask(engine, number(env, rank), number(env, size), env.get(here) == env[size])
    if INDEX in env and options.hosts:
        before = itertools.takewhile(lambda item: item[0] != options.role, roles if options.role else ())
        rank_of_first = sum(count for _, count in before)
        return RankedTask("Kubernetes", rank_of_first + number(env, INDEX), len(expand(options.hosts)))
    names = ", ".join(f"{rank} and {size}" for _, rank, size, _ in ENGINES)
    hint = "start it with srun" if "SLURM_JOB_ID" in env else f"give --hosts where {INDEX} is set"
    raise RankError(f"nothing here sets a rank: neither {names}; {hint}")


def number(env: Mapping[str, str], name: str) -> int:
    """Read a variable that is a number; raise RankError."""
    if not re.fullmatch("[0-9]{1,9}", env[name]):
        raise RankError(f"{name}={env[name]!r} is not a number")
    return int(env[name])


def find_hosts(env: Mapping[str, str], options: argparse.Namespace, task: RankedTask) -> list[str]:
    """Return the host of each rank, some with a port; where nobody tells them, the tasks meet."""
    deadline = time.monotonic() + options.wait
    if options.hosts or "ORCHESTRATE_HOSTS" in env:
        hosts = expand(options.hosts or env["ORCHESTRATE_HOSTS"])
        if task.engine == "Kubernetes":
            await_addresses([host for host, _ in with_ports(hosts, 0)], deadline)
        return hosts
    if task.engine == "srun":
        return of_step(env, task.rank)
    if task.together or task.size == 1:
        return ["127.0.0.1"] * task.size
    place = options.meet or os.getcwd()
    if not options.meet and "MASTER_ADDR" in env and "MASTER_PORT" in env:
        place = f"{env['MASTER_ADDR']}:{number(env, 'MASTER_PORT') + 1}"  # MASTER_PORT may be torchrun's own
    job = hashlib.sha256("\0".join(env.get(name, "") for name in JOB).encode()).hexdigest()[:16]
    return meet(task, place, job, deadline)


def await_addresses(hosts: list[str], deadline: float) -> None:
    """Wait until all names lead somewhere: that of a pod does once it is placed. Raise RankError."""
    for host in hosts:
        while True:
            try:
                socket.getaddrinfo(host.strip("[]"), None)
                break
            except OSError:
                if time.monotonic() > deadline:
                    raise RankError(f"{host} has no address, after all of --wait") from None
            time.sleep(0.5)


def of_step(env: Mapping[str, str], rank: int) -> list[str]:
    """Return the node of each rank of a Slurm step."""
    nodes = expand(env.get("SLURM_STEP_NODELIST", ""))
    runs = re.findall(r"(\d+)(?:\(x(\d+)\))?", env.get("SLURM_STEP_TASKS_PER_NODE", ""))
    counts = [int(count) for count, times in runs for _ in range(int(times or 1))]
    seats = [(turn, node) for node, count in zip(nodes, counts) for turn in range(count)]
    if env.get("SLURM_DISTRIBUTION", "").startswith("cyclic"):
        seats.sort(key=lambda seat: seat[0])
    hosts = [node for _, node in seats]
    here = env.get("SLURMD_NODENAME")
    if here and hosts[rank : rank + 1] != [here]:
        raise RankError(f"Slurm put rank {rank} on {here}; give srun --distribution=block")
    return hosts


def expand(text: str) -> list[str]:
    """List the names of `n[1-3,07],login`; an IPv6 address in brackets is no range."""
    names: list[str] = []
    for word in re.findall(r"(?:\[[^\]]*\]|[^,\[])+", text):
        parts = re.split(r"\[([0-9]+(?:[-,][0-9]+)*)\]", word)
        columns = [list(span(part)) if at % 2 else [part] for at, part in enumerate(parts)]
        names += map("".join, itertools.product(*columns))
    return names


def span(text: str) -> Iterator[str]:
    """List the numbers of `1-3,07`, leading zeros kept."""
    for piece in text.split(","):
        first, _, last = piece.partition("-")
        yield from (str(at).zfill(len(first)) for at in range(int(first), int(last or first) + 1))


def usual_port(env: Mapping[str, str], task: RankedTask) -> int:
    """Return 2222; but steps of Slurm, of which a node may have several, get 64 ports each."""
    if task.engine != "srun":
        return 2222
    return 10_000 + (number(env, "SLURM_JOB_ID") + number(env, "SLURM_STEP_ID")) % 300 * 64


def with_ports(hosts: list[str], first: int) -> list[tuple[str, int]]:
    """Give the tasks of a host, as far as they have none, one port after the other."""
    addresses: list[tuple[str, int]] = []
    for name in hosts:
        match = re.fullmatch(r"([^:]+|\[.*\]):([0-9]+)", name)
        seats = sum(host == name for host, _ in addresses)
        addresses.append((match[1], int(match[2])) if match else (name, first + seats))
    return addresses


def of_frameworks(rank: int, hosts: list[tuple[str, int]]) -> dict[str, str]:
    """Return the variables of torch, torchrun, JAX, Keras and any program for one of the tasks."""
    names = [host for host, _ in hosts]
    nodes = list(dict.fromkeys(names))
    addresses = [f"{host}:{port}" for host, port in hosts]
    master, port, node = names[0].strip("[]"), str(hosts[0][1]), str(nodes.index(names[rank]))
    local_rank = str(names[:rank].count(names[rank]))
    return {
        "ORCHESTRATE_RANK": str(rank),
        "ORCHESTRATE_SIZE": str(len(hosts)),
        "ORCHESTRATE_LOCAL_RANK": local_rank,
        "ORCHESTRATE_HOSTS": ",".join(addresses),
        "MASTER_ADDR": master,
        "MASTER_PORT": port,
        "RANK": str(rank),
        "WORLD_SIZE": str(len(hosts)),
        "LOCAL_RANK": local_rank,
        "LOCAL_WORLD_SIZE": str(names.count(names[rank])),
        "GROUP_RANK": node,
        "PET_MASTER_ADDR": master,
        "PET_MASTER_PORT": port,
        "PET_NNODES": str(len(nodes)),
        "PET_NODE_RANK": node,
        "PET_NPROC_PER_NODE": "auto",
        "JAX_COORDINATOR_ADDRESS": addresses[0],
        "JAX_NUM_PROCESSES": str(len(hosts)),
        "JAX_PROCESS_ID": str(rank),
        "KERAS_DISTRIBUTION_JOB_ADDRESSES": ",".join(addresses),
        "KERAS_DISTRIBUTION_NUM_PROCESSES": str(len(hosts)),
        "KERAS_DISTRIBUTION_PROCESS_ID": str(rank),
    }


def tf_config(rank: int, roles: list[tuple[str, int]], addresses: list[str]) -> str:
    """Return TF_CONFIG; an evaluator watches from outside of the cluster."""
    tasks = [(role, index) for role, count in roles for index in range(count)]
    cluster: dict[str, list[str]] = {role: [] for role, _ in roles if role != "evaluator"}
    for (role, _), address in zip(tasks, addresses):
        cluster.get(role, []).append(address)
    return json.dumps({"cluster": cluster, "task": {"type": tasks[rank][0], "index": tasks[rank][1]}})


def meet(task: RankedTask, place: str, job: str, deadline: float) -> list[str]:
    """Let all tasks call rank 0, and return the addresses that it saw; raise RankError at the deadline.

    Rank 0 listens at `place`, HOST:PORT; or on any port, which it writes into the folder `place`.
    """
    file = os.path.join(place, ".orchestrate_rank-" + job) if os.path.isdir(place) else ""
    host, _, port = place.rpartition(":")
    if not file and not port.isdigit():
        raise RankError(f"--meet {place} is neither a folder nor HOST:PORT")
    with contextlib.ExitStack() as stack:
        if task.rank == 0:
            server = stack.enter_context(socket.create_server(("", 0 if file else int(port))))
            word = announce(file, server.getsockname()[1], stack) if file else job
            return gather(server, stack, word, task.size, deadline)
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError, ValueError):
            if file:
                os.listdir(place)  # or NFS remembers for a minute that there was no file
            with open(file or os.devnull) as announcement:
                word, addresses = json.load(announcement) if file else (job, [(host, int(port))])
            for address in addresses:
                with contextlib.suppress(OSError, ValueError):
                    return call(tuple(address), [word, task.rank], deadline)
        time.sleep(0.1)
    raise RankError(f"rank {task.rank} did not meet rank 0 at {place} in time; give all --meet HOST:PORT")


def announce(file: str, port: int, stack: contextlib.ExitStack) -> str:
    """Write where rank 0 listens, until the stack ends; return the word that callers have to know."""
    word, addresses = secrets.token_hex(16), [(socket.gethostname(), port)]
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way_out:
        way_out.connect(("192.0.2.1", 9))  # sends nothing
        addresses.insert(0, (way_out.getsockname()[0], port))
    with tempfile.NamedTemporaryFile("w", dir=os.path.dirname(file), delete=False) as new:
        json.dump([word, addresses], new)
    os.replace(new.name, file)
    stack.callback(os.unlink, file)
    return word


def call(address: tuple[str, int], message: list[object], deadline: float) -> list[str]:
    """Tell rank 0 who calls, and wait until it knows all."""
    with socket.create_connection(address, 5) as peer:
        peer.sendall(json.dumps(message).encode() + b"\n")
        peer.settimeout(max(1, deadline - time.monotonic()))
        return list(map(str, json.loads(peer.makefile().readline())))


def gather(
    server: socket.socket, stack: contextlib.ExitStack, word: str, size: int, deadline: float
) -> list[str]:
    """Take the calls of all other ranks, as rank 0, and answer them."""
    calls: dict[int, socket.socket] = {}
    while len(calls) < size - 1:
        try:
            server.settimeout(max(0.01, deadline - time.monotonic()))
            caller = stack.enter_context(server.accept()[0])
        except socket.timeout:
            absent = ", ".join(str(rank) for rank in range(1, size) if rank not in calls)
            raise RankError(f"rank 0 waited in vain for ranks {absent}; give all --meet HOST:PORT") from None
        caller.settimeout(5)
        with contextlib.suppress(OSError, ValueError, TypeError):
            secret, rank = json.loads(caller.makefile().readline())
            if secret == word and 0 < rank < size:
                calls[rank] = caller
    ours = [caller.getsockname()[0] for caller in calls.values()]
    own = next((address for address in ours if not address.startswith("127.")), "127.0.0.1")
    seen = [calls[rank].getpeername()[0] for rank in range(1, size)]
    hosts = [own, *(own if address.startswith("127.") else address for address in seen)]
    for caller in calls.values():
        caller.sendall(json.dumps(hosts).encode() + b"\n")
    return hosts


if __name__ == "__main__":
    main()
