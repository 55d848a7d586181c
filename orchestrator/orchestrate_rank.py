"""Find a task's rank, size and hosts in whatever started it, tell the frameworks, and become the program.

    srun python orchestrate_rank.py -- python train.py

Rank and size are those of torchrun, of mpirun, of PMIx, of a Slurm step, of a Kubernetes Job or of
ORCHESTRATE_RANK. TF_CONFIG and the variables of torch, JAX and Keras are set. Python 3.8, no packages.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import re
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Iterable, Mapping, NoReturn, Sequence

# Who starts tasks: their rank, and their number; the last two leave that to --hosts or --roles. A launcher
# inside of another one comes first.
ENGINES = (
    ("orchestrate", "ORCHESTRATE_RANK", "ORCHESTRATE_SIZE"),
    ("torchrun", "RANK", "WORLD_SIZE"),
    ("mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
    ("PMIx", "PMIX_RANK", ""),
    ("Kubernetes", "JOB_COMPLETION_INDEX", ""),
)
# The variables that programs read, by contract, and the value of each: one of `values`. An IPv6 address has
# brackets where a program puts ":PORT" after it, and none where the port stays apart.
CONTRACTS = {
    "orchestrate": {
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
    },
    # Options of torchrun, and of `accelerate launch`, which calls it; they replace the variables of torch.
    "torchrun": {
        "PET_MASTER_ADDR": "host",
        "PET_MASTER_PORT": "port",
        "PET_NNODES": "nodes",
        "PET_NODE_RANK": "node",
        "PET_NPROC_PER_NODE": "processes",
    },
    # JAX reads the first one itself; node/hook/site_frameworks.py answers its question for the others.
    "jax": {
        "JAX_COORDINATOR_ADDRESS": "first",
        "JAX_NUM_PROCESSES": "size",
        "JAX_PROCESS_ID": "rank",
    },
    # Of Kubeflow's JAXJob: its programs write f"{COORDINATOR_ADDRESS}:{COORDINATOR_PORT}".
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
    # Rank 0 only hands out trials: set where the program shares a search out, see `shares_search`.
    "keras_tuner": {
        "KERASTUNER_TUNER_ID": "tuner",
        "KERASTUNER_ORACLE_IP": "[host]",
        "KERASTUNER_ORACLE_PORT": "port",
    },
}
SEVERAL = ("dtensor", "keras_tuner")  # one task alone is in a local mode without them
JOB = ("PMIX_NAMESPACE", "OMPI_MCA_orte_precondition_transports", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID")
FILE = ".orchestrate_rank-"
ROLES = {"chief", "worker", "ps", "evaluator"}


def main() -> NoReturn:
    """Read the command line, and become the program."""
    words = sys.argv[1:]
    at = words.index("--") if "--" in words else len(words)
    parser = argparse.ArgumentParser(usage="%(prog)s [options] -- PROGRAM ...", allow_abbrev=False)
    option = parser.add_argument
    option("--roles", default="", metavar="chief=1,worker=2", help="tasks by role, in rank order")
    option("--first", type=int, default=0, help="the rank of what the engine calls 0: of a Kubernetes Job")
    option("--hosts", default="", metavar="NAMES", help="the host of each rank: job-worker-[0-3].job")
    option("--port", type=int, help="of the first task on a machine; others take the next ones")
    option("--meet", metavar="PLACE", help="HOST:PORT of rank 0's machine, or a folder all share")
    option("--wait", type=float, default=60, metavar="SECONDS", help="for all to meet (60)")
    options, program = parser.parse_args(words[:at]), words[at + 1 :]
    try:
        if not program:
            raise ValueError("no program follows --")
        env = {**os.environ, **variables(os.environ, options, program)}
        os.execvpe(program[0], program, env)
    except (ValueError, OSError) as error:
        parser.exit(2, f"orchestrate_rank: {error}\n")


def variables(
    env: Mapping[str, str], options: argparse.Namespace, program: Sequence[str] = ()
) -> dict[str, str]:
    """Return what to set for the program; raise ValueError."""
    roles = [(role, int(count)) for role, count in re.findall(r"(\w+)=(\d+)", options.roles)]
    told = len(expand(options.hosts)) or sum(count for _, count in roles)
    engine, rank, size = find_place(env, told, options.first)
    roles = roles or [("worker", size)]
    if sum(count for _, count in roles) != size or not ROLES.issuperset(role for role, _ in roles):
        raise ValueError(f"--roles {options.roles} are not the roles of {size} tasks")
    port = 2222
    if engine == "srun":  # a node may have several steps
        port = 10_000 + (int(env["SLURM_JOB_ID"]) + int(env["SLURM_STEP_ID"])) % 300 * 64
    hosts = with_ports(find_hosts(env, options, engine, rank, size), options.port or port)
    if len(hosts) != size or rank >= size:
        raise ValueError(f"{engine} says rank {rank} of {size}, for {len(hosts)} hosts")
    made = of_frameworks(rank, hosts, tunes(program))
    if size > 1:
        made["TF_CONFIG"] = tf_config(rank, roles, made["ORCHESTRATE_HOSTS"].split(","))
    kept = made if engine == "torchrun" else ["PET_NPROC_PER_NODE"]
    return {**made, **{name: env[name] for name in kept if name in env}}


def find_place(env: Mapping[str, str], told: int, first: int) -> tuple[str, int, int]:
    """Return the engine, the rank and the number of tasks: `told` where the environment has none."""
    namespace = env.get("PMIX_NAMESPACE", "slurm.")  # else the step of srun is a daemon of theirs
    for engine, rank, size in ENGINES:
        total = int(env.get(size, 0)) if size else told
        if rank in env and total and (engine != "srun" or namespace.startswith("slurm.")):
            return engine, first + int(env[rank]), total
    names = ", ".join(f"{rank} and {size or '--hosts or --roles'}" for _, rank, size in ENGINES)
    raise ValueError(f"nothing sets a rank and how many there are, as srun does: {names}")


def find_hosts(
    env: Mapping[str, str], options: argparse.Namespace, engine: str, rank: int, size: int
) -> list[str]:
    """Return the host of each rank, some with a port; where nobody tells them, the tasks meet."""
    deadline = time.monotonic() + options.wait
    if options.hosts or "ORCHESTRATE_HOSTS" in env:
        hosts = expand(options.hosts or env["ORCHESTRATE_HOSTS"])
        for host, _ in with_ports(hosts, 0) if engine == "Kubernetes" else ():
            await_address(host.strip("[]"), deadline)
        return hosts
    if engine == "srun":
        return of_step(env, rank)
    where = options.meet or os.getcwd()
    if not options.meet and "MASTER_ADDR" in env and "MASTER_PORT" in env:
        where = f"{env['MASTER_ADDR']}:{int(env['MASTER_PORT']) + 1}"  # MASTER_PORT may be torchrun's own
    job = hashlib.sha256("\0".join(env.get(name, "") for name in JOB).encode()).hexdigest()[:16]
    return call(rank, where, job, deadline) if rank else answer(size, where, job, deadline)


def await_address(host: str, deadline: float) -> None:
    """Wait until a name leads somewhere: that of a pod does once it is placed. Raise ValueError."""
    while True:
        with contextlib.suppress(OSError):
            socket.getaddrinfo(host, None)
            return
        if time.monotonic() > deadline:
            raise ValueError(f"{host} has no address, after all of --wait")
        time.sleep(0.5)


def of_step(env: Mapping[str, str], rank: int) -> list[str]:
    """Return the node of each rank of a Slurm step."""
    nodes = expand(env.get("SLURM_STEP_NODELIST", ""))
    runs = re.findall(r"(\d+)(?:\(x(\d+)\))?", env.get("SLURM_STEP_TASKS_PER_NODE", ""))
    counts = [int(count) for count, times in runs for _ in range(int(times or 1))]
    hosts = [node for node, count in zip(nodes, counts) for _ in range(count)]
    here = env.get("SLURMD_NODENAME")
    if here and hosts[rank : rank + 1] != [here]:
        raise ValueError(f"Slurm put rank {rank} on {here}; give srun --distribution=block")
    return hosts


def expand(text: str) -> list[str]:
    """List the names of `n[1-3,07],login`; an IPv6 address in brackets is no range."""
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
    """Give the tasks of a host, as far as they have none, one port after the other."""
    addresses: list[tuple[str, int]] = []
    for name in hosts:
        match = re.fullmatch(r"([^:]+|\[.*\]):([0-9]+)", name)
        seats = sum(host == name for host, _ in addresses)
        addresses.append((match[1], int(match[2])) if match else (name, first + seats))
    return addresses


def values(
    peers: Sequence[tuple[str, int]], rank: int, local: tuple[int, int], node: tuple[int, int]
) -> dict[str, str]:
    """Return the values that CONTRACTS names; `local` and `node` are a rank and a number each."""
    host, port = peers[0][0].strip("[]"), str(peers[0][1])
    bracketed = "[" + host + "]" if ":" in host else host
    addresses = [
        f"[{name}]:{number}" if ":" in name and not name.startswith("[") else f"{name}:{number}"
        for name, number in peers
    ]
    return {
        "rank": str(rank),
        "size": str(len(peers)),
        "local rank": str(local[0]),
        "local size": str(local[1]),
        "node": str(node[0]),
        "nodes": str(node[1]),
        "addresses": ",".join(addresses),
        "first": addresses[0],
        "host": host,
        "[host]": bracketed,
        "port": port,
        "processes": "auto",
        "worker": "worker",
        "tuner": f"tuner{rank - 1}" if rank else "chief",
    }


def of_contracts(names: Iterable[str], known: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of some contracts; those of SEVERAL only for several tasks."""
    chosen = [name for name in names if name not in SEVERAL or known["size"] != "1"]
    return {variable: known[value] for name in chosen for variable, value in CONTRACTS[name].items()}


