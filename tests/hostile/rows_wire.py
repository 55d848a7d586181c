"""Replies that our agent would not give, to every operation that the verbs request."""

import textwrap
from collections.abc import Iterator, Mapping

from tests.hostile.row import LOST, PROTOCOL, Row, Verb, when

_HOSTILE_WORDS = r"""
words = '\x1b]0;owned\x07\x1b[2J\u202e\u200b' * 20 + 'refused by me'
error = {'what': words[-300:], 'kind': 'kept', 'why': 'error: a\nerror: b', 'hint': words}
header, payload = {'id': header['id'], 'ok': False, 'error': error}, b''
""".strip()
# kind of lie -> code that replaces the reply, and its name
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

# As many as there are kinds: each operation gets one kind, and each kind is met by a verb.
_OPS: Mapping[Verb, tuple[str, ...]] = {
    Verb.PREFLIGHT: ("facts", "listen", "probe", "share"),
    Verb.LAUNCH: ("keep", "work_make", "store_begin", "start", "follow"),
    Verb.PUSH: ("store_have",),
    Verb.STATUS: ("states",),
    Verb.STACKS: ("stacks",),
    Verb.CLEAN: ("clean_look",),
    Verb.PULL: ("files_list",),
    Verb.STOP: ("stop",),
    Verb.EXEC: ("exec",),
    Verb.RESTART: ("store_begin",),
}
_ENDS_WITH = {"start": 1, "follow": 1, "states": 0}
_OF_THE_BACKUP = "if ask.get('path', '').endswith('/kept'):\n"  # the code is sent by the same operations


def rows() -> Iterator[Row]:
    """Yield the rows: each operation gets one of the kinds."""
    asked = [(verb, op) for verb, ops in _OPS.items() for op in ops]
    for (verb, op), (name, (what, words)) in zip(asked, KINDS.items(), strict=True):
        status, lie = _ENDS_WITH.get(op, 3), what
        if verb is Verb.RESTART:
            status, lie = 1, _OF_THE_BACKUP + textwrap.indent(what, "    ")
        yield Row(f"{name} for {op}", verb, when(op, lie), status, words)
    yield from _odd_ways()


_NOISE = r"b'\x1b]0;owned\x07\x1b[2J\xff\xe2\x80\xae error: x\n'"


def _odd_ways() -> Iterator[Row]:
    """Yield rows with noise between frames, or with oddly split frames."""
    endless = (
        "def on_and_on():\n    while True: os.write(2, b'x' * 65536)\n"
        "threading.Thread(target=on_and_on, daemon=True).start()"
    )
    yield Row("words on stderr without end", Verb.PREFLIGHT, when("hello", endless), 0, "")
    noisy = f"os.write(2, {_NOISE} * 1000)\ntext({_NOISE})\nheader = None"
    yield Row("noise in the place of a hello", Verb.PREFLIGHT, when("hello", noisy), 3, PROTOCOL)
    yield Row("gone with words", Verb.PREFLIGHT, when("hello", f"os.write(2, {_NOISE})\nleave()"), 3, "liar")
    bytewise = "for byte in frames.encode({**header, 'result': result}): write(bytes([byte]))\nheader = None"
    yield Row("a byte at a time", Verb.STATUS, when("states", bytewise), 0, "running")
    yield Row("an answer twice", Verb.STACKS, when("stacks", "say({**header, 'result': result})"), 0, "")
