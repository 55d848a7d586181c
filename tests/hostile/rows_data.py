"""A host that lies about the data it has, gets and gives: at worst it spoils its own."""

from __future__ import annotations

from collections.abc import Iterator

from tests.hostile.row import PROTOCOL, Row, Verb, when

_MISSING = "pieces are missing"


def rows() -> Iterator[Row]:
    for name, op, what, status, words in (
        ("pieces beyond the last one", "store_have", "result['bits'] = 'ffff'", 3, PROTOCOL),
        ("pieces that are no number", "store_begin", "result['bits'] = '-1'", 3, PROTOCOL),
        ("all pieces at once", "store_begin", "result['bits'] = '3'", 3, _MISSING),
        ("pieces that come and go", "store_have", _COMES_AND_GOES, 3, "has lost what it had"),
        ("a port of somebody else", "store_begin", "result['port'] = 1", 0, ""),
        ("that it has what it has not", "store_begin", "result['present'] = True", 3, PROTOCOL),
        ("a state that is none", "store_look", "result['state'] = 'mine'", 3, PROTOCOL),
        ("that all is there", "store_look", "result['state'] = 'whole'", 0, ""),
        ("a folder to be printed", "store_look", "result['path'] = '/\\x1b[2J' + 'x' * 1000", 0, ""),
        ("trouble with everybody", "store_have", "result['trouble'] = '\\x1b[2J' * 9", 0, ""),
    ):
        yield Row(f"{name} ({op})", Verb.PUSH, when(op, what), status, words)


_COMES_AND_GOES = (
    "kept['n'] = 3 - kept.get('n', 1)\nresult.update(bits=str(kept['n']), idle=False)"  # 2, 1, 2, 1
)
