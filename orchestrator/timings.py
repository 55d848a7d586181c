"""How long the controller waits for what: one value, handed down."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from orchestrator.errors import UsageError

VARIABLE = "ORCHESTRATE_TIMINGS"


class Timings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Seconds. The patience that a user chooses (grace, host_timeout, ...) is in the plan of a run."""

    beat: float = 5.0  # between an agent's heartbeats
    silence: float = 20.0  # without a byte from a host until it counts as lost
    hello: float = 20.0  # until our agent has answered a login: heavy rc files, loaded machines
    host_return: float = 30.0  # in which a host that was lost in a phase may come back
    stop_unreachable: float = 30.0  # that a stop waits for a host that is lost, beyond the grace
    stop_impatient: float = 10.0  # the same, of a user who asked twice, or where nothing is known to live
    last_try: float = 2.0  # to get a host back for the proof that nothing is left
    release: float = 20.0  # in which the kernel and the driver give back what killed processes had
    quiet: float = 180.0  # without a word from any task that are said, where nobody asked for more
    held: float = 10.0  # that a task may live on after an exception that ended its main thread
    validation: float = 900.0  # a first import and a data set from a slow disk fit in
    least_fence: float = 60.0  # a keeper that dies has to be missed and replaced in less
    pauses: tuple[float, ...] = (1.0, 5.0, 15.0, 30.0, 60.0)  # before the next attempt; the last one repeats


DEFAULT = Timings()


def read(environ: Mapping[str, str]) -> Timings:
    """The timings with what ORCHESTRATE_TIMINGS changes: a JSON object of fields, for tests.

    Raise UsageError for anything else.
    """
    try:
        return msgspec.json.decode(environ.get(VARIABLE) or "{}", type=Timings)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise UsageError(f"{VARIABLE} cannot be read", why=str(error), hint=f"unset {VARIABLE}") from None