def of_frameworks(rank: int, hosts: list[tuple[str, int]], tuner: bool = False) -> dict[str, str]:
    """Return the variables of every framework for one of the tasks."""
    names = [host for host, _ in hosts]
    nodes = list(dict.fromkeys(names))
    local = names[:rank].count(names[rank]), names.count(names[rank])
    known = values(hosts, rank, local, (nodes.index(names[rank]), len(nodes)))
    return of_contracts([name for name in CONTRACTS if tuner or name != "keras_tuner"], known)


def tunes(program: Sequence[str]) -> bool:
    """Return whether a program's text shows a search of Keras Tuner that tasks share out."""
    for word in program:
        with contextlib.suppress(OSError, ValueError):
            if word.endswith(".py") and shares_search(Path(word).read_text(encoding="utf-8")):
                return True
    return False


def shares_search(text: str) -> bool:
    """Return whether the text imports Keras Tuner, and no strategy that makes the tasks train as one."""
    code = re.sub(r"(?m)#.*$", "", text)
    imports = re.search(r"(?m)^\s*(?:import\b.*|from\s+)\b(?:keras_tuner|kerastuner)\b", code)
    return bool(imports) and not re.search(r"MultiWorkerMirrored|ParameterServerStrategy|TF_CONFIG", code)


