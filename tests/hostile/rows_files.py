"""Listings and contents of a host that wants to write beside the target, and more than it announced."""

from __future__ import annotations

from collections.abc import Iterator

from tests.hostile.row import PROTOCOL, Row, Verb, when
from tests.sync.liar import file, folder, link, listing

UNASKED = "sent files that were not asked for"


def rows() -> Iterator[Row]:
    """In the place of what the liar has below `kept`: a folder, a file and a link."""
    yield from _listings()
    yield from _contents()
    for name, what, status, words in (
        ("a kind that is none", "result['kind'] = 'device'", 3, PROTOCOL),
        ("a root that is no path", "result['root'] = '../../x'", 3, PROTOCOL),
        ("a listing that is no JSON", "payload = b'\\xff[['", 3, "liar"),
    ):
        yield Row(f"{name} (files_list)", Verb.PULL, when("files_list", what), status, words)


def _listings() -> Iterator[Row]:
    """One for each end that they can have; tests/sync/test_lying_hosts.py has the others."""
    for name, listed, status, words in (
        ("a name that leads out", [folder("a"), file("a/../../owned")], 3, "liar"),
        ("a file below a link", [folder("kept"), link("kept/a", "/tmp"), file("kept/a/b")], 0, "left out"),
        ("a mode of 2^40", [folder("kept"), file("kept/a", mode=2**40)], 0, ""),
    ):
        what = f"payload = {listing(listed)!r}"
        yield Row(f"{name} (files_list)", Verb.PULL, when("files_list", what), status, words)


def _contents() -> Iterator[Row]:
    """Of a listing that is good: a file of one byte and a folder."""
    rows = listing([folder("kept"), file("kept/a"), folder("kept/d")])
    for name, what, status, words in (
        ("more than was asked for", "payload = b'xx'", 3, UNASKED),
        ("more than may come", "payload = bytes(5 << 20)", 3, PROTOCOL),
        ("gone and there", "result['gone'], payload = [0], b'x'", 3, UNASKED),
    ):
        answered = "header.update(ok=True)\nheader.pop('error', None)\nresult = {'gone': []}\nheader['result'] = result\n"
        lie = when("files_list", f"payload = {rows!r}") + when("files_get", answered + what)
        yield Row(f"{name} (files_get)", Verb.PULL, lie, status, words)
