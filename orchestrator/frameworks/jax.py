"""JAX, and Keras 3 on it: the coordinator's address, how many processes there are, and which one it is."""

from __future__ import annotations

import re

from orchestrator.frameworks.framework import Framework, Standing

_PROBE = """
if gpus and "jax" in sys.modules:
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    import jax
    on = jax.default_backend() == "gpu"
    write({"gpus": jax.local_device_count() if on else 0, "built": jax.devices()[0].client.platform_version})
"""


def _variables(standing: Standing) -> dict[str, str]:
    return {
        # JAX reads the first one itself; node/hook/site_frameworks.py answers its question for the others.
        "JAX_COORDINATOR_ADDRESS": standing.addresses.partition(",")[0],
        "JAX_NUM_PROCESSES": str(standing.size),
        "JAX_PROCESS_ID": str(standing.rank),
        "KERAS_DISTRIBUTION_JOB_ADDRESSES": standing.addresses,
        "KERAS_DISTRIBUTION_NUM_PROCESSES": str(standing.size),
        "KERAS_DISTRIBUTION_PROCESS_ID": str(standing.rank),
    }


JAX = Framework(
    "JAX",
    imports=frozenset({"jax", "flax", "optax", "equinox", "haiku"}),
    package="jax",
    packages={"jax": "jax", "jaxlib": "jaxlib", "keras": "keras"},
    probe=_PROBE,
    validation=("worker_entry.alone", "jax"),
    spreads=re.compile(r"jax\.distributed|keras\.distribution|shard_map|NamedSharding|pmap"),
    variables=_variables,
)
