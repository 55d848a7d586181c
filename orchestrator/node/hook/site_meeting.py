"""Connect a task's Python with those of the other tasks, as the plan requires (docs/task.md).

ORCHESTRATE_REPORT      TensorFlow's tasks wait until the servers that they need listen
JAX_PROCESS_ID          `jax.distributed.initialize()` needs no arguments, and waits for the coordinator
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List

_ENDING = 1.0  # seconds that a program has, at most, from sys.exit() to what it registered for its end


def changes() -> "Dict[str, Callable[[Any], None]]":
    made: "Dict[str, Callable[[Any], None]]" = {}
    if "JAX_PROCESS_ID" in os.environ and "ORCHESTRATE_STACKS" in os.environ:  # off together with the stacks
        made.update({"jax._src.clusters": register, "jax._src.distributed": meet})
    if os.environ.get("ORCHESTRATE_AUTO_SHARD") and "ORCHESTRATE_REPORT" in os.environ:
        made["tensorflow.python.eager.context"] = await_servers
    return made


def await_servers(module: "Any") -> None:
    """Connect a task once the others listen: TensorFlow (2.21) retries a refused connection after 1 s.

    Workers need the server of their leader, and the coordinator of parameter servers needs all servers.
    """
    context = module.Context
    enable, set_all = context.enable_collective_ops, context.set_server_def

    def enable_collective_ops(self: "Any", server_def: "Any") -> None:
        try:
            leader = self.coordination_service.service_leader  # such as /job:worker/replica:0/task:0
            place = dict(part.split(":") for part in leader.strip("/").split("/"))
            _await(_peers(server_def, [(place["job"], int(place["task"]))]))
        except (AttributeError, LookupError, ValueError):
            pass  # another TensorFlow
        enable(self, server_def)

    def set_server_def(self: "Any", server_def: "Any", *more: "Any", **named: "Any") -> None:
        _await(_peers(server_def) if server_def else [])  # TensorFlow refuses None
        set_all(self, server_def, *more, **named)

    context.enable_collective_ops, context.set_server_def = enable_collective_ops, set_server_def


def meet(distributed: "Any") -> None:
    """Let a process join JAX's cluster once the coordinator listens, and end at once after a failure.

    JAX itself retries a refused connection after 1 s, and waits 300 s for peers that are still training.
    """
    import threading
    import time

    shutdown, leave = distributed.shutdown, sys.exit
    runtime: "Any" = getattr(distributed, "_jax", None)
    get_client: "Any" = getattr(runtime, "get_distributed_runtime_client", None)
    last: "List[Any]" = [0, 0.0]  # the status given to sys.exit(), and when

    def exit_with(status: "Any" = None) -> None:
        if threading.current_thread() is threading.main_thread():  # another one ends itself alone
            last[:] = status, time.monotonic()
        leave(status)

    def shut_down() -> None:
        status = last[0] if time.monotonic() - last[1] < _ENDING else 0  # earlier: the program caught it
        if hasattr(sys, "last_type"):  # set where Python prints an uncaught exception
            status = 1
        if status:
            sys.stdout.flush()
            sys.stderr.flush()
            # The coordinator's own shutdown would wait too.
            os._exit(status if isinstance(status, int) else 1)
        shutdown()

    def get_client_later(address: str, process_id: int, *more: "Any", **named: "Any") -> "Any":
        _await([address] if process_id else [])
        return get_client(address, process_id, *more, **named)

    distributed.shutdown, sys.exit = shut_down, exit_with  # type: ignore[assignment]
    if get_client:
        runtime.get_distributed_runtime_client = get_client_later


def register(clusters: "Any") -> None:
    """Provide the task's rank: of the three variables, JAX itself reads only the coordinator's address.

    For the others it asks the subclasses of ClusterEnv, one for each kind of cluster.
    """
    kinds = getattr(getattr(clusters, "ClusterEnv", None), "_cluster_types", None)
    if not isinstance(kinds, list):
        return  # another JAX, which may read all three itself
    place = {
        "name": "orchestrate",
        "is_env_present": classmethod(lambda _: "JAX_NUM_PROCESSES" in os.environ),
        "get_coordinator_address": classmethod(lambda *_, **__: os.environ["JAX_COORDINATOR_ADDRESS"]),
        "get_process_count": classmethod(lambda _: int(os.environ["JAX_NUM_PROCESSES"])),
        "get_process_id": classmethod(lambda _: int(os.environ["JAX_PROCESS_ID"])),
    }
    type("Orchestrate", (clusters.ClusterEnv,), place)  # defining a subclass registers it
    kinds.insert(0, kinds.pop())  # before Slurm and others, in which a task may run
    if any(name.lower() in ("http_proxy", "https_proxy") for name in os.environ):  # JAX warns about any
        os.environ.setdefault("grpc_proxy", "")  # tasks do not find each other through it


def _peers(server_def: "Any", chosen: "Any" = None) -> "List[str]":
    """Return the addresses of all tasks, or of the chosen ones, without this one."""
    tasks = {(job.name, index): job.tasks[index] for job in server_def.cluster.job for index in job.tasks}
    own = server_def.job_name, server_def.task_index
    return [tasks[place] for place in chosen or tasks if place != own]


def _await(addresses: "List[str]") -> None:
    """Return when all accept connections, or after 30 s; one that does not answer is not waited for."""
    import socket
    import time

    deadline, pause, waiting = time.monotonic() + 30, 0.01, list(addresses)
    while waiting and time.monotonic() < deadline:
        host, _, port = waiting[0].rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), 1).close()
            del waiting[0]
        except ConnectionRefusedError:
            time.sleep(pause)
            pause = min(2 * pause, 0.1)
        except (OSError, ValueError):
            del waiting[0]
