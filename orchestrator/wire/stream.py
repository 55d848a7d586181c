"""Cuts what comes from a node into frames, and refuses one before more of it is kept than may come. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from orchestrator.node.serve.frames import MARKER, SIZES
from orchestrator.wire.request import ProtocolError, parse

NOISE = 65_536  # bytes of login noise that are kept

Header: TypeAlias = dict[str, Any]
Limits: TypeAlias = Callable[[], tuple[int, int]]  # of the header and payload of any frame that may come now
Limit: TypeAlias = Callable[[Header], int]  # of the payload behind this header


class AgentStream:
    """The bytes of one agent: login noise, the marker, frames.

    `limits` bounds a frame that has announced its sizes, `limit` one whose header is known; so no more
    is kept than somebody waits for.
    """

    def __init__(self, limits: Limits, limit: Limit) -> None:
        self.noise = b""
        self.marked = False
        self._limits = limits
        self._limit = limit
        self._buffer = bytearray()
        self._head = self._body = 0  # sizes of the frame that comes; no header is empty
        self._header: Header | None = None

    @property
    def wanting(self) -> int:
        """How large the frame is that has begun and not ended; 0 between two frames."""
        return SIZES.size + self._head + self._body if self._head or self._buffer else 0

    def feed(self, data: bytes) -> Iterator[tuple[Header, bytes]]:
        """The frames that `data` completes; raise ProtocolError for what is not a frame."""
        if not self.marked:
            noise, marker, data = (self.noise + data).partition(MARKER)
            self.noise = noise[-NOISE:]
            if not marker:
                return
            self.marked = True
        self._buffer += data
        start = 0
        try:
            while True:
                if not self._head:
                    if len(self._buffer) - start < SIZES.size:
                        return
                    self._announce(*SIZES.unpack_from(self._buffer, start))
                    start += SIZES.size
                if self._header is None:
                    if len(self._buffer) - start < self._head:
                        return
                    self._header = self._parse(bytes(self._buffer[start : start + self._head]))
                    start += self._head
                if len(self._buffer) - start < self._body:
                    return
                header, payload = self._header, bytes(self._buffer[start : start + self._body])
                start += self._body
                self._head = self._body = 0
                self._header = None
                yield header, payload
        finally:
            del self._buffer[:start]

    def _announce(self, head: int, body: int) -> None:
        most_head, most_body = self._limits()
        if not 0 < head <= most_head:
            raise ProtocolError(f"it announced a header of {head:,} bytes; at most {most_head:,} may come")
        if body > most_body:
            raise ProtocolError(f"it announced a payload of {body:,} bytes; at most {most_body:,} may come")
        self._head, self._body = head, body

    def _parse(self, head: bytes) -> Header:
        header = parse(head)
        most = self._limit(header)
        if self._body > most:
            raise ProtocolError(f"it sent a payload of {self._body:,} bytes; at most {most:,} may come")
        return header
