"""Listings and tar streams of a host that wants to write beside the target, and more than it announced."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator

from tests.hostile.row import PROTOCOL, Row, Verb, when
from tests.sync.liar import file, folder, link, member, tar

UNASKED = "sent files that were not asked for"


def rows() -> Iterator[Row]:
    """In the place of what the liar has below `kept`: a folder, a file and a link."""
    yield from _listings()
    yield from _streams()
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
    for name, what, status, words in (
        ("a stream below zero", "result['stream'] = -1", 3, PROTOCOL),
        ("a stream that is a path", "result['stream'] = '../../x'", 3, PROTOCOL),
    ):
        yield Row(f"{name} (files_open)", Verb.PULL, when("files_open", what), status, words)


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
        what = f"payload = json.dumps({listed!r}).encode()"
        yield Row(f"{name} (files_list)", Verb.PULL, when("files_list", what), status, words)


def _streams() -> Iterator[Row]:
    """Of a listing that is good: a file of one byte and a folder."""
    listed = when(
        "files_list", f"payload = json.dumps({[folder('kept'), file('kept/a'), folder('kept/d')]!r}).encode()"
    )
    one, d = member("kept/a"), member("kept/d", b"", type=tarfile.DIRTYPE, mode=0o755)
    endless = (
        f"[{one!r}] + [bytes(10**6)] * 50"  # as it is written: its 200 MB of text would be in every worker
    )
    for name, pieces, status, words in (
        ("another name", [tar(member("kept/b"))], 3, UNASKED),
        ("a name that leads out", [tar(one, d, member("kept/d/../../owned"))], 3, UNASKED),
        ("an absolute name", [tar(member("/tmp/owned"))], 3, UNASKED),
        ("a link in the place of a file", [tar(member("kept/a", b"", type=tarfile.SYMTYPE, linkname="/etc/passwd"))], 3, UNASKED),
        ("a hard link", [tar(member("kept/a", b"", type=tarfile.LNKTYPE, linkname="/etc/passwd"))], 3, UNASKED),
        ("a device", [tar(member("kept/a", b"", type=tarfile.CHRTYPE))], 3, UNASKED),
        ("a pipe", [tar(member("kept/a", b"", type=tarfile.FIFOTYPE))], 3, UNASKED),
        ("a link in the place of a folder", [tar(member("kept/d", b"", type=tarfile.SYMTYPE, linkname="/tmp"))], 3, UNASKED),
        ("a file twice", [tar(one, d, one)], 3, UNASKED),
        ("more than was listed", [tar(member("kept/a", b"xx"), d)], 3, UNASKED),
        ("less than was listed", [tar(member("kept/a", b""), d)], 3, UNASKED),
        ("without end", endless, 3, "liar"),
        ("of noise", [b"\xff" * 5120], 3, "liar"),
        ("of nothing", [], 3, "liar"),
        ("cut in a header", [one[:100]], 3, "liar"),
    ):  # fmt: skip
        told = (
            f"pieces = kept.setdefault('pieces', {pieces if isinstance(pieces, str) else repr(pieces)})\n"
            "payload = pieces.pop(0) if pieces else b''\n"
            "result = {'end': not payload, 'gone': []}"
        )
        lie = listed + when(
            "files_open", "header.update(ok=True)\nheader.pop('error', None)\nresult = {'stream': 1}"
        )
        lie += when(
            "files_more", "header.update(ok=True)\nheader.pop('error', None)\nheader['result'] = {}\n" + told
        )
        yield Row(f"{name} (files_more)", Verb.PULL, lie, status, words)
    for name, gone in (("gone with a path", ["/etc/passwd", "../x"]), ("all gone", ["kept/a", "kept/d"])):
        what = (
            "header.update(ok=True)\nheader.pop('error', None)\nheader['result'] = {}\n"
            f"result, payload = {{'end': True, 'gone': {gone!r}}}, b''"
        )
        lie = listed + when("files_more", what)
        yield Row(f"{name} (files_more)", Verb.PULL, lie, 3, "liar")
