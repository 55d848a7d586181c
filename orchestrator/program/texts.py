"""Texts of Python programs. Pure."""

from __future__ import annotations

import ast
import io
import tokenize
import warnings


def decoded(data: bytes) -> str:
    """Decode a text as Python reads it: in the encoding that its first lines declare, else UTF-8."""
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        text = data.decode(encoding)
    except (SyntaxError, LookupError, ValueError):
        text = data.decode("utf-8", "replace")
    return io.StringIO(text, None).read().removeprefix("\ufeff")


def parsed(text: str | bytes, name: str = "<unknown>") -> ast.Module:
    """Parse a program without its own warnings, such as of an invalid escape."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(text, name)
