"""The command that this program was started by, changed in some options: a line that can be typed."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

_ENTRY = ("worker_entry", "__main__.py")
_OURS = ("--validate",)  # what orchestrate adds for a local training


def again(*added: str, without: Sequence[str] = ()) -> str:
    """`orchestrate launch -- --epochs 8 --dataset digits`; of options in `without` the values go, too.

    By hand it is `python -m worker_entry ...`. The options of another program of ours are not taken along.
    """
    given = sys.argv[1:] if Path(sys.argv[0]).parts[-2:] == _ENTRY else []
    by_us = "ORCHESTRATE_RUN" in os.environ
    words = ["orchestrate", "launch", "--"] if by_us else ["python", "-m", "worker_entry"]
    return shlex.join([*words, *_kept(given, {*_OURS, *without}), *added])


def _kept(words: Sequence[str], dropped: set[str]) -> list[str]:
    kept = []
    dropping = False
    for word in words:
        if word.startswith("--"):
            dropping = word.partition("=")[0] in dropped
        if not dropping:
            kept.append(word)
    return kept
