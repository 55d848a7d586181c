from __future__ import annotations

import pytest

from orchestrator.render.keys import HELP, KeyAction, Keys, chosen

NONE = Keys()
# What was pressed, what follows from it, and what was asked for on the way.
PRESSED: list[tuple[list[str], Keys, list[KeyAction]]] = [
    (["?"], Keys(help=True), []),
    (["?", "?"], NONE, []),
    (["?", "\x1b"], NONE, []),
    (["p"], Keys(paused=True), []),
    (["p", "", " "], NONE, []),
    (["s"], Keys(stacks=True), [KeyAction.STACKS]),
    (["d"], NONE, [KeyAction.DETACH]),
    (["q"], NONE, [KeyAction.DETACH]),
    (["x", "", "y"], NONE, [KeyAction.STOP]),
    (["x", "n"], NONE, []),
    (["x", "x"], NONE, []),
    (["x"], Keys(asking=True), []),
    (["y"], NONE, []),
    ([*"f", *"worker/10", "\x7f", "\n"], Keys(only="worker/1"), []),
    ([*"fx", "", *"s"], Keys(typing="xs"), []),
    ([*"f1", "\n", *"f2", "\x1b"], Keys(only="1"), []),
    ([*"f1", "\n", *"f", "\n"], NONE, []),
    (["f", "\x1b[A", "\t", *"é"], Keys(typing="é"), []),
    (["f", *["1"] * 70], Keys(typing="1" * 60), []),
    (["\x1b[A", "Z", "é"], NONE, []),
]


@pytest.mark.parametrize(("pressed", "keys", "wishes"), PRESSED)
def test_keys(pressed: list[str], keys: Keys, wishes: list[KeyAction]) -> None:
    now, asked = NONE, []
    for key in pressed:
        now, wish = now.press(key)
        asked += [wish] if wish else []
    assert (now, asked) == (keys, wishes)


def test_every_key_of_the_help_does_something() -> None:
    for key, _ in HELP:
        assert Keys(help=True).press(key) != (Keys(help=True), None)


CHOSEN = [
    ("", True),
    ("worker/1", True),
    ("1", True),
    ("worker", True),
    ("gpu-02", True),
    ("worker/[0-1]", True),
    ("worker/0, gpu-[01-02]", True),
    ("worker/0 1", True),
    ("worker/10", False),
    ("chief", False),
    ("gpu-", False),
    ("worker/[0-", False),
]


@pytest.mark.parametrize(("only", "shown"), CHOSEN)
def test_whose_lines_are_shown(only: str, shown: bool) -> None:
    assert chosen(only, "worker/1", "gpu-02") is shown
