"""Let JAX find out by itself where a task stands, so that `jax.distributed.initialize()` needs no arguments.

Of JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID it reads the first one. For the others it
asks the subclasses of ClusterEnv, one for each kind of cluster, and a subclass is known once it is defined.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict


def changes() -> "Dict[str, Callable[[Any], None]]":
    return {"jax._src.clusters": register, "jax._src.distributed": leave}


def leave(distributed: "Any") -> None:
    """Let a process go that an exception ends: JAX would wait for its peers, which still train, for 300 s."""
    shutdown = distributed.shutdown

    def shut_down() -> None:
        if hasattr(sys, "last_type"):  # set where Python prints an exception that nobody caught
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(1)  # the coordinator's own end would wait, too
        shutdown()

    distributed.shutdown = shut_down


def register(clusters: "Any") -> None:
    kinds = getattr(getattr(clusters, "ClusterEnv", None), "_cluster_types", None)
    if not isinstance(kinds, list):
        return  # another JAX, which may read all three by itself

    class Orchestrate(clusters.ClusterEnv):  # type: ignore[misc]
        name = "orchestrate"

        @classmethod
        def is_env_present(cls) -> bool:
            return "JAX_NUM_PROCESSES" in os.environ and "JAX_PROCESS_ID" in os.environ

        @classmethod
        def get_coordinator_address(cls, *_: "Any", **_named: "Any") -> str:
            return os.environ["JAX_COORDINATOR_ADDRESS"]

        @classmethod
        def get_process_count(cls) -> int:
            return int(os.environ["JAX_NUM_PROCESSES"])

        @classmethod
        def get_process_id(cls) -> int:
            return int(os.environ["JAX_PROCESS_ID"])

    kinds.insert(0, kinds.pop())  # before Slurm and the like, which a task may be inside of
    if any(name.lower() in ("http_proxy", "https_proxy") for name in os.environ):  # JAX warns of any
        os.environ.setdefault("grpc_proxy", "")  # tasks do not look for each other through it
