"""Files dated before 1970 or beyond 2262 are carried all the same, once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orchestrator.node.disk.listing import entry_at


@pytest.mark.parametrize(
    "seconds", [-3_786_825_600, 15_032_385_535, 253_370_764_800], ids=["1850", "2446", "9999"]
)
def test_what_was_carried_is_not_carried_again(tmp_path: Path, seconds: int) -> None:
    odd, copy = tmp_path / "f", tmp_path / "copy"
    for path in (odd, copy):
        path.write_bytes(b"x")
    os.utime(odd, (seconds, seconds))
    told = entry_at(str(odd), None, "f")
    assert 0 <= told.mtime_ns < 1 << 63
    os.utime(copy, ns=(0, told.mtime_ns))
    assert entry_at(str(copy), None, "f").mtime_ns == told.mtime_ns
