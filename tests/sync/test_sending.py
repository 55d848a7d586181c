"""Folders of this machine arrive as they are, in pieces and by rsync, and only what is not there is sent."""

import concurrent.futures
import os
import random
from pathlib import Path
from typing import Any

import pytest

from orchestrator import wire
from orchestrator.errors import HostError
from orchestrator.fleet import Session
from orchestrator.node.disk.listing import CHUNK
from orchestrator.node.stock.manifest import BLOB
from orchestrator.ssh import connect
from orchestrator.sync import files, pull, rsync
from orchestrator.sync import sending as sends
from orchestrator.sync.contents import ChangedError, Contents, read_folder
from orchestrator.sync.files import fetch
from orchestrator.sync.sending import Delivery, push
from tests.sync.trees import read_tree


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A tree of 6 MB with everything that is allowed in one."""
    root = tmp_path / "my code's"
    noise = random.Random(1)
    for number in range(60):
        folder = root / f"package {number % 7}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"module{number}.py").write_bytes(noise.randbytes(100_000))
    (root / "run.sh").write_text("#!/bin/sh\n")
    (root / "run.sh").chmod(0o750)
    (root / "empty").touch()
    (root / "ü \n'\"\\").write_text("odd")
    (root / os.fsdecode(b"latin-\xe9")).write_text("bytes")
    (root / ("long" * 50)).write_text("a name beyond tar's hundred bytes")
    (root / "link").symlink_to("run.sh")
    (root / "dangling").symlink_to("/nowhere/" + "x" * 120)
    return root


def send(session: Session, tree: Contents, workdir: str) -> Delivery:
    return push(session, tree, f"{workdir}/trees/{tree.digest}")


def arrived(workdir: str, tree: Contents) -> bool:
    return read_tree(Path(workdir) / "trees" / tree.digest).digest == tree.digest


def hidden(folder: Path) -> list[str]:
    return [path.name for path in folder.glob(".*")]


@pytest.fixture(params=["pieces", "rsync"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Trees are not held as they were read, and what the host has a version of goes by one way."""
    if request.param == "rsync":
        request.getfixturevalue("usable_rsync")
    monkeypatch.setattr("orchestrator.sync.contents._KEPT", 0)
    monkeypatch.setattr(sends, "RSYNC_FROM", 0 if request.param == "rsync" else 1 << 40)
    return str(request.param)


def edit(root: Path) -> Contents:
    """Write a few bytes more to one file, and a new one."""
    with (root / "package 1" / "module1.py").open("ab") as file:
        file.write(b"more")
    (root / "new").write_text("new")
    return read_tree(root)


def test_a_tree_arrives_as_it_is(session: Session, root: Path, workdir: str, way: str) -> None:
    first = read_tree(root)
    assert send(session, first, workdir).bytes >= first.size
    assert arrived(workdir, first)
    (root / "run.sh").chmod(0o600)
    (root / "empty").unlink()
    second = edit(root)
    again = send(session, second, workdir)
    assert arrived(workdir, second)
    assert arrived(workdir, first)
    assert again.bytes < (20_000 if way == "rsync" else 120_000)
    same = (Path(workdir) / "trees" / tree.digest / "package 2" / "module2.py" for tree in (first, second))
    assert len({path.stat().st_ino for path in same}) == 1
    assert hidden(Path(workdir) / "trees") == []
    again = send(session, second, workdir)
    assert (again.bytes, again.reused) == (0, True)


def test_a_tree_that_was_damaged_there_is_found_out(session: Session, root: Path, workdir: str) -> None:
    first = read_tree(root)
    send(session, first, workdir)
    victim = Path(workdir) / "trees" / first.digest / "package 1" / "module8.py"
    victim.write_bytes(b"somebody wrote here")
    second = edit(root)
    send(session, second, workdir)
    assert arrived(workdir, second)
    assert 0 < send(session, first, workdir).bytes < 300_000
    assert arrived(workdir, first)


def test_a_file_that_changes_while_it_is_sent_is_one_clear_error(
    session: Session, root: Path, workdir: str, way: str
) -> None:
    send(session, read_tree(root), workdir)
    tree = edit(root)
    (root / "package 1" / "module1.py").write_text("changed after it was read")
    with pytest.raises(ChangedError) as caught:
        send(session, tree, workdir)
    assert not isinstance(caught.value, HostError), way
    assert caught.value.paths == ("package 1/module1.py",)
    send(session, again := read_tree(root), workdir)  # and the session lives
    assert arrived(workdir, again)


