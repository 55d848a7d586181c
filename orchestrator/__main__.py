"""`python -m orchestrator`: the same as `orchestrate`."""

from __future__ import annotations

from orchestrator.cli.main import run

if __name__ == "__main__":
    run()
