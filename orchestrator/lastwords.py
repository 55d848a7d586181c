"""What the last lines of a task say: the exception, whether a peer is to blame, and what helps. Pure.

Written from what TensorFlow 2.21 prints when a task is killed, raises, freezes, or is configured unlike the
others. One failing task makes its peers fail with words about *it*: those are consequences.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

LONGEST = 240  # characters of an exception that are repeated in one line

# The last line of a traceback: "ValueError: ...", "numpy.linalg.LinAlgError: ...", "SystemExit: 3".
_EXCEPTION = re.compile(
    r"\s{0,4}((?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Timeout)\b)(:.*|$)"
)
_NOISE = re.compile(
    r"\{\{(?:function_)?node [^}]*\}\}\s*|Collective ops is aborted by: "
    r"|^tensorflow\.python\.framework\.errors_impl\."
)

_OF_A_PEER = re.compile(
    r"socket closed|connection reset|connection refused|broken pipe|failed to connect to all addresses"
    r"|stopped sending heartbeats|heartbeat timeout|error received from peer|from remote target /job:"
    r"|error reported from /job:|different incarnation|incarnation (?:doesn't|does not) match"
    r"|UnavailableError|AbortedError|CancelledError|coordination service agent",
    re.IGNORECASE,
)
_PEER = re.compile(r"/job:(chief|worker|ps|evaluator)(?:/replica:\d+)?/task:(\d+)")
_ACCUSED = re.compile(
    r"remote target (/job:\S+)|error reported from (/job:\S+)|^\s*(/job:\S+)$", re.IGNORECASE
)

# The first that matches is what to try; from the special to the general.
_HINTS: tuple[tuple[str, str], ...] = (
    (
        r"PerReplica.*unsupported type|unsupported type.*PerReplica",
        "Keras 3 cannot `fit` on several tasks: install tf_keras and set TF_USE_LEGACY_KERAS=1",
    ),
    (
        r"No module named '?tf_keras",
        "install tf_keras, of TensorFlow's own version, beside the training Python",
    ),
    (r"No module named", "install it for the `python` of that host in hosts.toml, or set `setup` in [job]"),
    (
        r"Could not start gRPC server|Address already in use",
        "its port is taken: orchestrate preflight names the holder; or change `task_port` in hosts.toml",
    ),
    (
        r"Shape mismatch in the collective|expected type \d+ and data_type",
        "the tasks do not run the same program: model, batch size and steps_per_epoch must be equal on all",
    ),
    (
        r"that group has size",
        "the tasks disagree about the cluster: each must have the same TF_CONFIG cluster",
    ),
    (
        r"ResourceExhausted|CUDA_ERROR_OUT_OF_MEMORY|OOM when allocating",
        "a smaller batch, or free the GPU's memory",
    ),
    (r"MemoryError|Cannot allocate memory|bad_alloc", "a smaller batch, or a machine with more memory"),
    (
        r"No space left on device|Disk quota exceeded",
        "free space on that host, or another `workdir` in hosts.toml",
    ),
    (
        r"unable to lock file|BlockingIOError",
        "the tasks write the same file: give each its own path, and keep only the chief's",
    ),
    (r"TPUs? not found|TPU Name", "this program wants a TPU; choose a strategy for the hosts' devices"),
    (r"KeyError: 'evaluator'", "an evaluator must not build MultiWorkerMirroredStrategy"),
    (
        r"incarnation",
        "a task was started again alone; the whole run has to be: orchestrate stop, then launch",
    ),
    (r"aren't enough elements|ran out of data", "less data than tasks: AutoShardPolicy.DATA, `repeat()`"),
)


def exception(lines: Sequence[str]) -> str:
    """The exception that ended it, in one line without TensorFlow's decoration; "" when there is none."""
    words = _final(lines)
    match = _EXCEPTION.match(words[0]) if words else None
    if match is None:
        return next((_short(line) for line in words if "Collective ops is aborted by" in line), "")
    if match[2].strip().endswith("Graph execution error:"):
        reason = next((line for line in words[1:] if "Collective ops is aborted by" in line), "")
        return _short(f"{match[1]}: {reason}" if reason else words[0])
    return _short(words[0])


def blames_peer(lines: Sequence[str]) -> bool:
    """Whether its last words are about another task."""
    return any(_OF_A_PEER.search(line) for line in _final(lines))


def accused(lines: Sequence[str]) -> str:
    """The task its last words are about, as `worker/1`; "" when none is named."""
    for line in _final(lines):
        found = _ACCUSED.search(line)
        named = _PEER.search(next(filter(None, found.groups()))) if found else None
        if named:
            return f"{named[1]}/{named[2]}"
    return ""


def hint(lines: Sequence[str]) -> str:
    """What to try for what the last words say; "" when we know nothing better than to read them."""
    said = "\n".join(_final(lines))
    return next((advice for pattern, advice in _HINTS if re.search(pattern, said)), "")


def _final(lines: Sequence[str]) -> Sequence[str]:
    """From the last exception's line on; all of them when none is seen."""
    found = [place for place, line in enumerate(lines) if _EXCEPTION.match(line)]
    return lines[found[-1] :] if found else lines


def _short(line: str) -> str:
    text = _NOISE.sub("", line.strip())
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "\u2026"
