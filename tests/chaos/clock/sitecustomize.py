"""Gives a Python with this on its path its own wall clock: the machine's, plus the seconds in a file.

The machine's clock cannot be set for one program only, and libfaketime makes Python's `sleep` fail.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

_FILE = Path(os.environ["ORCHESTRATE_CHAOS_CLOCK"])
_seconds, _nanoseconds, _localtime, _gmtime = time.time, time.time_ns, time.localtime, time.gmtime


def _ahead() -> int:
    return int(_FILE.read_text(encoding="ascii"))


def _now(given: Any) -> Any:
    return _seconds() + _ahead() if given is None else given


time.time = lambda: _seconds() + _ahead()
time.time_ns = lambda: _nanoseconds() + _ahead() * 10**9
time.localtime = lambda seconds=None: _localtime(_now(seconds))
time.gmtime = lambda seconds=None: _gmtime(_now(seconds))
