"""The supported frameworks as a table, and the variables that their programs read. Pure.

A new one is a name in model.py, a section here, and a row in the table.
"""

import re
from collections.abc import Mapping
from typing import TypeVar

from orchestrator import orchestrate_rank
from orchestrator.model import OUTSIDE, FrameworkName
from orchestrator.value import Value

V = TypeVar("V")


class Framework(Value):
    title: str
    imports: frozenset[str] = frozenset()  # modules whose import shows it
    # Names in a program that trains on several tasks with it, for programs that import several frameworks;
    # and in commands that start such a program.
    spreads: re.Pattern[str] = re.compile(r"(?!)")
    starts: re.Pattern[str] = re.compile(r"(?!)")
    has_config: bool = False  # its tasks have roles and a TF_CONFIG
    contracts: tuple[str, ...] = ()  # names of the variables that its programs read, in orchestrate_rank.py
    package: str = ""  # the required distribution
    installs: tuple[str, ...] = ()  # packages of an environment for it; () if [env] has them by default
    packages: Mapping[str, str] = {}  # distributions whose versions must match across tasks -> modules
    # Python code to run after importing those: it may `write` the number of `gpus`, and the build
    probe: str = ""
    validation: tuple[str, ...] = ()  # a module and its options that trains on a single host
    # A task sees all devices of its host and uses the one of its local rank; otherwise it sees only its own.
    shows_all: bool = False
    gloo: bool = False  # its tasks may exchange data through gloo, which uses the machine's own host name
    interfaces: tuple[str, ...] = ()  # variables that select the interface of the task's address instead


# --- TensorFlow: its TF_CONFIG, which has roles, is built in planning/plan.py ---

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
    has_config=True,
    starts=re.compile(r"\bRscript\b|(?<!\S)\S+\.[Rr](?=\s|$)"),  # R programs are not read
    contracts=("dtensor",),
    spreads=re.compile(
        r"dtensor|tf\.distribute|MultiWorkerMirrored|MirroredStrategy|ParameterServer|TF_CONFIG"
    ),
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


_TORCH = Framework(
    "PyTorch",
    imports=frozenset(
        {"torch", "torchvision", "lightning", "pytorch_lightning", "accelerate", "deepspeed", "transformers"}
    ),
    package="torch",
    installs=("torch", "numpy"),
    packages={"torch": "torch", "keras": "keras"},
    probe=_TORCH_PROBE,
    validation=("worker_entry.alone", "torch"),
    spreads=re.compile(r"torch\.distributed|DistributedDataParallel|lightning|accelerate|deepspeed"),
    starts=re.compile(
        r"(?:^|[/\s])(?:torchrun|accelerate\s+launch)(?:\s|$)|\btorch\.distributed\.(?:run|launch)\b"
    ),
    contracts=("torch", "torchrun", "torchrun processes"),
    shows_all=True,
    gloo=True,
    interfaces=("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME"),
)


# --- JAX, and Keras 3 on it ---

_JAX_PROBE = """
if gpus and "jax" in sys.modules:
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    import jax
    on = jax.default_backend() == "gpu"
    write({"gpus": jax.local_device_count() if on else 0, "built": jax.devices()[0].client.platform_version})
"""


_JAX = Framework(
    "JAX",
    imports=frozenset({"jax", "flax", "optax", "equinox", "haiku"}),
    package="jax",
    installs=("jax", "numpy"),
    packages={"jax": "jax", "jaxlib": "jaxlib", "keras": "keras"},
    probe=_JAX_PROBE,
    validation=("worker_entry.alone", "jax"),
    spreads=re.compile(r"jax\.distributed|keras\.distribution|shard_map|NamedSharding|pmap"),
    contracts=("jax", "kubeflow", "keras"),
    gloo=True,
)


FRAMEWORKS: Mapping[FrameworkName, Framework] = {
    FrameworkName.TENSORFLOW: _TENSORFLOW,
    FrameworkName.TORCH: _TORCH,
    FrameworkName.JAX: _JAX,
    FrameworkName.NONE: Framework("no framework"),
    # No import shows one: what the program starts may still be TensorFlow's.
    FrameworkName.AUTO: Framework("no framework detected", has_config=True, contracts=_TENSORFLOW.contracts),
}


def variables(
    name: FrameworkName, place: Mapping[str, str], tuner: bool = False, standalone: bool = False
) -> dict[str, str]:
    """Return the variables for a task: our own names, its framework's, and Keras Tuner's.

    `place` is its position among all tasks (`orchestrate_rank.values`). `standalone` omits the variables that
    override torchrun's option of that name.
    """
    contracts = ("orchestrate", *FRAMEWORKS[name].contracts, *["keras_tuner"] * tuner)
    chosen = contracts[:1] if place["role"] in OUTSIDE else contracts
    chosen = tuple(contract for contract in chosen if not (standalone and contract == "torchrun"))
    return orchestrate_rank.of_contracts(chosen, place)


def alone(name: FrameworkName, env: Mapping[str, V]) -> dict[str, V]:
    """Return the environment without a task's rank, for commands that run on each host separately."""
    contracts = ("orchestrate", *FRAMEWORKS[name].contracts, "keras_tuner")
    placed = {"TF_CONFIG"}.union(*(orchestrate_rank.CONTRACTS[contract] for contract in contracts))
    return {key: value for key, value in env.items() if key not in placed}
