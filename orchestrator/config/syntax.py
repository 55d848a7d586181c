"""The bytes of a TOML file -> tables; the parser's findings in a user's words."""

from __future__ import annotations

import re
import tomllib
from typing import Any

from orchestrator.config.mistakes import Report
from orchestrator.config.places import Place, locate

_PLACE = re.compile(r"(.*) \(at (?:line (\d+), column (\d+)|end of document)\)", re.DOTALL)
_KEY = re.compile(r"\s*(\[{1,2}[A-Za-z0-9_. -]+\]{1,2}|[A-Za-z0-9_.-]+(?=\s*=))")

_PARTS = 100  # of a dotted key
_PART = r"""(?:[A-Za-z0-9_-]++|"[^"\\\n]*+"|'[^'\n]*+')"""
# Anywhere in a line: inline tables have keys too.
_MANY_PARTS = re.compile(rf"(?<![A-Za-z0-9_-])(?:{_PART}[ \t]*+\.[ \t]*+){{{_PARTS}}}")

_IN_OTHER_WORDS = (
    (r"(?:Illegal|Found invalid) character '\\[nr]+'", "a quote is not closed on this line"),
    (r"(?:Illegal|Found invalid) character (.*)", r"\1 cannot stand here"),
    (r"Invalid value", "there is no value that can be read; a text needs quotes"),
    (r"Cannot overwrite a value", "is given a second time in the same table"),
    (r"Cannot (?:declare|mutate|overwrite).*", "is declared a second time"),
    (
        r"Unescaped '\\' in a string|Invalid hex value|Escaped character is not.*",
        r"a text in double quotes cannot hold a single \\; write '...' or \\\\",
    ),
    (r"Expected newline or end of document.*", "something is left over after the value; a text needs quotes"),
    (r"Invalid (?:statement|initial character for a key part)", "here should be a key or a [table]"),
    (r"Expected '=' after a key.*", "a key needs = and a value after it"),
    (r"Unterminated string", "a quote is not closed"),
    (r"Unclosed array", "a list is not closed with ]"),
    (r"Unclosed inline table", "a table is not closed with }"),
    ("Expected \"'''\"", "a quote is not closed"),
)


def read(text: str | bytes, report: Report) -> dict[str, Any] | None:
    """Parse; None after a mistake. A byte order mark and any line ends are welcome."""
    decoded = text if isinstance(text, str) else _decode(text, report)
    if decoded is None:
        return None
    decoded = decoded.removeprefix("\ufeff")
    if (where := _too_many_parts(decoded)) is not None:
        report.add(Place(f"line {where}"), "", f"a key has more than {_PARTS} parts with dots between them")
        return None
    try:
        document = tomllib.loads(decoded)
    except tomllib.TOMLDecodeError as error:
        _add(str(error), decoded, report)
        return None
    except RecursionError:
        report.add_to_file("lists or tables are nested too deep")
        return None
    except ValueError:  # Python's own limit for whole numbers
        report.add_to_file("a number has too many digits")
        return None
    report.lines = locate(decoded)
    return document


def _too_many_parts(text: str) -> int | None:
    """The line of such a key: the parser's time grows with the square of their number."""
    for number, line in enumerate(text.split("\n"), start=1):
        if line.count(".") >= _PARTS and _MANY_PARTS.search(line):
            return number
    return None


def _decode(data: bytes, report: Report) -> str | None:
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        report.add_to_file("the file is UTF-16; save it as UTF-8")
        return None
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        what = f"byte 0x{data[error.start]:02x} is not UTF-8; save the file as UTF-8"
        report.add(Place(f"line {line}"), "", what)
        return None


def _add(message: str, text: str, report: Report) -> None:
    """Line, column and key, but not the rest of the line: it may hold a secret."""
    match = _PLACE.fullmatch(message)
    found = match[1] if match else message
    found = _in_other_words(found)
    if match is None:
        report.add_to_file(found)
        return
    if match[2] is None:
        report.add(
            Place("end of file"), "", "the file ends in the middle of a value" if "value" in found else found
        )
        return
    line, column = int(match[2]), int(match[3])
    content = text.replace("\r\n", "\n").split("\n")[line - 1]
    key = _KEY.match(content)
    what = _pasted(content[column - 1 : column]) or _of_python(content[column - 1 :]) or found
    report.add(Place(f"line {line}, column {column}"), key[1] if key else "", what)


def _in_other_words(found: str) -> str:
    for pattern, words in _IN_OTHER_WORDS:
        if known := re.fullmatch(pattern, found):
            return known.expand(words)
    return found


def _of_python(rest: str) -> str:
    """Values as Python and YAML write them."""
    word = re.match(r"(?:True|False|Yes|No|yes|no|on|off|None|null)\b", rest)
    if word is None:
        return ""
    if word[0] in {"None", "null"}:
        return f"{word[0]} is not a value of TOML; leave the key out"
    meant = "true" if word[0].lower() in {"true", "yes", "on"} else "false"
    return f"{word[0]} is written {meant} in TOML"


def _pasted(character: str) -> str:
    """What comes along when text is pasted from a page or another kind of file."""
    if character and character in "\u201c\u201d\u201e\u2018\u2019\u00ab\u00bb":
        return f'{character} is not a quote that TOML knows; write " in its place'
    if character in {";", "/"}:
        return "here should be a key or a [table]; a comment starts with #"
    if character and not character.isprintable() and character not in "\r\n\t":
        return f"an invisible character stands here (U+{ord(character):04X}); remove it"
    return ""
