"""--help must be instant: measured with benchmarks/help; here is what would make it slow."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
HEAVY = ("asyncio", "cryptography", "fabric", "msgspec", "paramiko", "pathspec", "rich", "tomllib")


def test_little_is_loaded_before_ctrl_c_is_taken() -> None:
    code = (
        "import sys; from orchestrator.cli.main import run; print([m for m in ('argparse',"
        "'dataclasses', 'orchestrator.model') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from orchestrator.cli.main import main\n"
        "try:\n"
        "    main(['--help'])\n"
        "except SystemExit:\n"
        "    pass\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "usage: orchestrate" in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"
