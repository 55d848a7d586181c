"""What the checks look at: one host's answers, and what the job needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.events import CheckReported, Level
from orchestrator.model import Host

# The distributions under which TensorFlow is installed, and what is compared beside it.
TENSORFLOW = (
    "tensorflow",
    "tensorflow-cpu",
    "tensorflow-gpu",
    "tensorflow-rocm",
    "intel-tensorflow",
    "tf-nightly",
)
PACKAGES = (*TENSORFLOW, "tf-keras", "keras", "numpy")


@dataclass(frozen=True)
class Needs:
    tensorflow: bool  # the job is our program, a Python or an R script: without TensorFlow it cannot run
    legacy_keras: bool  # TF_USE_LEGACY_KERAS is set: tf_keras has to be there
    r: bool = False  # the job is an R script: R and reticulate have to be there


@dataclass(frozen=True)
class Seen:
    """One host and its answers to `hello`, `facts` (asked for PACKAGES) and `listen`."""

    host: Host
    ports: tuple[int, ...]  # of its tasks
    hello: Mapping[str, Any]
    facts: Mapping[str, Any]
    listen: Mapping[str, Any]
    clock: float = 0.0  # seconds its clock is ahead of ours

    @property
    def name(self) -> str:
        return self.host.name

    @property
    def machine(self) -> tuple[object, object]:
        """Two hosts with the same one share their ports."""
        return self.hello["boot_id"], self.hello["netns"]

    @property
    def tensorflow(self) -> str | None:
        """Its version, whatever its distribution is called."""
        return next((found for name in TENSORFLOW if (found := self.version(name))), None)

    def version(self, package: str) -> str | None:
        found = self.facts["packages"].get(package)
        return None if found is None else str(found)

    def says(self, check: str, level: Level, found: str, why: str = "", hint: str = "") -> CheckReported:
        return CheckReported(self.name, check, level, found, why, hint)


def release(version: str) -> tuple[int, ...]:
    """(2, 21) of "2.21.0rc1", to be compared."""
    return tuple(int(part) if part.isdigit() else 0 for part in minor(version))


def minor(version: str) -> tuple[str, ...]:
    """`2.21` of `2.21.0`: what has to be equal, where the rest may differ."""
    return tuple(version.split(".")[:2])