def tf_config(rank: int, roles: list[tuple[str, int]], addresses: list[str]) -> str:
    """Return TF_CONFIG; an evaluator watches from outside of the cluster."""
    tasks = [(role, index) for role, count in roles for index in range(count)]
    cluster: dict[str, list[str]] = {role: [] for role, _ in roles if role != "evaluator"}
    for (role, _), address in zip(tasks, addresses):
        cluster.get(role, []).append(address)
    return json.dumps({"cluster": cluster, "task": {"type": tasks[rank][0], "index": tasks[rank][1]}})


def call(rank: int, where: str, job: str, deadline: float) -> list[str]:
    """Tell rank 0, at HOST:PORT or where its file in a folder says, who calls; return its answer."""
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError, ValueError):  # it is not there yet
            address = where
            if os.path.isdir(where):
                os.listdir(where)  # or NFS remembers for a minute that there was no file
                address = Path(where, FILE + job).read_text()
            host, _, port = address.rpartition(":")
            with socket.create_connection((host.strip("[]"), int(port)), 5) as peer:
                peer.sendall(f"{job} {rank}\n".encode())
                return list(map(str, json.loads(read_line(peer, 1 << 20, deadline))))
        time.sleep(0.1)
    raise ValueError(f"rank {rank} did not meet rank 0 at {where} in time; give all --meet HOST:PORT")


