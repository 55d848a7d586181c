"""Which of a task's lines are TensorFlow's own and mean nothing to who trains. Pure.

Only what is known to be harmless counts: information (`I`), and the warnings and errors of `_HARMLESS`. Any
other warning or error is the task's.
"""

from __future__ import annotations

import re
from enum import StrEnum


class LineOrigin(StrEnum):
    TASK = "task"  # it is shown
    NOISE = "noise"  # it is counted
    # An error of the service by which tasks find each other: others have gone. It means nothing when these,
    # or the task itself, end well, and much when they do not.
    FAREWELL = "farewell"


# `I0000 00:00:1795318895.276187   30788 port.cc:153] ...`, and as it was before TensorFlow 2.17:
# `2024-01-02 09:35:23.860511: I tensorflow/core/util/port.cc:113] ...`
_HEAD = re.compile(
    r"(?:([IWEF])\d{4} \d\d:\d\d:[\d.]+ +\d+ |\d{4}-\d\d-\d\d \d\d:\d\d:[\d.]+: ([IWEF]) )(\S+):\d+\] (.*)"
)
_HARMLESS = re.compile(
    r"oneDNN custom operations are on"
    r"|This TensorFlow binary is optimized"
    r"|Unable to register cu\w+ factory"
    r"|[Cc]omputation placer already registered"
    r"|TF-TRT Warning: Could not find TensorRT"
    r"|Could not find cuda drivers"
    r"|Could not load dynamic library 'lib(?:nvinfer|cudart)"
    r"|NUMA node"
    r"|[Ff]ailed call to cuInit: (?:CUDA_ERROR_NO_DEVICE|UNKNOWN ERROR \(303\))"
    r"|Input of \w+::Dataset will not be optimized"
    r"|AUTO sharding policy will apply DATA sharding"
    r"|Local rendezvous is aborting with status: OUT_OF_RANGE: End of sequence"
)
_ALARM = re.compile(r"(?i)error|fail|abort|crash|unhealthy|exception|out of memory|oom|nan\b|killed")
_BEFORE_LOGGING = "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR"
_GONE = re.compile(r"The following tasks are unhealthy|Failed to send RPC to coordination service")
_NAMED = re.compile(r"/job:(\w+)/(?:replica:\d+/)?task:(\d+)")
# Lines that go on with the one before.
_MORE = re.compile(
    r"To enable the following instructions:"
    r"|/job:\w+/replica:\d+/task:\d+$"
    r"|Your kernel may (?:not )?have been built with"
    r"|The tasks have crashed\. Check the task logs"
    r"|Additional GRPC error information from remote target "
    r'|:(?:UNKNOWN:|\{"created":)'
)


class Noise:
    """Sorts the lines of one task, given in their order."""

    def __init__(self) -> None:
        self._before = LineOrigin.TASK

    def origin(self, text: str) -> LineOrigin:
        if not (self._before is not LineOrigin.TASK and _MORE.match(text)):
            self._before = _origin(text)
        return self._before


def begins(text: str) -> bool:
    """Return True for a message of its own, False for more of the one before."""
    return not _MORE.match(text)


def named(text: str) -> set[str]:
    """The tasks that a message is about, as we write them."""
    return {f"{role}/{index}" for role, index in _NAMED.findall(text)}


def _origin(text: str) -> LineOrigin:
    if text == _BEFORE_LOGGING:
        return LineOrigin.NOISE
    if text.startswith("INFO:tensorflow:"):
        return LineOrigin.TASK if _ALARM.search(text) else LineOrigin.NOISE
    if text[:1] not in "IWE2" or not (head := _HEAD.match(text)):
        return LineOrigin.TASK
    level, file, message = head[1] or head[2], head[3], head[4]
    if _HARMLESS.search(message):
        return LineOrigin.NOISE
    if level == "I" and not _ALARM.search(message):
        return LineOrigin.NOISE
    if level == "F":
        return LineOrigin.TASK
    gone = "coordination_service" in file or _GONE.search(message)
    return LineOrigin.FAREWELL if gone else LineOrigin.TASK
