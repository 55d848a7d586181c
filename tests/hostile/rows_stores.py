"""A host that lies about data, listings, files, and its environment; at worst it damages its own."""

from collections.abc import Iterator

from tests.hostile.row import PROTOCOL, Row, Verb, when
from tests.sync.liar import file, folder, link, listing

_COMES_AND_GOES = (  # once everything has arrived: before that, hosts truthfully report missing pieces
    "if result['idle']:\n"
    "    kept['n'] = 3 - kept.get('n', 1)\n"
    "    result.update(bits=str(kept['n']), idle=False)"  # 2, 1, 2, 1
)
_WORDS = r"words = '\x1b]0;owned\x07\x1b[2J\u202e\n\rerror: x $(touch ' + CANARY + ')'" + "\n"
_OK = "header = {'id': header['id'], 'ok': True, 'result': {}}\n"
_FOUND = "result = {'path': '/usr/bin/python3', 'version': '3.11.2'}"
_NO_INDEX = (
    "header = {'id': header['id'], 'ok': False,\n"
    "          'error': {'what': 'reaches none', 'kind': 'no-index', 'why': words, 'hint': words}}"
)


def rows() -> Iterator[Row]:
    for name, op, what, status, words in (
        ("pieces beyond the last one", "store_have", "result['bits'] = 'ffff'", 3, PROTOCOL),
        ("all pieces at once", "store_begin", "result['bits'] = '3'", 3, "pieces are missing"),
        ("pieces that come and go", "store_have", _COMES_AND_GOES, 0, ""),
        ("that all is there", "store_look", "result['state'] = 'whole'", 0, ""),
    ):
        yield Row(f"{name} ({op})", Verb.PUSH, when(op, what), status, words)
    yield from _pulled()
    yield from _environments()


def _pulled() -> Iterator[Row]:
    """Replace the liar's files below `kept` by a folder, a file, and a link."""
    for name, what, status, words in (
        ("a listing that is no JSON", "b'\\xff[['", 3, "liar"),
        ("a name that leads out", listing([folder("a"), file("a/../../owned")]), 3, "liar"),
        ("a file below a link", listing([folder("kept"), link("kept/a", "/tmp"), file("kept/a/b")]), 0, "unchanged code is not fetched"),
    ):  # fmt: skip
        shown = what if isinstance(what, str) else repr(what)
        yield Row(f"{name} (files_list)", Verb.PULL, when("files_list", f"payload = {shown}"), status, words)
    # Parts of a valid listing: a file of one byte and a folder.
    good = listing([folder("kept"), file("kept/a"), folder("kept/d")])
    answered = "header.update(ok=True)\nheader.pop('error', None)\nresult = {'gone': []}\nheader['result'] = result\n"
    for name, what, words in (
        ("more than was asked for", "payload = b'xx'", "sent files that were not requested"),
        ("more than may come", "payload = bytes(5 << 20)", PROTOCOL),
    ):
        lie = when("files_list", f"payload = {good!r}") + when("files_get", answered + what)
        yield Row(f"{name} (files_get)", Verb.PULL, lie, 3, words)
    grown = answered + "result['grown'] = [0]\npayload = b'x'"
    lie = when("files_list", f"payload = {good!r}") + when("files_get", grown)
    lie += when("files_digest", "result['digests'] = ['ab' * 32] * 9")
    yield Row("other digests (files_digest)", Verb.PULL, lie, 3, "files that could not be fetched")


def _environments() -> Iterator[Row]:
    """A host's facts determine which packages this machine downloads for it."""
    for name, op, what, status, words in (
        ("a machine for a shell", "env_look", "result['machine'] = 'x86_64; touch ' + CANARY", 3, PROTOCOL),
        ("a version for a shell", "env_find", "result['version'] = '3.11.2; touch ' + CANARY", 3, PROTOCOL),
    ):
        yield Row(f"{name} ({op})", Verb.SETUP, when(op, _WORDS + what), status, words)
    made = "result = {'made': True, 'path': '/' + words, 'versions': {words: words}, 'seconds': 1e12, 'kept': True}"
    steps = "result = {'step': words * 50, 'done': 2**53}"
    for name, lie, status, words in (
        ("hostile words (env_make)", when("env_make", _WORDS + _OK + made), 0, "environment created"),
        (
            "more packages than there are (env_progress)",
            when("env_make", _WORDS + "time.sleep(1.5)\n" + _OK + made)
            + when("env_progress", _WORDS + _OK + steps),
            0,
            "environment created",
        ),
    ):
        yield Row(name, Verb.SETUP, when("env_find", _OK + _FOUND) + lie, status, words)
    far = when("env_find", _OK + _FOUND.replace("3.11.2", "999.999.999"))
    yield Row(
        "a Python of the year 3000, and no index",
        Verb.SETUP,
        far + when("env_make", _WORDS + _NO_INDEX),
        3,
        "cannot look up the packages",
    )
