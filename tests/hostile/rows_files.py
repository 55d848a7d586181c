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
        ("a link for a folder", "result['kind'] = 'link'", 3, PROTOCOL),
        ("a root that is no path", "result['root'] = '../../x'", 3, PROTOCOL),
        ("something and nothing", "result['near'] = {'folder': '/', 'names': [], 'more': 0}", 3, PROTOCOL),
        ("a listing that is no JSON", "payload = b'\\xff[['", 3, "liar"),
        ("a listing nested deep", "payload = b'[' * 200_000", 3, "liar"),
        ("a listing of an object", "payload = b'{}'", 3, "liar"),
        ("a listing of numbers", "payload = b'[1, 2]'", 3, "liar"),
        ("rows that are short", 'payload = b\'[["x", "file"]]\'', 3, "liar"),
    ):
        yield Row(f"{name} (files_list)", Verb.PULL, when("files_list", what), status, words)


def _listings() -> Iterator[Row]:
    for name, listed, status, words in (
        ("a name that leads out", [folder("a"), file("a/../../owned")], 3, "liar"),
        ("an absolute name", [file("/tmp/owned")], 3, "liar"),
        ("two dots", [folder("..")], 3, "liar"),
        ("a name with a zero byte", [file("a\0b")], 3, "liar"),
        ("an empty part", [folder("a"), file("a//b")], 3, "liar"),
        ("a name of 5,000 bytes", [file("x" * 5000)], 3, "liar"),
        ("a name twice", [file("a"), file("a")], 3, "liar"),
        ("a file below no folder", [file("a/b")], 3, "liar"),
        ("a file below a file", [file("a"), file("a/b")], 3, "liar"),
        ("a file below a link", [folder("kept"), link("kept/a", "/tmp"), file("kept/a/b")], 0, "left out"),
        ("a device", [file("a", kind="device")], 3, "liar"),
        ("a size below zero", [file("a", -1)], 3, "liar"),
        ("a size of 2^62", [file("a", 2**62)], 3, "liar"),
        ("a time of 10^40", [file("a", mtime_ns=10**40)], 3, "liar"),
        ("a mode of 2^40", [folder("kept"), file("kept/a", mode=2**40)], 0, ""),
        ("300 levels", [folder("/".join("a" * depth)) for depth in range(1, 300)], 3, "liar"),
    ):
        what = f"payload = {listing(listed)!r}"
        yield Row(f"{name} (files_list)", Verb.PULL, when("files_list", what), status, words)


def _contents() -> Iterator[Row]:
    """Of a listing that is good: a file of one byte and a folder."""
    rows = listing([folder("kept"), file("kept/a"), folder("kept/d")])
    for name, what, status, words in (
        ("more than was asked for", "payload = b'xx'", 3, UNASKED),
        ("less than was asked for", "payload = b''", 3, UNASKED),
        ("more than may come", "payload = bytes(5 << 20)", 3, PROTOCOL),
        ("gone and there", "result['gone'], payload = [0], b'x'", 3, UNASKED),
        ("gone with a path", "result['gone'] = ['/etc/passwd', '../x']", 3, PROTOCOL),
        ("gone what was not asked for", "result['gone'] = [7]", 3, PROTOCOL),
        ("gone twice", "result['gone'], payload = [0, 0], b''", 3, PROTOCOL),
    ):
        answered = "header.update(ok=True)\nheader.pop('error', None)\nresult = {'gone': []}\nheader['result'] = result\n"
        lie = when("files_list", f"payload = {rows!r}") + when("files_get", answered + what)
        yield Row(f"{name} (files_get)", Verb.PULL, lie, status, words)
