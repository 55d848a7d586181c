"""Questions to nvidia-smi."""

from __future__ import annotations

from .program import SECONDS, run_program

AWAKE = 40.0  # seconds; it wakes each GPU where the driver lets them sleep (no persistence mode)


def ask(query: str, seconds: float = SECONDS) -> list[list[str]] | None:
    """A row of fields for each line of the answer, as many as were asked for; None without nvidia-smi.

    `query` is one of its options: `--query-gpu=index,name`.
    """
    text = run_program(["nvidia-smi", query, "--format=csv,noheader,nounits"], seconds)
    most = query.count(",")  # behind that a comma belongs to the last field
    rows = [[field.strip() for field in line.split(",", most)] for line in (text or "").splitlines()]
    return None if text is None else [row for row in rows if len(row) == most + 1]
