"""The frameworks that a launch knows, as a table: a row is a module beside this one. Pure.

Another one is a name in model.py, such a module, and its line here.
"""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.frameworks.framework import ALONE, Framework, Standing
from orchestrator.frameworks.jax import JAX
from orchestrator.frameworks.tensorflow import TENSORFLOW
from orchestrator.frameworks.torch import TORCH
from orchestrator.model import FrameworkName

__all__ = ["FRAMEWORKS", "Framework", "Standing", "alone", "variables"]

FRAMEWORKS: Mapping[FrameworkName, Framework] = {
    FrameworkName.TENSORFLOW: TENSORFLOW,
    FrameworkName.TORCH: TORCH,
    FrameworkName.JAX: JAX,
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
    placed = {"TF_CONFIG", *variables(name, ALONE)}
    return {key: value for key, value in env.items() if key not in placed}
