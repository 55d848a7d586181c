"""Rules for last output: the kind of failure it shows, and a fix. They are in `rules.toml`. Pure."""

import re
import tomllib
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from orchestrator.events import FailureKind
from orchestrator.value import Value

# Now: in the months of a run, this installation may be replaced or removed.
_TABLE = Path(__file__).with_name("rules.toml").read_text(encoding="utf-8")

# Output about another task: a task that ends with it may only suffer from what happened to that one.
OF_A_PEER = frozenset({FailureKind.PEER, FailureKind.TIMEOUT, FailureKind.INCARNATION})

# TensorFlow's own errors, under their names where the module is not printed.
_TENSORFLOW = re.compile(
    r"tensorflow\..+|(?:Aborted|AlreadyExists|Cancelled|DataLoss|DeadlineExceeded|FailedPrecondition|Internal"
    r"|InvalidArgument|NotFound|OutOfRange|PermissionDenied|ResourceExhausted|Unauthenticated|Unavailable"
    r"|Unimplemented|Unknown)Error"
)

# A peer that responds is alive: gRPC's INVALID_ARGUMENT, NOT_FOUND, INTERNAL and similar codes are about
# the request. UNAVAILABLE (14), DEADLINE_EXCEEDED (4), CANCELLED (1) and ABORTED (10) are about the peer.
_ANSWER = re.compile(r"grpc_status:(?:3|5|6|7|9|11|12|13)\b")
_GONE = re.compile(r"grpc_status:(?:1|4|10|14)\b|(?i:socket closed|connection re(?:set|fused)|heartbeat)")


class Rule(Value):
    kind: FailureKind
    pattern: re.Pattern[str]
    advice: str  # the fix
    raised: frozenset[str]
    library: re.Pattern[str] | None = None
    module: re.Pattern[str] | None = None  # unlike a library, it has to be known
    source: re.Pattern[str] | None = None

    def holds_for(self, message: Sequence[str], name: str, file: str = "", source: str = "") -> bool:
        """Return True if an exception with this name and text fits the rule.

        `name` is "" for text without an exception; `file`, in which it was raised, and `source`, the line of
        the program, are "" if no traceback shows them.
        """
        typed = name.rpartition(".")[2] in self.raised or (
            "tensorflow" in self.raised and _TENSORFLOW.fullmatch(name) is not None
        )
        placed = not file or self.library is None or self.library.search(file) is not None
        if self.module is not None:
            placed = self.module.search(file) is not None
        if self.source is not None:
            placed = placed and self.source.search(source) is not None
        return typed and placed and any(map(self.pattern.search, message))


@cache
def table() -> tuple[Rule, ...]:
    return tuple(map(_rule, tomllib.loads(_TABLE)["rule"]))


def classify(message: Sequence[str], name: str, file: str = "", source: str = "") -> Rule | None:
    """Return the first rule that fits; None for unknown output."""
    return next((rule for rule in table() if rule.holds_for(message, name, file, source)), None)


def blames_peer(message: Sequence[str], name: str) -> bool:
    """Return True if any of the text is about another task, whatever else it contains."""
    if any(map(_ANSWER.search, message)) and not any(map(_GONE.search, message)):
        return False
    return any(rule.holds_for(message, name) for rule in table() if rule.kind in OF_A_PEER)


def _rule(row: dict[str, str | list[str]]) -> Rule:
    patterns = row["pattern"]
    library, module, source = ("|".join(row.get(key, ())) for key in ("library", "module", "source"))
    return Rule(
        FailureKind(str(row.get("kind", FailureKind.EXCEPTION))),
        re.compile(patterns if isinstance(patterns, str) else "|".join(patterns)),
        str(row.get("advice", "")),
        frozenset(row["raised"]),
        re.compile(rf"(?:^|/)(?:{library})/") if library else None,
        re.compile(rf"(?:^|/|<frozen )(?:{module})(?:\.py$|>$)") if module else None,
        re.compile(source) if source else None,
    )
