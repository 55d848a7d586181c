"""Who does not reach whom, in words."""

from __future__ import annotations

from itertools import permutations

import pytest

from orchestrator.run.reach import Pair, closed, in_words


def both(*pairs: Pair) -> set[Pair]:
    return {one for pair in pairs for one in (pair, pair[::-1])}


@pytest.mark.parametrize(
    ("pairs", "hosts", "words"),
    [
        (set(), "abc", ""),
        (both(("a", "b")), "ab", "a and b do not reach each other"),
        (both(("a", "b")), "abc", "a and b do not reach each other"),
        ({("a", "b")}, "abc", "a does not reach b"),
        (both(("a", "b"), ("a", "c")), "abc", "b,c and a do not reach each other"),
        (both(*((x, y) for x in "ab" for y in "cde")), "abcde", "c,d,e and a,b do not reach each other"),
        (
            {*both(("a", "b")), ("c", "d")},
            "abcd",
            "a and b do not reach each other, c does not reach d",
        ),
        (
            both(*zip("aceg", "bdfh", strict=True)),
            "abcdefgh",
            ", ".join(f"{x} and {y} do not reach each other" for x, y in ("ab", "cd", "ef"))
            + " (and 1 more pairs)",
        ),
    ],
)
def test_words(pairs: set[Pair], hosts: str, words: str) -> None:
    assert in_words(pairs, hosts) == words


def test_a_port_that_refuses_has_answered() -> None:
    tried = dict(zip(permutations("abc", 2), ("", "refused", "timed out", "no route", "", ""), strict=True))
    assert closed(tried) == {("b", "a"), ("b", "c")}
