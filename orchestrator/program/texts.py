"""What the bytes of a script say of how it can be started. Pure."""

from __future__ import annotations

import ast
import io
import re
import tokenize
import warnings

_BOM = b"\xef\xbb\xbf"
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")
# A shell takes `then\r` for the name of a program, and misses the end of what it has begun.
_KEYWORD = re.compile(rb"(?m)^[ \t]*(?:.*[; \t])?(?:then|do|done|fi|else|esac|in|\{|\}|set -\w+)\r$")


def interpreter(text: str) -> str:
    """The program that the first line names, as a command would: `perl` of `#!/usr/bin/env -S perl -w`."""
    first = text.split("\n", 1)[0].rstrip("\r")
    if not first.startswith("#!"):
        return ""
    words = [word for word in first[2:].split() if not word.startswith("-") and "=" not in word]
    names = [word.rsplit("/", 1)[-1] for word in words]
    if names[:1] == ["env"]:
        names = names[1:]
    if not names:
        return ""
    return "python" if re.fullmatch(r"python[\d.]*", names[0]) else names[0]


def not_python(data: bytes) -> str:
    """The encoding of a file that no Python reads; "" of one that may be read."""
    if data.startswith(_UTF_16):
        return "UTF-16"
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        data.decode(encoding)
    except UnicodeDecodeError:
        return "LATIN1"
    except (SyntaxError, LookupError):
        try:
            data.decode()
        except UnicodeDecodeError:
            return "LATIN1"
    return ""


def decoded(data: bytes) -> str:
    """A text as Python reads it: in the encoding that its first lines declare, else UTF-8."""
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        text = data.decode(encoding)
    except (SyntaxError, LookupError, ValueError):
        text = data.decode("utf-8", "replace")
    return io.StringIO(text, None).read().removeprefix("\ufeff")


def parsed(text: str, name: str = "<unknown>", feature_version: tuple[int, int] | None = None) -> ast.Module:
    """`ast.parse`, without the program's own warnings, such as of an invalid escape."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(text, name, feature_version=feature_version)


def not_for_unix(data: bytes, *, direct: bool) -> str:
    """Why a script cannot run, started by the kernel (`direct`) or read by a shell; "" where it may."""
    first, _, _ = data.partition(b"\n")
    if direct and data.startswith(_BOM + b"#!"):
        return "a byte order mark stands before its first line, so that nobody sees the #! there"
    if direct and first.startswith(b"#!") and first.endswith(b"\r"):
        return "its lines end with \\r\\n, and no interpreter is called " + repr(
            first[2:].decode("utf-8", "replace")
        )
    if not direct and _KEYWORD.search(data):
        return "its lines end with \\r\\n, and a shell takes the \\r for a part of the last word"
    return ""
