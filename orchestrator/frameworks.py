"""The frameworks that a launch knows, as a table, and a task's place among all of a run. Pure.

Another one is a name in model.py, a section here, and its line in the table.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from msgspec import Struct

from orchestrator.model import FrameworkName
from orchestrator.text import endpoint


class Standing(Struct, frozen=True):
    """One task among all: the numbers that every framework counts, under names of its own."""

    rank: int
    peers: tuple[tuple[str, int], ...]  # address and task port of every task, in the order of their ranks
    local_rank: int  # among the tasks of its host
    local_size: int
    host_rank: int  # of its host among the hosts
    hosts: int
    devices: tuple[str, ...] | None  # of its host; None: nobody has said

    @property
    def size(self) -> int:
        return len(self.peers)

    @property
    def addresses(self) -> str:
        return ",".join(endpoint(address, port) for address, port in self.peers)


_ALONE = Standing(0, (("localhost", 1),), 0, 1, 0, 1, None)


class Framework(Struct, frozen=True):
    title: str
    imports: frozenset[str] = frozenset()  # modules that show it
    # Words of a program that trains with it on several tasks, where it imports several frameworks; and of a
    # command that starts such a program.
    spreads: re.Pattern[str] = re.compile(r"(?!)")
    starts: re.Pattern[str] = re.compile(r"(?!)")
    variables: Callable[[Standing], Mapping[str, str]] = lambda _: {}
    package: str = ""  # the distribution that it cannot do without
    packages: Mapping[str, str] = {}  # distributions that tasks agree on -> modules
    # Python for a process that has imported those: it may `write` the number of `gpus`, and its build.
    probe: str = ""
    validation: tuple[str, ...] = ()  # a module, and its options, that trains on a host alone
    # A task is shown all devices of its host, and takes the one of its local rank; else it is shown its own.
    shows_all: bool = False


# --- TensorFlow: its TF_CONFIG, which has roles, is made in planning/plan.py ---

_TENSORFLOW_PROBE = """
if gpus and "tensorflow" in sys.modules:
    import tensorflow
    cuda = tensorflow.sysconfig.get_build_info().get("cuda_version", "none")
    write({"gpus": len(tensorflow.config.list_physical_devices("GPU")), "built": "CUDA " + str(cuda)})
"""

_TENSORFLOW = Framework(
    "TensorFlow",
    imports=frozenset({"tensorflow", "tf_keras"}),
    package="tensorflow",
    packages={
        "protobuf": "google.protobuf",
        "tensorflow": "tensorflow",
        "tf-keras": "tf_keras",
        "keras": "keras",
        "tensorflow-datasets": "tensorflow_datasets",
    },
    probe=_TENSORFLOW_PROBE,
    validation=("worker_entry", "--validate"),
    spreads=re.compile(r"tf\.distribute|MultiWorkerMirrored|MirroredStrategy|ParameterServer|TF_CONFIG"),
)


# --- PyTorch: `init_method="env://"` for a task per GPU, and torchrun for a task per host ---

_TORCH_PROBE = """
if "torch" in sys.modules:
    import torch, torch.distributed as group
    there = group.is_available()
    nccl = there and torch.version.cuda and group.is_nccl_available()
    parts = ["CUDA " + torch.version.cuda] if torch.version.cuda else []
    parts += ["NCCL " + ".".join(map(str, torch.cuda.nccl.version()))] if nccl else []
    parts += ["gloo"] if there and group.is_gloo_available() else []
    write({"gpus": torch.cuda.device_count() if gpus else None, "built": ", ".join(parts) or "no backend"})
"""


def _of_torch(place: Standing) -> dict[str, str]:
    address, port = place.peers[0]
    processes = "auto" if place.devices is None else str(max(1, len(place.devices)))
    return {
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
        "RANK": str(place.rank),
        "WORLD_SIZE": str(place.size),
        "LOCAL_RANK": str(place.local_rank),
        "LOCAL_WORLD_SIZE": str(place.local_size),
        "GROUP_RANK": str(place.host_rank),
        # Options of torchrun that its command line does not have; it replaces the variables above.
        "PET_MASTER_ADDR": address,
        "PET_MASTER_PORT": str(port),
        "PET_NNODES": str(place.hosts),
        "PET_NODE_RANK": str(place.host_rank),
        "PET_NPROC_PER_NODE": processes,
    }


_TORCH = Framework(
    "PyTorch",
    imports=frozenset(
        {"torch", "torchvision", "lightning", "pytorch_lightning", "accelerate", "deepspeed", "transformers"}
    ),
    package="torch",
    packages={"torch": "torch", "keras": "keras"},
    probe=_TORCH_PROBE,
    validation=("worker_entry.alone", "torch"),
    spreads=re.compile(r"torch\.distributed|DistributedDataParallel|lightning|accelerate|deepspeed"),
    starts=re.compile(r"(?:^|[/\s])torchrun(?:\s|$)|\btorch\.distributed\.(?:run|launch)\b"),
    variables=_of_torch,
    shows_all=True,
)


# --- JAX, and Keras 3 on it ---

_JAX_PROBE = """
if gpus and "jax" in sys.modules:
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    import jax
    on = jax.default_backend() == "gpu"
    write({"gpus": jax.local_device_count() if on else 0, "built": jax.devices()[0].client.platform_version})
"""


def _of_jax(place: Standing) -> dict[str, str]:
    return {
        # JAX reads the first one itself; node/hook/site_frameworks.py answers its question for the others.
        "JAX_COORDINATOR_ADDRESS": place.addresses.partition(",")[0],
        "JAX_NUM_PROCESSES": str(place.size),
        "JAX_PROCESS_ID": str(place.rank),
        "KERAS_DISTRIBUTION_JOB_ADDRESSES": place.addresses,
        "KERAS_DISTRIBUTION_NUM_PROCESSES": str(place.size),
        "KERAS_DISTRIBUTION_PROCESS_ID": str(place.rank),
    }


_JAX = Framework(
    "JAX",
    imports=frozenset({"jax", "flax", "optax", "equinox", "haiku"}),
    package="jax",
    packages={"jax": "jax", "jaxlib": "jaxlib", "keras": "keras"},
    probe=_JAX_PROBE,
    validation=("worker_entry.alone", "jax"),
    spreads=re.compile(r"jax\.distributed|keras\.distribution|shard_map|NamedSharding|pmap"),
    variables=_of_jax,
)


FRAMEWORKS: Mapping[FrameworkName, Framework] = {
    FrameworkName.TENSORFLOW: _TENSORFLOW,
    FrameworkName.TORCH: _TORCH,
    FrameworkName.JAX: _JAX,
    FrameworkName.NONE: Framework("no framework"),
}


def variables(name: FrameworkName, place: Standing) -> dict[str, str]:
    """Return what tells a task where it stands: names of our own, whatever it is, and its framework's."""
    own = {
        "ORCHESTRATE_RANK": str(place.rank),
        "ORCHESTRATE_SIZE": str(place.size),
        "ORCHESTRATE_LOCAL_RANK": str(place.local_rank),
        "ORCHESTRATE_HOSTS": place.addresses,
    }
    return {**own, **FRAMEWORKS[name].variables(place)}


def alone(name: FrameworkName, env: Mapping[str, str]) -> dict[str, str]:
    """Take a task's place away from its environment: for what runs on each host by itself."""
    placed = {"TF_CONFIG", *variables(name, _ALONE)}
    return {key: value for key, value in env.items() if key not in placed}
