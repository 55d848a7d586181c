"""Let a task's Python connect to those of the other tasks, as the plan requires (docs/task.md).

ORCHESTRATE_REPORT      TensorFlow's tasks wait until the servers that they need listen
JAX_PROCESS_ID          `jax.distributed.initialize()` needs no arguments, and waits for the coordinator
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List

_exits: "List[Any]" = []  # the status of the SystemExit that ended the program


def changes() -> "Dict[str, Callable[[Any], None]]":
    made: "Dict[str, Callable[[Any], None]]" = {}
    if "JAX_PROCESS_ID" in os.environ and "ORCHESTRATE_STACKS" in os.environ:  # off together with the stacks
        made.update({"jax._src.clusters": register, "jax._src.distributed": meet})
        note_exits()
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


def note_exits() -> None:
    """Record the status of the SystemExit that ends the program, whoever raises it.

    Nothing catches that exception, so Python destroys it outside all frames, before it calls functions
    registered with `atexit`.
    """
    import atexit
    import builtins
    import threading

    main = threading.main_thread()  # in another thread, SystemExit ends only that thread

    class Exit(SystemExit):
        def __del__(self) -> None:
            if threading.current_thread() is main and sys._getframe().f_back is None:  # noqa: SLF001
                _exits.append(self.code)

    def leave(status: "Any" = None) -> None:
        raise Exit(*() if status is None else (status,))

    Exit.__name__, Exit.__qualname__, Exit.__module__ = "SystemExit", "SystemExit", "builtins"
    builtins.SystemExit, sys.exit = Exit, leave  # type: ignore[misc, assignment]
    atexit.register(end)  # runs last


def failure() -> int:
    """Return the status with which the program ends; 0 while it runs."""
    status = 1 if hasattr(sys, "last_type") else (_exits or [0])[0]  # set where Python prints an exception
    return status if isinstance(status, int) else int(status is not None)


def end() -> None:
    """End a failed JAX process at once: its shutdown would wait for the other tasks."""
    distributed: "Any" = sys.modules.get("jax._src.distributed")
    if distributed and distributed.global_state.client and failure():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(failure())


def meet(distributed: "Any") -> None:
    """Let a process join JAX's cluster once the coordinator listens, and end at once if it fails.

    JAX itself retries a refused connection after 1 s, and waits 300 s for peers that are still training.
    """
    shutdown = distributed.shutdown
    runtime: "Any" = getattr(distributed, "_jax", None)
    get_client: "Any" = getattr(runtime, "get_distributed_runtime_client", None)

    def shut_down() -> None:
        # With an exception in flight, as in `finally`, the program may fail. JAX repeats the call at its end.
        if not failure() and sys.exc_info()[0] is None:
            shutdown()

    def get_client_later(address: str, process_id: int, *more: "Any", **named: "Any") -> "Any":
        _await([address] if process_id else [])
        return get_client(address, process_id, *more, **named)

    distributed.shutdown = shut_down
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
    """Return the addresses of all tasks, or of chosen ones, except this task's."""
    tasks = {(job.name, index): job.tasks[index] for job in server_def.cluster.job for index in job.tasks}
    own = server_def.job_name, server_def.task_index
    return [tasks[place] for place in chosen or tasks if place != own]


def _await(addresses: "List[str]") -> None:
    """Wait until all accept connections, at most 30 s; an address that does not answer is skipped."""
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
