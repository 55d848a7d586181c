"""What TensorFlow's last words mean: one table, from the special to the general. Pure.

Written from what TensorFlow 2.21 printed when it was made to fail in each of these ways; the texts are in
tests/unit/tails.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.events import Kind


@dataclass(frozen=True)
class Rule:
    kind: Kind
    pattern: re.Pattern[str]
    advice: str  # what to try


def _rule(kind: Kind, pattern: str, advice: str) -> Rule:
    return Rule(kind, re.compile(pattern), advice)


# The first that matches holds.
RULES: tuple[Rule, ...] = (
    _rule(
        Kind.EXCEPTION,
        r"PerReplica.*unsupported type|unsupported type.*PerReplica",
        "Keras 3 cannot `fit` on several tasks: install tf_keras and set TF_USE_LEGACY_KERAS=1",
    ),
    _rule(
        Kind.EXCEPTION,
        r"No module named '?tf_keras",
        "install tf_keras, of TensorFlow's own version, beside the training Python",
    ),
    _rule(
        Kind.EXCEPTION,
        r"No module named",
        "install it for the `python` of that host in hosts.toml, or set `setup` in [job]",
    ),
    _rule(
        Kind.PORT,
        r"Could not start gRPC server|Address already in use",
        "its port is taken: orchestrate preflight names the holder; or change `task_port` in hosts.toml",
    ),
    _rule(
        Kind.MISMATCH,
        r"Shape mismatch in the collective|expected type \d+ and data_type",
        "the tasks do not run the same program: model, batch size and steps_per_epoch must be equal on all",
    ),
    _rule(
        Kind.MISMATCH,
        r"that group has size",
        "the tasks disagree about the cluster: each must have the same TF_CONFIG cluster",
    ),
    _rule(
        Kind.NAN,
        r"Detected Infinity or NaN|had (?:Inf and )?NaN values|had Inf values|Invalid loss, terminating",
        "a smaller learning rate, clipped gradients, a look at the data: it computed NaN or infinity",
    ),
    _rule(
        Kind.RESOURCES,
        r"ResourceExhausted|RESOURCE_EXHAUSTED|CUDA_ERROR_OUT_OF_MEMORY|OOM when allocating",
        "a smaller batch, or free the GPU's memory",
    ),
    _rule(
        Kind.OUT_OF_MEMORY,
        r"MemoryError|Cannot allocate memory|bad_alloc",
        "a smaller batch, or a machine with more memory",
    ),
    _rule(
        Kind.DISK,
        r"No space left on device|Disk quota exceeded",
        "free space on that host, or another `workdir` in hosts.toml",
    ),
    _rule(
        Kind.EXCEPTION,
        r"unable to lock file|BlockingIOError",
        "the tasks write the same file: give each its own path, and keep only the chief's",
    ),
    _rule(
        Kind.EXCEPTION,
        r"TPUs? not found|TPU Name",
        "this program wants a TPU; choose a strategy for the hosts' devices",
    ),
    _rule(
        Kind.EXCEPTION, r"KeyError: 'evaluator'", "an evaluator must not build MultiWorkerMirroredStrategy"
    ),
    _rule(
        Kind.INCARNATION,
        r"incarnation",
        "a task was started again alone; the whole run has to be: orchestrate stop, then launch",
    ),
    _rule(
        Kind.TIMEOUT,
        r"Barrier timed out|DeadlineExceededError"
        r"|while calling /tensorflow\.CoordinationService/RegisterTask",
        "the end of the log of the task that is named: it hung on its way to the others, or never began",
    ),
    _rule(
        Kind.MISMATCH,
        r"aren't enough elements|ran out of data",
        "less data than tasks: AutoShardPolicy.DATA, `repeat()`",
    ),
    _rule(
        Kind.PEER,
        r"(?i)socket closed|connection reset|connection refused|broken pipe"
        r"|failed to connect to all addresses|stopped sending heartbeats|heartbeat timeout"
        r"|error received from peer|from remote target /job:|error reported from /job:"
        r"|UnavailableError|AbortedError|CancelledError|coordination service agent",
        "",
    ),
)

# Words about another task: whoever ends with them may only suffer from what happened to that one.
OF_A_PEER = frozenset({Kind.PEER, Kind.TIMEOUT, Kind.INCARNATION})


def classify(lines: Sequence[str]) -> Rule | None:
    """The rule for these last words; None when they say nothing that we know."""
    said = "\n".join(lines)
    return next((rule for rule in RULES if rule.pattern.search(said)), None)


def blames_peer(lines: Sequence[str]) -> bool:
    """Whether any of these words is about another task, whatever else they say."""
    return any(rule.pattern.search(line) for rule in RULES if rule.kind in OF_A_PEER for line in lines)
