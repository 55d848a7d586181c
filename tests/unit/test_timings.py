"""How long the controller waits for what, and how a test changes it."""

from __future__ import annotations

import pytest

from orchestrator.errors import UsageError
from orchestrator.timings import DEFAULT, VARIABLE, Timings, read


def test_what_is_not_given_stays_as_it_is() -> None:
    assert read({}) == read({VARIABLE: ""}) == read({VARIABLE: "{}"}) == DEFAULT
    assert read({VARIABLE: '{"silence": 3, "pauses": [0.05]}'}) == Timings(silence=3.0, pauses=(0.05,))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("3", "Expected `object`"),
        ('{"silnce": 3}', "there is no 'silnce'"),
        ('{"silence": "long"}', "Expected `float`"),
        ("{", "truncated"),
        ("[" * 5000, ""),
    ],
)
def test_anything_else_is_an_error(text: str, why: str) -> None:
    with pytest.raises(UsageError) as error:
        read({VARIABLE: text})
    assert why in error.value.why
