"""The log is the task's bytes, whatever they are and whatever happens to the disk."""

import contextlib
import ctypes
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.node.base import paths
from orchestrator.node.hook import sitecustomize
from orchestrator.node.task import environ
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


LINES = "print('a', 'b'); print('half', end='')"
CHILD = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {LINES!r}])"


@pytest.mark.parametrize(
    ("unbuffered", "program", "writes"),
    [
        ("1", LINES, [b"a b\n", b"half"]),
        ("", LINES, [b"a b\nhalf"]),
        ("1", CHILD, [b"a", b" ", b"b", b"\n", b"half"]),  # somebody may wait for half a line of it
    ],
)
def test_a_line_is_one_write(tmp_path: Path, unbuffered: str, program: str, writes: list[bytes]) -> None:
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)  # each write is a message
    hook = {
        "PYTHONPATH": str(Path(sitecustomize.__file__).parent),
        "PYTHONUNBUFFERED": unbuffered,
        "ORCHESTRATE_STACKS": f"{environ.SIGNAL}:{tmp_path}/stacks",
        "ORCHESTRATE_REPORT": str(tmp_path / "report"),
    }
    with ours, its:
        argv = [sys.executable, "-c", program]
        subprocess.run(argv, stdout=its.fileno(), env=os.environ | hook, check=True)
        its.send(b"end")
        received = iter(lambda: ours.recv(100), b"end")
        assert [write for write in received if write] == writes  # Python 3.13 also writes nothing at its end
