"""Trees arrive as they are, by tar and by rsync, and only when they are not there."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator import wire
from orchestrator.errors import HostError
from orchestrator.fleet import Session
from orchestrator.node.base.locks import is_taken
from orchestrator.sync import Tree, push, read_tree, rsync
from orchestrator.sync.tarball import ChangedError


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


def arrived(workdir: str, tree: Tree) -> Tree:
    return read_tree(Path(workdir) / "trees" / tree.digest)


WAYS = {"tar": 1 << 40, "rsync": 0}  # tar_up_to


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trees of any size are treated as large ones, which are not held as they were read."""
    monkeypatch.setattr("orchestrator.sync.tree._KEPT", 0)


def edit(root: Path) -> Tree:
    """The tree with a few bytes more in one file, and a new one."""
    with (root / "package 1" / "module1.py").open("ab") as file:
        file.write(b"more")
    (root / "new").write_text("new")
    return read_tree(root)


@pytest.mark.usefixtures("large")
def test_a_tree_arrives_as_it_is(session: Session, root: Path, workdir: str, way: str) -> None:
    first = read_tree(root)
    sent = push(session, first, workdir, tar_up_to=WAYS[way])
    assert sent.sent > first.size
    assert arrived(workdir, first).digest == first.digest

    (root / "run.sh").chmod(0o600)
    (root / "empty").unlink()
    second = edit(root)
    again = push(session, second, workdir, tar_up_to=WAYS[way])
    assert arrived(workdir, second).digest == second.digest
    assert arrived(workdir, first).digest == first.digest
    assert again.sent < (20_000 if way == "rsync" else 120_000)
    same = (
        Path(workdir) / "trees" / digest / "package 2" / "module2.py"
        for digest in (first.digest, second.digest)
    )
    assert len({path.stat().st_ino for path in same}) == 1


def test_what_any_tree_there_has_is_not_sent(
    session: Session, root: Path, tmp_path: Path, workdir: str
) -> None:
    push(session, read_tree(root), workdir)
    other = tmp_path / "another project"
    other.mkdir()
    (other / "train.py").write_text("pass")
    push(session, read_tree(other), workdir)
    assert push(session, edit(root), workdir).sent < 120_000
    (root / "package 1").rename(root / "moved")
    assert push(session, read_tree(root), workdir).sent < 10_000