def test_a_small_tree_is_sent_as_it_was_read(session: Session, root: Path, workdir: str) -> None:
    tree = read_tree(root)
    for path in root.rglob("*.py"):
        path.write_text("changed")
    send(session, tree, workdir)
    assert arrived(workdir, tree)


@pytest.mark.parametrize(
    ("says", "usable"),
    [
        ("rsync  version 3.2.7  protocol version 31", False),
        ("rsync  version v3.4.1  protocol version 32", True),
        ("rsync  version 4.0.0  protocol version 40", True),
        ("openrsync: protocol version 29", False),
    ],
)
def test_an_rsync_that_a_lying_host_can_take_over_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str, *, usable: bool
) -> None:
    (tmp_path / "rsync").write_text(f"#!/bin/sh\necho '{says}'\n")
    (tmp_path / "rsync").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert bool(rsync.here.__wrapped__()) is usable


def everything(folder: Path) -> dict[str, bytes]:
    files = (one for one in folder.rglob("*") if one.is_file() and not one.name.startswith("."))
    return {str(one.relative_to(folder)): one.read_bytes() for one in files}


CUTS = 8
MESSAGE = 200_000  # bytes of content in one


class CutError(Exception):
    """The controller is gone at this moment."""


@pytest.mark.parametrize("kind", ["code", "backup", "pull", "fetch"])
def test_an_interrupted_transfer_goes_on_and_sends_nothing_twice(
    session: Session, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut after each of some messages: the next one completes, and what had arrived does not cross again."""
    monkeypatch.setattr(sends, "_MESSAGE", MESSAGE)
    monkeypatch.setattr("orchestrator.sync.files.CHUNK", MESSAGE)
    source = tmp_path / "source"
    (source / "d").mkdir(parents=True)
    noise = random.Random(3)
    for number in range(CUTS + 4):
        (source / "d" / f"{number:02}").write_bytes(noise.randbytes(MESSAGE))
    (source / "large").write_bytes(noise.randbytes(BLOB + 1))
    contents = read_folder(source)
    crossed = [0, 0]  # messages, and bytes of content
    submit, wait = session.submit, session.wait
    sent: list[Any] = []
    cut = 0

    def counting(request: Any, payload: bytes = b"") -> Any:
        if isinstance(request, wire.StorePut | wire.FilesGet):
            crossed[0] += 1
            if crossed[0] == cut:
                concurrent.futures.wait(sent, 60)  # otherwise the load decides how many arrive
                raise CutError
        if isinstance(request, wire.StorePut):
            crossed[1] += len(payload)
        sent.append(submit(request, payload))
        return sent[-1]

    def taking(future: Any, op: str, timeout: float) -> Any:
        reply = wait(future, op, timeout)
        crossed[1] += len(reply.payload) if isinstance(reply, wire.Parts) else 0
        return reply

    monkeypatch.setattr(session, "submit", counting)
    monkeypatch.setattr(session, "wait", taking)

    def transfer(target: Path) -> None:
        if kind == "fetch":
            fetch(session, str(source), target)
        elif kind == "pull":
            parts = pull.choose(session, str(source), [])
            pull.take(session, parts, target, "run", lambda _: None)
        else:
            push(session, contents, str(target), mutable=kind == "backup")

    for point in range(1, CUTS + 1):
        target = tmp_path / f"disk {point}" / {"code": "trees"}.get(kind, "x") / contents.digest
        target.parent.mkdir(parents=True)
        crossed[:], cut = [0, 0], point
        with pytest.raises(CutError):
            transfer(target)
        assert not target.exists() or kind == "pull"
        cut = 0
        transfer(target)
        assert everything(target) == everything(source)
        assert hidden(target.parent) == []
        assert not [name for name in hidden(target) if "incoming" in name]
        assert crossed[1] <= contents.size + 5 * MESSAGE, point  # those that were on their way


def test_the_messages_in_flight_fill_a_channel_s_window() -> None:
    """On a line of 60 ms, pull was half as fast when a message became a quarter as large."""
    assert min(sends._AHEAD * sends._MESSAGE, files._AHEAD * CHUNK) >= connect._WINDOW
