"""Length-framed messages between controller and agent: a JSON header and raw payload bytes. Pure.

>II (bytes of the header, bytes of the payload) | header as JSON | payload
"""

from __future__ import annotations

import json
import struct
from typing import Any, Dict, Iterator, Tuple

Json = Dict[str, Any]
Frame = Tuple[Json, bytes]

READY = (
    b"\x00orchestrate-ready\x00"  # sent by our command line: what is written from now on is read by Python
)
MARKER = b"\x00orchestrate-agent\x00"  # sent before the first frame; earlier bytes are login output
MAX_HEADER = 16 << 20  # the manifest of a tree of 100,000 files
MAX_PAYLOAD = 64 << 20
SIZES = struct.Struct(">II")


def encode(header: Json, payload: bytes = b"") -> bytes:
    """Return one frame; raise ValueError for one that `Decoder` would refuse."""
    return pack(json.dumps(header, separators=(",", ":")).encode(), payload)


def pack(head: bytes, payload: bytes) -> bytes:
    """Return a frame whose header is already JSON; raise ValueError as `encode` does."""
    Decoder().check(len(head), len(payload))
    return SIZES.pack(len(head), len(payload)) + head + payload


class Decoder:
    """Splits a byte stream into frames, however it was divided in transit."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._need = SIZES.size  # bytes needed to continue

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Return the frames that `data` completes; raise ValueError for what is not a frame."""
        self._buffer += data
        start = 0
        try:
            while len(self._buffer) - start >= self._need:
                head, body = SIZES.unpack_from(self._buffer, start)
                if self._need == SIZES.size:
                    self.check(head, body)
                    self._need += head + body
                    continue
                at, end = start + SIZES.size + head, start + self._need
                header = self.parse(bytes(self._buffer[at - head : at]), body)
                payload = bytes(self._buffer[at:end])
                start, self._need = end, SIZES.size
                yield header, payload
        finally:
            del self._buffer[:start]

    def check(self, head: int, body: int) -> None:
        """Raise ValueError for a frame of forbidden sizes; no header is empty."""
        if not 0 < head <= MAX_HEADER or body > MAX_PAYLOAD:
            raise ValueError(f"not a frame: header of {head} bytes, payload of {body} bytes")

    def parse(self, data: bytes, body: int) -> Json:
        """Parse a header before a payload of `body` bytes is read; raise ValueError."""
        del body
        try:
            header = json.loads(data, parse_constant=_no_number)
        except RecursionError:
            raise ValueError("its JSON is nested too deep") from None
        except ValueError as error:
            raise ValueError(f"it sent what is not JSON: {error}") from None
        if not isinstance(header, dict):
            raise ValueError(f"a frame's header must be an object, not {type(header).__name__}")  # noqa: TRY004 - one error for what is not a frame
        return header


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is not a number")
