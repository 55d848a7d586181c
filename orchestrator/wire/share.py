"""Which hosts see one working folder."""

from __future__ import annotations

from orchestrator.wire.fields import Reply, Words
from orchestrator.wire.request import Nothing, Request


class ShareWrite(Request[Nothing], frozen=True, kw_only=True):
    """Leave the host's name in the working folder, for all that see the same one."""

    OP = "share_write"
    workdir: str
    nonce: str
    host: str


class Sharers(Reply, frozen=True):
    hosts: tuple[Words, ...]


class ShareRead(Request[Sharers], frozen=True, kw_only=True):
    OP = "share_read"
    workdir: str
    nonce: str


class ShareClean(Request[Nothing], frozen=True, kw_only=True):
    OP = "share_clean"
    workdir: str
    nonce: str
