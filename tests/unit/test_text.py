from __future__ import annotations

import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.text import duration, endpoint, harmless, json_safe, plain, size, utf8

# What a task may print, what is left of it with colours, and without.
SEQUENCES = [
    ("größer ━━━ 漢字 👩‍👩‍👧", "größer ━━━ 漢字 👩‍👩‍👧", "größer ━━━ 漢字 👩‍👩‍👧"),
    ("\x1b[1;31mred\x1b[0m", "\x1b[1;31mred\x1b[0m", "red"),
    ("\x1b[2J\x1b[Hcleared", "cleared", "cleared"),
    ("\x1b[>4;2mkeys", "keys", "keys"),  # ends as a colour does, and is none
    ("\x1b]0;title\x07text", "text", "text"),
    ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link", "link"),
    ("\x1b_apc\x1b\\\x1b^pm\x1b\\\x1bXsos\x1b\\x", "x", "x"),
    ("\x9b2Jc1\x9d0;t\x9c.", "c1.", "c1."),
    ("lone\x1b", "lone␛", "lone␛"),
    ("\x1b\x1b[2J[2J", "␛[2J", "␛[2J"),
    ("open \x1b]0;never closed", "open 0;never closed", "open 0;never closed"),
    ("\x1b[" + "1" * 65 + "mx", "x", "x"),  # int() of it could be refused
    ("nul\0bel\x07bs\x08del\x7f", "nul␀bel␇bs␈del␡", "nul␀bel␇bs␈del␡"),
    ("\x0b\x0c\x1c\x85\u2028\u2029", "␋␌␜\\u0085\\u2028\\u2029", "␋␌␜\\u0085\\u2028\\u2029"),
    ("pay \u202eevil", "pay \\u202eevil", "pay \\u202eevil"),
    ("a\nb\r", "a␊b␍", "a␊b␍"),
    ("\ud800", "\\ud800", "\\ud800"),
]


@pytest.mark.parametrize(("raw", "coloured", "bare"), SEQUENCES)
def test_what_a_task_prints_cannot_move_the_cursor(raw: str, coloured: str, bare: str) -> None:
    assert harmless(raw) == coloured
    assert plain(raw) == bare


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (-0.1, "0.0 s"), (0.25, "0.2 s"), (9.94, "9.9 s"), (9.96, "10 s"), (41, "41 s"), (99.4, "99 s"),
        (99.6, "1 min 40 s"), (3599.7, "1 h 00 min"), (7620, "2 h 07 min"), (273_600, "3 d 04 h"),
    ],
)  # fmt: skip
def test_durations(seconds: float, words: str) -> None:
    assert duration(seconds) == words


@pytest.mark.parametrize(
    ("number", "words"),
    [(0, "0 B"), (812, "812 B"), (1500, "1.5 kB"), (999_600, "1.0 MB"), (120e9, "120 GB"), (5e12, "5.0 TB")],
)
def test_sizes(number: float, words: str) -> None:
    assert size(number) == words


# What cannot be seen is kept where a script or an emoji needs it ...
LEGITIMATE = [
    "\u2764\ufe0f ok",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467",
    "\U0001f3f3\ufe0f\u200d\U0001f308",
    "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645",  # Persian, with a non-joiner
    "\u0915\u094d\u200d\u0937",  # Devanagari, with a joiner
    "\u845b\U000e0100",  # an ideograph's variant
]
# ... and shown elsewhere.
HIDDEN = [
    ("lo\u200dss", "lo\\u200dss"),
    ("ad\u200bmin", "ad\\u200bmin"),
    ("x\U000e0041\U000e0042", "x\\U000e0041\\U000e0042"),
    ("\u2603\ufe0f\ufe0f\ufe0f", "\u2603\ufe0f\\ufe0f\\ufe0f"),
]


@pytest.mark.parametrize("text", LEGITIMATE)
def test_text_of_every_script_stays_as_it_is(text: str) -> None:
    assert harmless(text) == plain(text) == text


@pytest.mark.parametrize(("raw", "shown"), HIDDEN)
def test_what_cannot_be_seen_hides_nothing(raw: str, shown: str) -> None:
    assert plain(raw) == shown


@given(st.text(st.characters(exclude_categories=[])))
def test_json_says_the_same_and_nothing_odd(text: str) -> None:
    line = json_safe(json.dumps({"a": utf8(text)}, ensure_ascii=False).encode())
    assert json.loads(line) == {"a": utf8(text)}
    assert harmless(line.decode()).count("\\u") == line.decode().count("\\u")
    assert not any(unicodedata.category(letter) in {"Cc", "Cs", "Zl", "Zp"} for letter in line.decode())


@pytest.mark.parametrize(
    ("host", "port", "shown"),
    [
        ("gpu-1", 22, "gpu-1:22"),
        ("fd00::1", 22, "[fd00::1]:22"),
        ("fd00::1", None, "fd00::1"),
        ("gpu-1", "", "gpu-1"),
    ],
)
def test_an_endpoint_has_brackets_where_its_port_could_be_a_part_of_it(
    host: str, port: int | str | None, shown: str
) -> None:
    assert endpoint(host, port) == shown
