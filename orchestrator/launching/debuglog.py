"""debug.log, which a person will `cat`: what libraries, nodes and tracebacks say goes there made harmless."""

from __future__ import annotations

import logging
import os
import sys
import threading
from pathlib import Path
from typing import Any

from orchestrator.plainfile import make_way, open_plain
from orchestrator.text import plain

_FORMAT = "%(asctime)s %(levelname)s %(name)s %(message)s"


def open_debug_log(path: Path) -> int:
    """A descriptor to append to; one of /dev/null when the file cannot be had."""
    try:
        make_way(path)
        return open_plain(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    except OSError:
        return os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)


def log_to_stderr() -> None:
    """Log there from now on, the exceptions of threads included."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Harmless(_FORMAT))
    # In the place of whatever a caller had: its files are closed here, and their numbers soon another one's.
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    # A full disk must not fill it with reports that it is full.
    logging.raiseExceptions = False
    threading.excepthook = _of_a_thread


class _Harmless(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return "\n".join(map(plain, super().format(record).split("\n")))


def _of_a_thread(arguments: Any) -> None:
    about = (arguments.exc_type, arguments.exc_value, arguments.exc_traceback)
    name = arguments.thread.name if arguments.thread is not None else "?"
    logging.getLogger("orchestrate").error("thread %s failed", name, exc_info=about)