def answer(size: int, where: str, job: str, deadline: float) -> list[str]:
    """Take the calls of all others, as rank 0, and send each the addresses that all called from."""
    calls: dict[int, socket.socket] = {}
    others = set(range(1, size))
    places = threading.BoundedSemaphore(64)  # for callers whose line is read

    def read(caller: socket.socket) -> None:
        """Read who calls: anybody may, so a line is short and has a deadline."""
        with contextlib.suppress(OSError, ValueError):
            word, number = read_line(caller, 100, time.monotonic() + 5).split()
            if word == job and int(number) in others:
                calls[int(number)] = caller
        if caller not in calls.values():
            caller.close()
        places.release()

    folder = os.path.isdir(where)
    with contextlib.ExitStack() as stack:
        stack.callback(close_all, calls)
        port = 0 if folder else int(where.rpartition(":")[2])
        server = stack.enter_context(socket.create_server(("", port)))
        server.settimeout(0.2)
        if folder:
            file = Path(where, FILE + job)
            name = socket.gethostname()
            with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way_out:
                way_out.connect(("192.0.2.1", 9))  # sends nothing
                name = way_out.getsockname()[0]  # which leads here from elsewhere, too
            file.write_text(f"{name}:{server.getsockname()[1]}")
            stack.callback(file.unlink)
        while absent := others - calls.keys():
            if time.monotonic() > deadline:
                raise ValueError(f"rank 0 waited in vain for ranks {absent}; give all --meet HOST:PORT")
            with contextlib.suppress(OSError):  # nobody calls
                caller = server.accept()[0]
                if places.acquire(blocking=False):
                    threading.Thread(target=read, args=(caller,), daemon=True).start()
                else:
                    caller.close()  # one of ours calls again
        ours = [caller.getsockname()[0] for caller in calls.values()]
        own = next((address for address in ours if not address.startswith("127.")), "127.0.0.1")
        seen = [calls[rank].getpeername()[0] for rank in range(1, size)]
        hosts = [own, *(own if address.startswith("127.") else address for address in seen)]
        for caller in calls.values():
            with contextlib.suppress(OSError):  # it has ended, and its engine reports that
                caller.settimeout(5)
                caller.sendall(json.dumps(hosts).encode() + b"\n")
    return hosts


def close_all(calls: dict[int, socket.socket]) -> None:
    for caller in calls.values():
        caller.close()


def read_line(peer: socket.socket, most: int, deadline: float) -> str:
    """Read a line of at most `most` bytes; raise OSError at the deadline, ValueError for anything else."""
    line = b""
    while not line.endswith(b"\n"):
        peer.settimeout(max(0.01, deadline - time.monotonic()))
        data = peer.recv(4096)
        line += data
        if not data or len(line) > most or time.monotonic() > deadline:
            raise ValueError("no line")
    return line.decode()


if __name__ == "__main__":
    main()
