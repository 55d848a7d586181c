"""Whether a host that was validated once is validated again: what is compared, and the decision. Pure."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.events import FailureKind
from orchestrator.model import Host, TaskSpec
from orchestrator.run.speeds import Sample

DAY = 86_400.0  # seconds that a validation counts
_IN_PACKAGES = ("digits", "synthetic")  # data sets that need no file of their own
_VERSION = 1  # of what is compared
OF_MACHINES = frozenset(  # failures after which a machine has to prove again that it can train
    {
        FailureKind.SIGNAL,
        FailureKind.OUT_OF_MEMORY,
        FailureKind.RESOURCES,
        FailureKind.DISK,
        FailureKind.PEER,
        FailureKind.HANG,
        FailureKind.HOST_LOST,
        FailureKind.LOST,
    }
)


@dataclass(frozen=True)
class Validation:
    """A host that trained alone: when, by the controller's clock, and in which state it was."""

    at: float  # seconds since the epoch
    state: Mapping[str, str]  # part -> digest, as the node told it
    speed: Sample | None = None  # as it was measured then


@dataclass(frozen=True)
class ValidationDecision:
    """Train again or not; `changed` names the parts because of which an earlier validation is void."""

    again: bool
    changed: tuple[str, ...] = ()


def decide(last: Validation | None, state: Mapping[str, str], now: float) -> ValidationDecision:
    """Whatever is not known to be as it was is validated."""
    if last is None or not 0 <= now - last.at < DAY:
        return ValidationDecision(again=True)
    parts = sorted({*last.state, *state})
    changed = tuple(part for part in parts if last.state.get(part) != state.get(part))
    return ValidationDecision(again=bool(changed or not state), changed=changed)


def settled(before: Mapping[str, str], after: Mapping[str, str]) -> bool:
    """Whether a host that was validated in between is the same but for data, which it may have fetched."""
    return {**before, "data": ""} == {**after, "data": ""}


def host_key(host: Host) -> str:
    """The name of a host's memory: the way to it, so that no other host can speak for it."""
    return _digest([host.ssh, host.user, host.port, host.ssh_config, host.state])


def subject_key(spec: TaskSpec, tree: str, secrets: Mapping[str, str], key: bytes | None) -> str | None:
    """The name of what was validated: program, options and environment; None when that cannot be told.

    `tree` is the digest of the program. Values of secrets take part by a digest that needs the user's `key`.
    """
    if secrets and key is None:
        return None
    text = _json(sorted(secrets.items()))
    sealed = hmac.new(key or b"", text, hashlib.sha256).hexdigest()
    return _digest([_VERSION, spec.argv, sorted(spec.env.items()), spec.setup, tree, sealed])


def data_of(options: Sequence[str]) -> tuple[str, ...] | None:
    """The files and folders that worker_entry reads with these options, as a node's shell would write them.

    None when they are relative: where they lie is known there alone.
    """
    dataset = _value(options, "--dataset", "mnist")
    if dataset in _IN_PACKAGES:
        return ()
    if dataset.startswith(("/", ".", "~")) or ".tfrecord" in dataset:
        path = dataset
    else:
        folder = _value(options, "--data-dir", "$TFDS_DATA_DIR")
        path = f"{folder}/{dataset.partition('/')[0].partition(':')[0]}"
    return (path,) if path.startswith(("/", "~", "$TFDS_DATA_DIR/")) else None


def _value(options: Sequence[str], name: str, default: str) -> str:
    """What an option is, as argparse sees it: the last one counts."""
    found = default
    for number, word in enumerate(options):
        if word == name and number + 1 < len(options):
            found = options[number + 1]
        elif word.startswith(f"{name}="):
            found = word.partition("=")[2]
    return found


def _digest(what: Any) -> str:
    return hashlib.sha256(_json(what)).hexdigest()[:32]


def _json(what: Any) -> bytes:
    return json.dumps(what).encode("utf-8", "surrogatepass")
