"""A host whose environment is made: what it says of itself decides which packages this machine gets for it."""

from __future__ import annotations

from collections.abc import Iterator

from tests.hostile.row import PROTOCOL, Row, Verb, when

_WORDS = r"words = '\x1b]0;owned\x07\x1b[2J\u202e\n\rerror: x $(touch ' + CANARY + ')'" + "\n"
_OK = "header = {'id': header['id'], 'ok': True, 'result': {}}\n"
_FOUND = "result = {'path': '/usr/bin/python3', 'version': '3.11.2', 'implementation': 'x'}"
_NO_INDEX = (
    "header = {'id': header['id'], 'ok': False,\n"
    "          'error': {'what': 'reaches none', 'kind': 'no-index', 'why': words, 'hint': words}}"
)


def rows() -> Iterator[Row]:
    for name, op, what, status, words in (
        ("it is ready", "env_look", "result.update(ready=True, path='/' + words)", 0, "has its environment"),
        ("a machine for a shell", "env_look", "result['machine'] = 'x86_64; touch ' + CANARY", 3, PROTOCOL),
        ("another machine", "env_look", "result['machine'] = 'mips'", 3, "needs uv for mips"),
        ("nested deep", "env_look", "text(b'[' * 300_000)\nheader = None", 3, PROTOCOL),
        ("a version for a shell", "env_find", "result['version'] = '3.11.2; touch ' + CANARY", 3, PROTOCOL),
        ("a relative interpreter", "env_find", "result['path'] = '--help'", 3, PROTOCOL),
    ):
        yield Row(f"{name} ({op})", Verb.SETUP, when(op, _WORDS + what), status, words)
    made = "result = {'made': True, 'path': '/' + words, 'versions': {words: words}, 'seconds': 1e12, 'kept': True}"
    steps = "result = {'step': words * 50, 'done': 2**53}"
    for name, lie, status, words in (
        ("hostile words (env_make)", when("env_make", _WORDS + _OK + made), 0, "environment made"),
        (
            "more packages than there are (env_progress)",
            when("env_make", _WORDS + "time.sleep(1.5)\n" + _OK + made)
            + when("env_progress", _WORDS + _OK + steps),
            0,
            "environment made",
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
