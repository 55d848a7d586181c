"""No secret in anything that is shown."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.redact import redact

KEY = "-----BEGIN KEY-----\nMIIEvQIBADANBgkq\nhkiG9w0BAQEFAASC\n-----END KEY-----\n"


@pytest.mark.parametrize(
    ("text", "values", "shown"),
    [
        ("token abc123", ["abc123"], "token ***"),
        ("abc123abc123", ["abc123"], "******"),
        ("abc123 abc", ["abc", "abc123"], "*** ***"),
        ("nothing", [""], "nothing"),
        ("nothing", [], "nothing"),
        ("a.c abc", ["a.c"], "*** abc"),
        (json.dumps({"k": 'quo"te\nline'}), ['quo"te\nline'], '{"k": "***"}'),
        (json.dumps({"k": "pass-é"}), ["pass-é"], '{"k": "***"}'),
        (repr({"k": "it's\t"}), ["it's\t"], "{'k': \"***\"}"),
        ("read MIIEvQIBADANBgkq then", [KEY], "read *** then"),
        (KEY, [KEY], "***"),
    ],
)
def test_redact(text: str, values: list[str], shown: str) -> None:
    assert redact(text, values) == shown


_secrets = st.lists(st.text(st.characters(exclude_characters="*"), min_size=1), min_size=1, max_size=3)


@settings(deadline=None)
@given(st.text(st.characters(exclude_characters="*")), st.text(), _secrets)
def test_no_value_is_left(before: str, after: str, values: list[str]) -> None:
    shown = redact(before + values[0] + after, values)
    assert not any(value in shown for value in values)
    assert redact(shown, values) == shown
