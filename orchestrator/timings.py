"""How long the controller waits for what: one value, handed down."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import msgspec

from orchestrator.errors import UsageError

VARIABLE = "ORCHESTRATE_TIMINGS"


@dataclass(frozen=True)
class Timings:
    """Seconds. The patience that a user chooses (grace, host_timeout, ...) is in the plan of a run."""

    beat: float = 5.0  # between an agent's heartbeats
    silence: float = 20.0  # without a byte from a host until it counts as lost
    hello: float = 20.0  # until our agent has answered a login: heavy rc files, loaded machines
    latecomers: float = 3.0  # until it is said which hosts a launch waits for
    host_return: float = 30.0  # in which a host that was lost in a phase may come back
    stop_unreachable: float = 30.0  # that a stop waits for a host that is lost, beyond the grace
    stop_impatient: float = 10.0  # the same, of a user who asked twice, or where nothing is known to live
    last_try: float = 2.0  # to get a host back for the proof that nothing is left
    release: float = 20.0  # in which the kernel and the driver give back what killed processes had
    quiet: float = 180.0  # without a word from any task that are said, where nobody asked for more
    validation: float = 900.0  # a first import and a data set from a slow disk fit in
    least_fence: float = 60.0  # a keeper that dies has to be missed and replaced in less
    pauses: tuple[float, ...] = (1.0, 5.0, 15.0, 30.0, 60.0)  # before the next attempt; the last one repeats


DEFAULT = Timings()


def read(environ: Mapping[str, str]) -> Timings:
    """The timings with what ORCHESTRATE_TIMINGS changes: a JSON object of fields, for tests.

    Raise UsageError for anything else.
    """
    text = environ.get(VARIABLE)
    if not text:
        return DEFAULT
    known = {field.name for field in fields(Timings)}
    try:
        given = msgspec.json.decode(text, type=dict[str, Any])
        if unknown := given.keys() - known:
            raise msgspec.ValidationError(
                f"there is no {min(unknown)!r}; there are {', '.join(sorted(known))}"
            )
        return msgspec.convert(given, Timings)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise UsageError(f"{VARIABLE} cannot be read", why=str(error), hint=f"unset {VARIABLE}") from None
