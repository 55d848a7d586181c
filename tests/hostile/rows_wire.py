"""Answers that our agent would not give, to every operation that the verbs ask for."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping

from tests.hostile.row import LOST, PROTOCOL, Row, Verb, when

_HOSTILE_WORDS = r"""
words = '\x1b]0;owned\x07\x1b[2J\u202e\u200b' * 20 + 'refused by me'
error = {'what': words[-300:], 'kind': 'kept', 'why': 'error: a\nerror: b', 'hint': words}
header, payload = {'id': header['id'], 'ok': False, 'error': error}, b''
""".strip()
# kind of lie -> what is done in the place of the answer, and how it is called
KINDS: Mapping[str, tuple[str, str]] = {
    "a list": ("result = []", PROTOCOL),
    "a text": ("result = 'x' * 70_000", PROTOCOL),
    "no result": ("header = {'id': header['id'], 'ok': True}", PROTOCOL),
    "nested deep": ("text(b'[' * 300_000)\nheader = None", PROTOCOL),
    "a huge frame": ("write(b'\\xff' * 8)\nheader = None", PROTOCOL),
    "to nobody": ("header['id'] = 10**6", PROTOCOL),
    "to a list": ("header['id'] = [[]]", PROTOCOL),
    "neither good nor bad": ("header['ok'] = 'yes'", PROTOCOL),
    "an odd error": ("header, payload = {'id': header['id'], 'ok': False, 'error': ['what']}, b''", PROTOCOL),
    "hello again": ("header, payload = {'hello': {}}, b''", PROTOCOL),
    "not a number": ("text(b'{\"id\": NaN}')\nheader = None", PROTOCOL),
    "no UTF-8": ('text(b\'{"id": "\\xff"}\')\nheader = None', PROTOCOL),
    "more bytes than may come": ("write(struct.pack('>II', 2, 2**31))\nheader = None", PROTOCOL),
    "output of no command": ("header, payload = {'exec': []}, b'x'", PROTOCOL),
    "news of no stream": ("header, payload = {'stream': 10**6, 'kind': 'log'}, b'x'", PROTOCOL),
    "cut in the middle": ("write(struct.pack('>II', 500, 0) + b'{\"id\": 1')\nleave()", LOST),
    "hostile words": (_HOSTILE_WORDS, "refused by me"),
}

_MANY = 2  # kinds for each operation,
_SLOW = 1  # and of those that take seconds
_HARMLESS = {"share_write", "share_read", "share_clean"}  # who refuses that is told by another check
_OPS: Mapping[Verb, tuple[str, ...]] = {
    Verb.PREFLIGHT: ("facts", "listen", "probe", "share_write", "share_read", "share_clean", "unlisten"),
    Verb.LAUNCH: (
        "keep",
        "lease",
        "work_make",
        "store_begin",
        "store_put",
        "start",
        "follow",
    ),
    Verb.PUSH: ("store_look", "store_begin", "store_have", "store_seal"),
    Verb.STATUS: ("states",),
    Verb.STACKS: ("stacks",),
    Verb.EXEC: ("exec",),
    Verb.CLEAN: ("clean_look", "clean"),
    Verb.PULL: ("files_list", "files_get"),
    Verb.STOP: ("states", "stop", "sweep"),
    Verb.RESTART: ("gpu_held", "store_begin"),
}
_ENDS_WITH = {"start": 1, "follow": 1, "gpu_held": 1}
_OF_THE_BACKUP = "if ask.get('path', '').endswith('/kept'):\n"  # the code is sent by the same operations
_ANSWER_ANYWAY = {Verb.STATUS: 0}


def rows() -> Iterator[Row]:
    """Each operation gets some of the kinds, those after the last one's: several verbs meet each of them."""
    kinds = list(KINDS.items())
    at = 0
    for verb, ops in _OPS.items():
        for op in ops:
            many = (
                _SLOW
                if verb in (Verb.STOP, Verb.RESTART, Verb.PUSH) or op in ("follow", "store_put")
                else _MANY
            )
            for name, (what, usual) in (kinds[n % len(kinds)] for n in range(at, at + many)):
                status = _ANSWER_ANYWAY.get(verb, _ENDS_WITH.get(op, 3))
                words = "liar: no answer" if op == "sweep" else usual
                if name == "hostile words" and op in _HARMLESS:
                    status, words = 0, ""
                lie = what
                if verb is Verb.RESTART and op == "store_begin":
                    status, lie = 1, _OF_THE_BACKUP + textwrap.indent(what, "    ")
                yield Row(f"{name} for {op}", verb, when(op, lie), status, words)
            at += many
