"""Files dated to times that a tar header has no digits for are carried all the same."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from orchestrator.node.disk import archive, tarstream
from orchestrator.sync import tarball
from orchestrator.sync.manifest import File

YEARS = {"1850": -3_786_825_600, "2446": 15_032_385_535, "9999": 253_370_764_800}


@pytest.fixture(params=YEARS)
def odd(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / "f"
    path.write_bytes(b"x")
    seconds = YEARS[request.param]
    os.utime(path, (seconds, seconds))
    return path


def test_code_is_sent(odd: Path) -> None:
    sent = b"".join(tarball.chunks(odd.parent, [File("f", executable=False, sha256="0" * 64, size=1)], {}))
    (member,) = _members(sent)
    assert (member.name, member.size) == ("f", 1)
    os.utime(odd, ns=(0, member.mtime_ns))


def test_what_was_carried_is_not_carried_again(odd: Path, tmp_path: Path) -> None:
    told = archive.entry(str(odd), "f")
    assert 0 <= told.mtime_ns < 1 << 63
    copy = tmp_path / "copy"
    copy.write_bytes(b"x")
    os.utime(copy, ns=(0, told.mtime_ns))
    assert archive.entry(str(copy), "f").mtime_ns == told.mtime_ns


def _members(data: bytes) -> list[tarstream.Member]:
    reader = tarstream.Reader(io.BytesIO(data))
    found = []
    for member in reader.members():
        found.append(member)
        while reader.read():
            pass
    return found
