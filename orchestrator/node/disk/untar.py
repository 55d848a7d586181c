"""A tar stream into an incoming folder; unpacked in a child, chunk by chunk.

Every request carries one chunk. It is answered when the child has taken it; the last
(`more` false) when all is on disk. So the controller's window of open requests bounds our memory.
"""

from __future__ import annotations

import os

from ..base.annotations import Any
from ..base.fault import NodeError, unwritable
from ..serve.agent import Agent, Request
from ..serve.loop import Outbox
from . import archive
from .removing import remove

_SECONDS = 24 * 3600.0  # a large checkpoint on a slow line takes hours


class Stream:
    """One tar stream and the child that unpacks it."""

    def __init__(self, agent: Agent, incoming: str, name: str, *, any_link: bool = False) -> None:
        self._agent = agent
        self._open: dict[int, Request] = {}  # requests that have no answer yet
        self._last: Request | None = None
        self._outcome: Any = None
        reader, writer = os.pipe()
        self._feed = Outbox(agent.loop, writer)
        try:
            agent.jobs.run(
                name,
                lambda: _unpack(reader, incoming, any_link=any_link),
                self._ended,
                seconds=_SECONDS,
                keep=(reader,),
            )
        except NodeError:
            self._feed.close()
            raise
        finally:
            os.close(reader)

    def take(self, request: Request) -> None:
        if self._outcome is not None:
            self._answer(request)
            return
        self._open[id(request)] = request
        if not request.get("more", False):
            self._last = request
        self._feed.put(request.payload, lambda: self._taken(request))

    def _taken(self, request: Request) -> None:
        if request is self._last:
            self._feed.close()  # its answer comes from the child
        else:
            del self._open[id(request)]
            self._agent.reply(request, {"received": len(request.payload)})

    def _ended(self, outcome: tuple[dict[str, Any], bytes]) -> None:
        self._outcome = outcome[0]
        self._feed.close()
        for request in self._open.values():
            self._answer(request)
        self._open.clear()

    def _answer(self, request: Request) -> None:
        self._agent.send({"id": request.id, **self._outcome})


def _unpack(reader: int, incoming: str, *, any_link: bool) -> tuple[dict[str, Any], bytes]:
    try:
        remove(incoming)  # what an earlier stream left
        os.makedirs(incoming)
        with os.fdopen(reader, "rb") as stream:
            came = archive.unpack(stream, incoming, any_link=any_link)
    except BaseException as error:
        remove(incoming)  # whoever dropped it may have been here before; and a full disk needs the room
        if isinstance(error, OSError):
            raise unwritable(os.path.dirname(incoming), error) from None
        raise
    return {"ok": True, "result": {"files": len(came), "bytes": sum(came.values())}}, b""
