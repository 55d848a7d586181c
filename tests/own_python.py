"""Scripts that are started by their name run with the Python that scripts/setup made."""

import os
import sys
from pathlib import Path

VENV = Path(__file__).resolve().parents[1] / ".venv"


def use_it() -> None:
    """Start the running script again with the clone's own Python, unless that runs it already."""
    if Path(sys.prefix) == VENV:
        return
    python = VENV / "bin" / "python"
    if not python.exists():
        sys.exit("error: nothing is set up in this clone\n  try: scripts/setup")
    os.execv(python, [str(python), *sys.argv])
