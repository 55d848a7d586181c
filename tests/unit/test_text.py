from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.text import count, duration, harmless, plain, signal_name, size

# What a task may print, what is left of it with colours, and without.
SEQUENCES = [
    ("plain", "plain", "plain"),
    ("größer ━━━ 漢字 👩‍👩‍👧", "größer ━━━ 漢字 👩‍👩‍👧", "größer ━━━ 漢字 👩‍👩‍👧"),
    ("tab\tstays", "tab\tstays", "tab\tstays"),
    ("\x1b[1;31mred\x1b[0m", "\x1b[1;31mred\x1b[0m", "red"),
    ("\x1b[38;2;1;2;3mx\x1b[m", "\x1b[38;2;1;2;3mx\x1b[m", "x"),
    ("\x1b[38:5:1mx", "\x1b[38:5:1mx", "x"),
    ("\x1b[2J\x1b[Hcleared", "cleared", "cleared"),
    ("up\x1b[3A, gone\x1b[K", "up, gone", "up, gone"),
    ("\x1b[?25lhidden cursor", "hidden cursor", "hidden cursor"),
    ("\x1b[?1049halternate", "alternate", "alternate"),
    ("\x1b[>4;2mkeys", "keys", "keys"),  # ends as a colour does, and is none
    ("\x1b[?4mx", "x", "x"),
    ("\x1b[6nreport", "report", "report"),
    ("\x1b]0;title\x07text", "text", "text"),
    ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link", "link"),
    ("\x1b]52;c;aGk=\x07clip", "clip", "clip"),
    ("\x1bP+q544e\x1b\\dcs", "dcs", "dcs"),
    ("\x1b_apc\x1b\\\x1b^pm\x1b\\\x1bXsos\x1b\\x", "x", "x"),
    ("\x1b(B\x1b[msgr0", "\x1b[msgr0", "sgr0"),
    ("\x1bcreset", "reset", "reset"),
    ("\x1b7\x1b8\x1b=\x1b>x", "x", "x"),
    ("\x1b#8x", "x", "x"),
    ("\x9b2Jc1\x9d0;t\x9c.", "c1.", "c1."),
    ("lone\x1b", "lone␛", "lone␛"),
    ("\x1b\x1b[2J[2J", "␛[2J", "␛[2J"),
    ("cut \x1b[3", "cut 3", "cut 3"),
    ("open \x1b]0;never closed", "open 0;never closed", "open 0;never closed"),
    ("\x1b[" + "1" * 65 + "mx", "x", "x"),  # int() of it could be refused
    ("nul\0bel\x07bs\x08del\x7f", "nul␀bel␇bs␈del␡", "nul␀bel␇bs␈del␡"),
    ("\x0b\x0c\x1c\x85\u2028\u2029", "␋␌␜\\u0085\\u2028\\u2029", "␋␌␜\\u0085\\u2028\\u2029"),
    ("pay \u202eevil", "pay \\u202eevil", "pay \\u202eevil"),
    ("a\nb\r", "a␊b␍", "a␊b␍"),
    ("\ud800", "\\ud800", "\\ud800"),
    (
        "[bold]x[/foo] :warning: [link=x]",
        "[bold]x[/foo] :warning: [link=x]",
        "[bold]x[/foo] :warning: [link=x]",
    ),
]


@pytest.mark.parametrize(("raw", "coloured", "bare"), SEQUENCES)
def test_what_a_task_prints_cannot_move_the_cursor(raw: str, coloured: str, bare: str) -> None:
    assert harmless(raw) == coloured
    assert plain(raw) == bare


@given(st.text(alphabet=st.sampled_from("\x1b\x9b\x9d\x90\x9c\x07[](PX^_m;:0123?> \\JHa\n\r\t\0")))
def test_every_escape_left_is_a_whole_colour(raw: str) -> None:
    left = re.sub(r"\x1b\[[0-9;:]{0,64}m", "", harmless(raw))
    assert all(char.isprintable() or char == "\t" for char in left)
    assert all(char.isprintable() or char == "\t" for char in plain(raw))


@given(st.text())
def test_harmless_text_is_not_changed_again(raw: str) -> None:
    assert harmless(harmless(raw)) == harmless(raw)
    assert plain(harmless(raw)) == plain(raw)


@pytest.mark.parametrize(
    ("number", "name"),
    [(9, "SIGKILL"), (15, "SIGTERM"), (7, "SIGBUS"), (10, "SIGUSR1"), (31, "SIGSYS"), (40, "signal 40")],
)
def test_signals_have_the_names_of_linux(number: int, name: str) -> None:
    assert signal_name(number) == name


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (-0.1, "0.0 s"), (0.25, "0.2 s"), (9.94, "9.9 s"), (9.96, "10 s"), (41, "41 s"), (99.4, "99 s"),
        (99.6, "1 min 40 s"),
        (185, "3 min 05 s"), (3599.7, "1 h 00 min"), (7620, "2 h 07 min"), (3 * 86400 + 4 * 3600, "3 d 04 h"),
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


def test_counts() -> None:
    assert (count(1, "host"), count(1234, "host")) == ("1 host", "1,234 hosts")
    assert count(2, "process", "processes") == "2 processes"
