"""The controller's timeouts: one value that is passed down."""

from collections.abc import Mapping

import msgspec

from orchestrator.errors import UsageError
from orchestrator.value import Value

VARIABLE = "ORCHESTRATE_TIMINGS"


class Timings(Value, forbid_unknown_fields=True):
    """Timings in seconds. Those that a user chooses (grace, host_timeout, ...) are in the run's plan."""

    beat: float = 5.0  # between an agent's heartbeats
    silence: float = 20.0  # without a message from a host until it counts as lost
    hello: float = 20.0  # for our agent to respond after a login: slow startup files, loaded machines
    host_return: float = 30.0  # for a host lost during a phase to come back
    stop_unreachable: float = 30.0  # that a stop waits for a lost host, beyond the grace period
    stop_impatient: float = 10.0  # the same after a second request, or if nothing is known to be alive
    catch_up: float = 10.0  # after a user's stop for delayed output to arrive
    handover: float = 5.0  # for the agents of a killed keeper to notice its end
    last_try: float = 2.0  # to reconnect to a host to verify that nothing remains
    release: float = 20.0  # for the kernel and the driver to release the resources of killed processes
    quiet: float = 180.0  # without output from any task until a notice, where hang detection is off
    ahead: float = 5.0  # of training, until the tasks of the next attempt or launch are started beside it
    held: float = 10.0  # that a task may live on after an exception ended its main thread
    validation: float = 900.0  # enough for a first import and a data set on a slow disk
    least_fence: float = 60.0  # a keeper that dies must be noticed and replaced in less
    pauses: tuple[float, ...] = (1.0, 5.0, 15.0, 30.0, 60.0)  # before the next attempt; the last one repeats


DEFAULT = Timings()
_decode = msgspec.json.Decoder(Timings).decode


def read(environ: Mapping[str, str]) -> Timings:
    """Return the timings with the changes in ORCHESTRATE_TIMINGS: a JSON object of fields, for tests.

    Raise UsageError for anything else.
    """
    try:
        return _decode(environ.get(VARIABLE) or "{}")
    except (msgspec.MsgspecError, RecursionError) as error:
        raise UsageError(f"{VARIABLE} cannot be read", why=str(error), hint=f"unset {VARIABLE}") from None
