"""An rsync at the far end that lies to ours: it may speak as long as it likes, and we keep what we need."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from orchestrator.errors import HostError
from orchestrator.sync import rsync
from orchestrator.transport import Channel

_PROTOCOL = 29  # an old one: nothing is negotiated
_ERROR = 7 + 1  # the number under which the far end has words of its own printed to our stderr


def _said(pieces: int) -> Iterator[bytes]:
    """What a server says: version, seed, and words without a line's end."""
    yield struct.pack("<ii", _PROTOCOL, 1)
    words = b"\x1b[2J" + b"x" * 1000
    for _ in range(pieces):
        yield struct.pack("<I", _ERROR << 24 | len(words)) + words


class _Channel:
    def __init__(self, said: Iterator[bytes]) -> None:
        self._said = said

    def send(self, data: bytes) -> None:
        pass

    def send_eof(self) -> None:
        pass

    def recv(self, limit: int) -> bytes:  # noqa: ARG002
        return next(self._said, b"")

    def stderr_tail(self) -> bytes:
        return b""

    def wait(self, timeout: float) -> int | None:  # noqa: ARG002
        return 1

    def close(self) -> None:
        pass


class _Link:
    def open(self, argv: Sequence[str]) -> Channel:
        assert argv[0] == "rsync"
        return _Channel(_said(20_000))

    remark = ""

    def explain(self, status: int | None, words: bytes) -> None:
        del status, words

    def stalled(self) -> str:
        return ""

    def close(self) -> None:
        pass


def test_a_flood_of_words_is_neither_kept_nor_printed(tmp_path: Path) -> None:
    """They came into a file of ours, without a bound, and from there into an error of that size."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "a").write_text("x")
    with pytest.raises(HostError, match="did not take the code") as caught:
        rsync.send("liar", _Link(), tmp_path / "code", ["a"], incoming="/there", base="/old")
    assert "xxx" in caught.value.why
    assert caught.value.why.isprintable()
    assert len(caught.value.why) <= 1100