@pytest.fixture
def asked(session: Session, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The operations that the session's host was asked for."""
    ops: list[str] = []
    submit = session.submit

    def noting(request: Any, payload: bytes = b"") -> Any:
        ops.append(request.OP)
        return submit(request, payload)

    monkeypatch.setattr(session, "submit", noting)
    return ops


def test_what_was_edited_last_goes_along_with_the_question(
    session: Session, root: Path, workdir: str, asked: list[str]
) -> None:
    push(session, read_tree(root), workdir)
    asked.clear()
    (root / "run.sh").write_text("#!/bin/sh\necho edited\n")
    (root / "new").write_text("new")
    second = read_tree(root)
    done = push(session, second, workdir)
    assert asked == ["tree_begin"]
    assert not done.reused
    assert 0 < done.sent < 20_000
    assert arrived(workdir, second).digest == second.digest
    nothing_is_half_made(workdir)
    asked.clear()
    (root / "new").unlink()  # all that is left is there
    third = read_tree(root)
    push(session, third, workdir)
    assert asked == ["tree_begin"]
    assert arrived(workdir, third).digest == third.digest


def test_what_did_not_go_along_is_asked_for(
    session: Session, root: Path, workdir: str, asked: list[str]
) -> None:
    push(session, read_tree(root), workdir)
    asked.clear()
    old = root / "package 3" / "module3.py"
    old.write_text("edited, with the time of another year")
    os.utime(old, (1, 1))
    (root / "run.sh").write_text("#!/bin/sh\necho edited\n")
    for number in range(20):  # newer than both, and there
        (root / f"link{number}").write_text("#!/bin/sh\n")
    push(session, read_tree(root), workdir)
    assert asked == ["tree_begin", "tree_tar", "tree_tar", "tree_seal"]
    assert arrived(workdir, read_tree(root)).digest == read_tree(root).digest
    nothing_is_half_made(workdir)


def test_a_tree_that_was_damaged_there_is_found_out(session: Session, root: Path, workdir: str) -> None:
    first = read_tree(root)
    push(session, first, workdir)
    victim = Path(workdir) / "trees" / first.digest / "package 1" / "module8.py"
    victim.write_bytes(b"somebody wrote here")
    second = edit(root)
    push(session, second, workdir)
    assert arrived(workdir, second).digest == second.digest


def test_an_unchanged_tree_sends_nothing(session: Session, root: Path, workdir: str) -> None:
    tree = read_tree(root)
    assert not push(session, tree, workdir).reused
    again = push(session, read_tree(root), workdir)
    assert (again.sent, again.reused) == (0, True)


def test_an_empty_tree(session: Session, tmp_path: Path, workdir: str) -> None:
    (tmp_path / "empty").mkdir()
    tree = read_tree(tmp_path / "empty")
    push(session, tree, workdir)
    assert arrived(workdir, tree).files == 0


@pytest.mark.usefixtures("large")
def test_rsync_never_trusts_size_and_time(session: Session, root: Path, workdir: str) -> None:
    first = read_tree(root)
    push(session, first, workdir, tar_up_to=0)
    victim = root / "package 1" / "module1.py"
    before = victim.stat()
    victim.write_bytes(bytes(byte ^ 1 for byte in victim.read_bytes()))
    os.utime(victim, ns=(before.st_atime_ns, before.st_mtime_ns))  # the same size, the same time
    os.utime(Path(workdir) / "trees" / first.digest / "package 1" / "module1.py", ns=(0, before.st_mtime_ns))
    second = read_tree(root)
    push(session, second, workdir, tar_up_to=0)
    assert arrived(workdir, second).digest == second.digest
    assert arrived(workdir, first).digest == first.digest


@pytest.mark.usefixtures("large")
def test_a_file_that_changes_while_it_is_sent_is_one_clear_error(
    session: Session, root: Path, workdir: str, way: str
) -> None:
    push(session, read_tree(root), workdir, tar_up_to=WAYS[way])
    tree = edit(root)
    (root / "package 1" / "module1.py").write_text("changed after it was read")
    with pytest.raises(ChangedError) as caught:
        push(session, tree, workdir, tar_up_to=WAYS[way])
    assert not isinstance(caught.value, HostError)
    assert caught.value.what == "the code changed while it was sent"
    assert caught.value.paths == ("package 1/module1.py",)
    nothing_is_half_made(workdir)
    pinned = read_tree(root, pinned=caught.value.paths)
    (root / "package 1" / "module1.py").write_text("and changed again")
    assert push(session, pinned, workdir).sent  # and the session lives
    assert arrived(workdir, pinned).digest == pinned.digest


def test_a_small_tree_is_sent_as_it_was_read(session: Session, root: Path, workdir: str) -> None:
    tree = read_tree(root)
    for path in root.rglob("*.py"):
        path.write_text("changed")
    push(session, tree, workdir)
    assert arrived(workdir, tree).digest == tree.digest


def nothing_is_half_made(workdir: str) -> None:
    def hidden() -> list[str]:
        return [path.name for path in (Path(workdir) / "trees").glob(".*")]

    deadline = time.monotonic() + 60
    while hidden() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not hidden()


def begin(session: Session, tree: Tree, workdir: str) -> str:
    """Send the first piece of a tree; return the folder that is being filled."""
    manifest = tree.manifest.as_json
    begun = session.request(
        wire.TreeBegin(workdir=workdir, digest=tree.digest, manifest=manifest, reuse=True)
    )
    piece = wire.TreeTar(workdir=workdir, digest=tree.digest, more=True)
    session.request(piece, next(iter(tree.stream())))
    assert begun.incoming is not None
    return begun.incoming


def agent_of(session: Session) -> int:
    """The process that has written down what it receives, and holds the lock of its note."""
    notes = f"{session.host.state}/incoming/"
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            folder = f"/proc/{pid}/fd"
            if any(os.readlink(f"{folder}/{fd}").startswith(notes) for fd in os.listdir(folder)):
                return int(pid)
    raise AssertionError(f"nobody has a note in {notes}")


def nobody_holds_a_note(session: Session) -> None:
    """Wait until the kernel has let go of what a killed agent and its children had locked."""
    deadline = time.monotonic() + 60
    notes = list(Path(f"{session.host.state}/incoming").iterdir())
    assert notes
    while any(is_taken(str(note)) for note in notes):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_an_agent_that_loses_its_controller_leaves_nothing(
    sessions: Callable[[int], Session], root: Path, workdir: str
) -> None:
    session, tree = sessions(1), read_tree(root)
    assert Path(begin(session, tree, workdir)).is_dir()
    session.close()
    nothing_is_half_made(workdir)


def test_what_a_killed_agent_left_goes_with_the_next_launch(
    sessions: Callable[[int], Session], root: Path, workdir: str
) -> None:
    session, tree = sessions(1), read_tree(root)
    begin(session, tree, workdir)
    os.kill(agent_of(session), signal.SIGKILL)
    nobody_holds_a_note(session)
    assert list((Path(workdir) / "trees").glob(".incoming-*"))
    push(sessions(1), tree, workdir)
    nothing_is_half_made(workdir)


@pytest.mark.usefixtures("large")
def test_no_rsync_there(session: Session, root: Path, workdir: str, monkeypatch: pytest.MonkeyPatch) -> None:
    push(session, read_tree(root), workdir, tar_up_to=0)
    tree = edit(root)
    opened = session.link.open
    monkeypatch.setattr(session.link, "open", lambda argv: opened(["no-such-rsync", *argv[1:]]))
    assert push(session, tree, workdir, tar_up_to=0).sent > 100_000
    assert arrived(workdir, tree).digest == tree.digest


@pytest.mark.usefixtures("large")
def test_no_rsync_here(session: Session, root: Path, workdir: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rsync, "here", lambda: None)
    push(session, read_tree(root), workdir, tar_up_to=0)
    tree = edit(root)
    push(session, tree, workdir, tar_up_to=0)
    assert arrived(workdir, tree).digest == tree.digest


def test_a_workdir_that_cannot_be_written(session: Session, root: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(HostError) as caught:
        push(session, read_tree(root), str(tmp_path / "file" / "work"))
    assert caught.value.kind == "workdir"
    assert caught.value.host == session.host.name


@pytest.mark.usefixtures("large")
def test_an_rsync_that_fails_says_why(
    session: Session, root: Path, workdir: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    push(session, read_tree(root), workdir, tar_up_to=0)
    edit(root)
    opened = session.link.open
    script = "echo 'rsync: write failed: No space left on device (28)' >&2; exit 11"
    monkeypatch.setattr(session.link, "open", lambda _: opened(["sh", "-c", script]))
    with pytest.raises(HostError) as caught:
        push(session, read_tree(root), workdir, tar_up_to=0)
    assert (caught.value.kind, caught.value.what) == ("rsync", "did not take the code")
    assert "No space left on device" in caught.value.why


@pytest.mark.usefixtures("large")
def test_a_link_cut_in_the_middle_is_lost(
    sessions: Callable[[int], Session], root: Path, workdir: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = sessions(1)
    push(session, read_tree(root), workdir, tar_up_to=WAYS[way])
    tree = edit(root)
    if way == "rsync":
        opened = session.link.open

        def cut(argv: list[str]) -> object:
            channel = opened(argv)
            session.link.close()
            return channel

        monkeypatch.setattr(session.link, "open", cut)
    else:
        original = session.submit

        def cut_then_submit(request: wire.Request[wire.Nothing], payload: bytes = b"") -> object:
            if len(payload) > 0:
                session.link.close()
            return original(request, payload)

        monkeypatch.setattr(session, "submit", cut_then_submit)
    with pytest.raises(HostError) as caught:
        push(session, tree, workdir, tar_up_to=WAYS[way])
    assert caught.value.kind == "lost"


def allocated(path: Path) -> int:
    return path.stat().st_blocks * 512


def test_holes_neither_cross_nor_fill_the_disk(session: Session, tmp_path: Path, workdir: str) -> None:
    root = tmp_path / "sparse"
    root.mkdir()
    with (root / "index.bin").open("wb") as file:
        file.write(b"head")
        file.truncate(300_000_000)
        file.seek(200_000_000)
        file.write(b"middle")
    tree = read_tree(root)
    assert any("its holes stay" in note for note in tree.notes)
    assert push(session, tree, workdir).sent < 2_000_000
    there = Path(workdir) / "trees" / tree.digest / "index.bin"
    assert allocated(there) < 2_000_000
    made = session.request(wire.WorkMake(workdir=workdir, run="r1", digests=[tree.digest], also=[]))
    copy = Path(made.work) / "index.bin"
    assert allocated(copy) < 2_000_000
    assert copy.stat().st_size == 300_000_000
    with copy.open("rb") as file:
        assert file.read(5) == b"head\0"
        file.seek(200_000_000)
        assert file.read(7) == b"middle\0"
    copy.write_bytes(b"a task writes")
    assert arrived(workdir, tree).digest == tree.digest
