"""Trees arrive as they are, by tar and by rsync, and only when they are not there."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.errors import ClusterError, HostError
from orchestrator.fleet import Session
from orchestrator.sync import Tree, push, read_tree, rsync


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


def test_a_tree_arrives_as_it_is(session: Session, root: Path, workdir: str, way: str) -> None:
    first = read_tree(root)
    sent = push(session, first, workdir, tar_up_to=WAYS[way])
    assert sent.sent > first.size
    assert arrived(workdir, first).digest == first.digest

    (root / "package 1" / "module1.py").write_text("changed")
    (root / "run.sh").chmod(0o600)
    (root / "empty").unlink()
    (root / "new").write_text("new")
    second = read_tree(root)
    again = push(session, second, workdir, tar_up_to=WAYS[way])
    assert arrived(workdir, second).digest == second.digest
    assert arrived(workdir, first).digest == first.digest
    assert (again.sent < 200_000) == (way == "rsync")
    same = (
        Path(workdir) / "trees" / digest / "package 2" / "module2.py"
        for digest in (first.digest, second.digest)
    )
    assert len({path.stat().st_ino for path in same}) == (1 if way == "rsync" else 2)


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


def test_rsync_that_trusts_a_wrong_base_is_put_right(session: Session, root: Path, workdir: str) -> None:
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


def test_a_file_that_changes_while_it_is_sent_is_one_clear_error(
    session: Session, root: Path, workdir: str, way: str
) -> None:
    push(session, read_tree(root), workdir, tar_up_to=WAYS[way])
    (root / "new").write_text("new")
    tree = read_tree(root)
    (root / "package 3" / "module3.py").write_text("changed after it was read")
    with pytest.raises(ClusterError) as caught:
        push(session, tree, workdir, tar_up_to=WAYS[way])
    assert not isinstance(caught.value, HostError)
    assert caught.value.what == "the code changed while it was sent"
    assert "package 3/module3.py" in caught.value.why
    assert push(session, read_tree(root), workdir, tar_up_to=WAYS[way]).sent  # and the session lives


def test_no_rsync_there(session: Session, root: Path, workdir: str, monkeypatch: pytest.MonkeyPatch) -> None:
    push(session, read_tree(root), workdir, tar_up_to=0)
    (root / "new").write_text("new")
    tree = read_tree(root)
    opened = session.link.open
    monkeypatch.setattr(session.link, "open", lambda argv: opened(["no-such-rsync", *argv[1:]]))
    assert push(session, tree, workdir, tar_up_to=0).sent > tree.size
    assert arrived(workdir, tree).digest == tree.digest


def test_no_rsync_here(session: Session, root: Path, workdir: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rsync, "here", lambda: None)
    push(session, read_tree(root), workdir, tar_up_to=0)
    (root / "new").write_text("new")
    tree = read_tree(root)
    push(session, tree, workdir, tar_up_to=0)
    assert arrived(workdir, tree).digest == tree.digest


def test_a_workdir_that_cannot_be_written(session: Session, root: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(HostError) as caught:
        push(session, read_tree(root), str(tmp_path / "file" / "work"))
    assert caught.value.kind == "workdir"
    assert caught.value.host == session.host.name


def test_an_rsync_that_fails_says_why(
    session: Session, root: Path, workdir: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    push(session, read_tree(root), workdir, tar_up_to=0)
    (root / "new").write_text("new")
    opened = session.link.open
    script = "echo 'rsync: write failed: No space left on device (28)' >&2; exit 11"
    monkeypatch.setattr(session.link, "open", lambda _: opened(["sh", "-c", script]))
    with pytest.raises(HostError) as caught:
        push(session, read_tree(root), workdir, tar_up_to=0)
    assert (caught.value.kind, caught.value.what) == ("rsync", "did not take the code")
    assert "No space left on device" in caught.value.why


def test_a_link_cut_in_the_middle_is_lost(
    sessions: Callable[[int], Session], root: Path, workdir: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = sessions(1)
    push(session, read_tree(root), workdir, tar_up_to=WAYS[way])
    (root / "new").write_text("new")
    tree = read_tree(root)
    if way == "rsync":
        opened = session.link.open

        def cut(argv: list[str]) -> object:
            channel = opened(argv)
            session.link.close()
            return channel

        monkeypatch.setattr(session.link, "open", cut)
    else:
        original = session.submit

        def cut_then_submit(op: str, /, payload: bytes = b"", **fields: object) -> object:
            if len(payload) > 0:
                session.link.close()
            return original(op, payload, **fields)

        monkeypatch.setattr(session, "submit", cut_then_submit)
    with pytest.raises(HostError) as caught:
        push(session, tree, workdir, tar_up_to=WAYS[way])
    assert caught.value.kind == "lost"
