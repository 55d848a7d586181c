"""The log is the task's bytes, whatever they are and whatever happens to the disk."""

from __future__ import annotations

import contextlib
import ctypes
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.node.base import paths
from tests.node.harness import Node, until


def test_beyond_the_cap_the_task_goes_on_and_the_gap_is_said(node: Node) -> None:
    node.start("sh", "-c", "yes | head -c 3000000; exit 5", log_cap=1_000_001)
    found = node.final()
    assert found["exit_code"] == 5
    assert node.log() == (b"y\n" * 500_001)[:1_000_001]
    (gap,) = found["gaps"]
    assert (gap["offset"], gap["bytes"]) == (1_000_001, 1_999_999)
    assert "cap of 1000001 bytes" in gap["why"]


def fill(path: Path) -> None:
    """Take all the room that is left on its disk."""
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Node]:
    """A run whose state is on a file system of 1 MiB of its own: a tmpfs, which only root may mount."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small tmpfs needs root; without it the file size limit test stands in")
    place = tmp_path / "small"
    place.mkdir()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"tmpfs", os.fsencode(place), b"tmpfs", 0, b"size=1m") != 0:
        pytest.skip(f"this root may not mount: {os.strerror(ctypes.get_errno())}")
    made = Node(paths.open_root(str(place / "state")), tmp_path)
    yield made
    try:
        made.stop(kill=True)
        made.alone()
    finally:
        libc.umount2(os.fsencode(place), 2)


def test_with_room_again_the_log_goes_on_after_a_said_gap(small: Node) -> None:
    ballast = Path(small.paths.root, "ballast")
    for name in ("one", "two"):
        os.mkfifo(small.folder / name)
    text = "l" * 5000
    small.start("sh", "-c", f"echo first; read x < one; echo {text}; read x < two; echo last")
    until(lambda: small.log() == b"first\n")
    fill(ballast)
    (small.folder / "one").write_text("\n")
    until(lambda: small.state_of()["gaps"], what="the gap is said")
    ballast.unlink()
    wait = time.monotonic() + 0.25  # the log looks for room at most every 0.2 s
    until(lambda: time.monotonic() > wait)
    (small.folder / "two").write_text("\n")
    found = small.final()
    (gap,) = found["gaps"]
    assert gap["why"] == "No space left on device"
    kept = f"first\n{text}\n".encode()
    assert gap["offset"] + gap["bytes"] == len(kept)
    assert small.log() == kept[: gap["offset"]] + b"last\n"
