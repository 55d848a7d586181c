"""Lets scripts that are started by name run with the Python that scripts/setup created."""

import os
import sys
from pathlib import Path

VENV = Path(__file__).resolve().parents[1] / ".venv"


def use_it() -> None:
    """Restart the running script with the clone's own Python, unless it already uses it."""
    if Path(sys.prefix) == VENV:
        return
    python = VENV / "bin" / "python"
    if not python.exists():
        sys.exit("error: nothing is set up in this clone\n  try: scripts/setup")
    os.execv(python, [str(python), *sys.argv])
