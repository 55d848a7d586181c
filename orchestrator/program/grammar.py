"""Which Python a program's grammar needs: hosts may have an older one than this machine. Pure."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable

from orchestrator.program.texts import parsed

_OLDEST = 8  # minor version that anybody trains with
_NAMED = re.compile(r" (?:is|are) only supported in")  # CPython's words behind the name of a feature


def least(files: Iterable[tuple[str, str]]) -> tuple[int, str]:
    """The oldest minor version of Python 3 that compiles these (path, text), and what needs it.

    `(10, "train.py: pattern matching")`; `(0, "")` where any will do. Of a file that this Python
    itself cannot read nothing is known. It is what `ast.parse(feature_version=...)` knows: a best effort.
    """
    found = (0, "")
    for path, text in files:
        minor, feature = _of_file(text)
        if minor > found[0]:
            found = (minor, f"{path}: {feature}")
    return found


def _of_file(text: str) -> tuple[int, str]:
    feature = ""
    for minor in range(_OLDEST, sys.version_info.minor + 1):
        try:
            parsed(text, feature_version=(3, minor))
        except SyntaxError as error:
            first, *more = _NAMED.split(error.msg, maxsplit=1)
            feature = first[:1].lower() + first[1:] if more else "its grammar"
        except (ValueError, RecursionError, MemoryError):
            return 0, ""
        else:
            return (minor, feature) if feature else (0, "")
    return 0, ""
