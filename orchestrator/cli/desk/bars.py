"""Bars of what hosts are given, one for each host."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence

from orchestrator.cli.desk.out import facts, tell
from orchestrator.eventjson import encode
from orchestrator.events import (
    DataPlaced,
    DataStepped,
    EnvironmentMade,
    EnvironmentStepped,
    Event,
    Noted,
    Stamped,
)
from orchestrator.render.progress import steps
from orchestrator.render.words import data_placed, environment_made
from orchestrator.store.bus import Bus

HERE = "this machine"


@contextlib.contextmanager
def bars(names: Sequence[str], *, json: bool = False) -> Iterator[Callable[[Event], None]]:
    """While the block runs each event is a line of JSON; or the host's bar, and a line when it is done."""
    with steps(names, quiet=json) as draw:

        def show(stamped: Stamped) -> None:
            event = stamped.event
            if json:
                facts(encode(stamped))
                sys.stdout.flush()
            elif isinstance(event, DataStepped | EnvironmentStepped):
                draw(event.host or HERE, event.step, event.done, event.total)
            elif isinstance(event, Noted):
                tell(event.text)
            elif isinstance(event, DataPlaced | EnvironmentMade):
                draw(event.host, "ready", 1, 1)
                tell(data_placed(event) if isinstance(event, DataPlaced) else environment_made(event))

        yield Bus(show).emit
