"""Names under which a validation is remembered, so that what changed is another name. Pure."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.events import FailureKind
from orchestrator.model import Host, TaskSpec

DAY = 86_400.0  # seconds that a validation counts
_IN_PACKAGES = ("digits", "synthetic")  # data sets that need no file of their own
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


def host_key(host: Host) -> str:
    """The name of a host's memory: the way to it, so that no other host can speak for it."""
    return _digest([host.ssh, host.user, host.port, host.ssh_config, host.via, host.state])


def subject_key(
    spec: TaskSpec, tree: str, state: str, secrets: Mapping[str, str], key: bytes | None
) -> str | None:
    """Digest what is validated: program, options, environment and host; None when that cannot be told.

    `tree` is the digest of the program, `state` the host's own. Values of secrets take part by a digest that
    needs the user's `key`.
    """
    if secrets and key is None:
        return None
    sealed = hmac.new(key or b"", _json(sorted(secrets.items())), hashlib.sha256).hexdigest()
    return _digest([spec.argv, sorted(spec.env.items()), spec.setup, tree, state, sealed])


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
    """The value of an option, as argparse sees it: the last one counts."""
    value = default
    for number, word in enumerate(options):
        if word == name and number + 1 < len(options):
            value = options[number + 1]
        elif word.startswith(f"{name}="):
            value = word.partition("=")[2]
    return value


def _digest(parts: Any) -> str:
    return hashlib.sha256(_json(parts)).hexdigest()[:32]


def _json(parts: Any) -> bytes:
    return json.dumps(parts).encode("utf-8", "surrogatepass")
