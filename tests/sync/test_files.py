"""Folders are copied to and from hosts unchanged, completely or not at all, and only if they differ."""

import concurrent.futures
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator import wire
from orchestrator.errors import ClusterError, HostError
from orchestrator.fleet import Session
from orchestrator.node.disk.listing import CHUNK, FILE, FOLDER, ODD, Entry, entries
from orchestrator.node.stock.manifest import BLOB
from orchestrator.ssh import connect
from orchestrator.sync import files, pull, rsync
from orchestrator.sync import sending as sends
from orchestrator.sync.backups import BackupOrigin, carry
from orchestrator.sync.contents import ChangedError, Contents, read_folder
from orchestrator.sync.files import EventMirror, fetch
from orchestrator.sync.sending import Delivery, push
from tests.sync.trees import read_tree


@pytest.fixture
def there(tmp_path: Path) -> Path:
    """Training output on a host: 6 MB, with odd names and times."""
    root = tmp_path / "the host's" / "ckpt; echo $HOME"
    noise = random.Random(2)
    for number in range(40):
        folder = root / f"step {number % 5}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"part{number}").write_bytes(noise.randbytes(150_000))
        os.utime(folder / f"part{number}", ns=(0, 1_700_000_000_123_456_700 + number))
    (root / "empty").touch()
    (root / "empty folder").mkdir()
    (root / "private").write_text("secret")
    (root / "private").chmod(0o600)
    (root / "ü \n'\"\\").write_text("odd")
    (root / os.fsdecode(b"latin-\xe9")).write_text("bytes")
    (root / ("long" * 50)).write_text("a name beyond tar's hundred bytes")
    (root / "latest").symlink_to("step 1")
    os.mkfifo(root / "pipe")
    return root


def seen(root: Path) -> list[Entry]:
    """Return everything that must match; times and modes of folders do not matter."""
    return [
        one._replace(inode=0) if one.kind == FILE else one._replace(inode=0, mtime_ns=0, mode=0)
        for one in entries(str(root))
        if one.kind != ODD
    ]


def content(root: Path) -> dict[str, bytes | str]:
    """Return everything sent to a host: contents, links, and executable bits; no empty folders or times."""
    return {
        one.path: one.target or (root / one.path).read_bytes() + bytes([one.mode >> 6 & 1])
        for one in entries(str(root))
        if one.kind not in (FOLDER, ODD)
    }


def put(session: Session, local: Path, remote: str) -> bool:
    """Send a folder as a backup is sent; return whether anything was sent."""
    return not push(session, read_folder(local), remote, mutable=True).reused


def hidden(folder: Path) -> list[str]:
    return [name for name in os.listdir(folder) if name.startswith(".")]


def test_escaping_links_files_git_would_execute_and_pipes_are_not_copied(
    session: Session, there: Path, tmp_path: Path
) -> None:
    before = seen(there)
    (there / "outside").symlink_to("/etc")
    (there / "step 1" / "up").symlink_to("../../secret")
    (there / "step 1" / "through").symlink_to("../latest/../../secret")
    (there / "step 1" / ".GIT" / "hooks").mkdir(parents=True)
    (there / "step 1" / ".GIT" / "hooks" / "post-checkout").write_text("#!/bin/sh")
    local = tmp_path / "backup"
    for _ in range(2):
        left_out = fetch(session, str(there), local)
        assert set(left_out) == {"outside", "step 1/up", "step 1/through", "step 1/.GIT", "pipe"}
        assert seen(local) == before


def test_only_changes_are_sent_and_deletions_are_mirrored(
    session: Session, there: Path, tmp_path: Path
) -> None:
    local = tmp_path / "backup"
    fetch(session, str(there), local)
    kept = (local / "step 2" / "part2").stat().st_ino
    (there / "step 1" / "part1").write_bytes(b"x" * 150_000)  # the same size
    shutil.rmtree(there / "step 0")
    (there / "latest").unlink()
    (there / "latest").symlink_to("step 2")
    fetch(session, str(there), local)
    assert seen(local) == seen(there)
    assert (local / "step 2" / "part2").stat().st_ino == kept
    assert hidden(tmp_path) == []


def test_a_named_link_is_followed_and_kept(session: Session, there: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(there)
    fetch(session, str(tmp_path / "link"), tmp_path / "local")
    assert seen(tmp_path / "local") == seen(there)
    (tmp_path / "local" / "new").write_text("new")
    put(session, tmp_path / "local", str(tmp_path / "link"))
    assert (tmp_path / "link").is_symlink()
    assert (there / "new").read_text() == "new"


def test_a_file_that_shrinks_or_disappears_changes_nothing_locally(
    session: Session, there: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = tmp_path / "backup"
    fetch(session, str(there), local)
    before = seen(local)
    (there / "step 3" / "part3").write_bytes(b"new")
    ask = session.submit

    def then_vanish(request: Any, payload: bytes = b"") -> object:
        if isinstance(request, wire.FilesGet):
            (there / "step 3" / "part3").unlink(missing_ok=True)
        return ask(request, payload)

    monkeypatch.setattr(session, "submit", then_vanish)
    with pytest.raises(HostError, match="as a whole") as caught:
        fetch(session, str(there), local)
    assert caught.value.kind == "changed"
    assert seen(local) == before


def test_too_deep_folders_are_not_treated_as_a_lie_of_the_host(
    session: Session, there: Path, tmp_path: Path
) -> None:
    (there / "/".join("d" * 201)).mkdir(parents=True)
    with pytest.raises(HostError, match="has too many files"):
        fetch(session, str(there), tmp_path / "backup")


def test_a_log_that_grows_during_a_pull_arrives_as_last_listed(
    session: Session, there: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pulling a live run tears no file, and refuses none because it has grown."""
    ask, log = session.submit, there / "step 1" / "part1"
    rounds: list[bool] = []

    def then_grow(request: Any, payload: bytes = b"") -> Any:
        if isinstance(request, wire.FilesGet) and request.growing not in rounds:
            rounds.append(request.growing)
            with log.open("ab") as file:
                file.write(b"one more line")
        return ask(request, payload)

    monkeypatch.setattr(session, "submit", then_grow)
    (part,) = pull.choose(session, str(there), [])
    came = pull.take(session, [part], tmp_path / "results", "run", lambda _: None)
    assert (tmp_path / "results" / "step 1" / "part1").read_bytes() + b"one more line" == log.read_bytes()
    assert rounds == [False, True]
    assert came.files == len(part.entries)
    assert came.grown == ("step 1/part1",)
    assert not pull.choose(session, str(there), [], [str(there)])[0].entries  # with the time of the sent file


@pytest.mark.parametrize(("times", "arrives"), [(2, True), (999, False)])
def test_a_checkpoint_that_is_replaced_during_a_pull_arrives_as_a_whole_or_not_at_all(
    session: Session,
    there: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    times: int,
    arrives: bool,
) -> None:
    ask, model = session.submit, there / "model"
    size = 3 << 20
    model.write_bytes(bytes(size))
    count, listed = 0, True

    def then_replace(request: Any, payload: bytes = b"") -> Any:
        nonlocal count, listed
        if isinstance(request, wire.FilesGet) and b"model" in payload and listed and count < times:
            count += 1
            (there / "new").write_bytes(bytes([count]) * (size + count))  # longer, as a log that has grown
            (there / "new").replace(model)
            listed = False
        listed |= isinstance(request, wire.FilesList)
        return ask(request, payload)

    monkeypatch.setattr(session, "submit", then_replace)
    results = tmp_path / "results"
    parts = pull.choose(session, str(there), ["model", "step 1"])
    came = pull.take(session, parts, results, "run", lambda _: None)
    assert (came.torn, came.grown) == ((() if arrives else ("model",)), ())
    assert (results / "step 1" / "part1").is_file()
    assert (results / "model").exists() == arrives
    assert not arrives or (results / "model").read_bytes() == model.read_bytes()


@pytest.mark.parametrize("way", ["out", "in"])
def test_a_full_disk_is_one_clear_error(session: Session, there: Path, small_disk: Path, way: str) -> None:
    target = small_disk / "backup"
    target.mkdir()
    (target / "old").write_text("old")
    with pytest.raises(ClusterError, match=r"room|disk space"):
        fetch(session, str(there), target) if way == "out" else put(session, there, str(target))
    assert [path.name for path in target.iterdir()] == ["old"]
    assert way == "in" or [path.name for path in small_disk.iterdir()] == ["backup"]


def test_the_chief_s_backup_is_copied_to_the_others(
    sessions: Callable[[int], Session], there: Path, tmp_path: Path
) -> None:
    known = {"chief": sessions(0), "other": sessions(1), "same": sessions(1)}
    copy = tmp_path / "run" / "backup"
    remote = {"chief": str(there), "other": str(tmp_path / "other"), "same": str(tmp_path / "other")}
    carried = carry(known, "chief", remote, copy, {"same": "other"}, going_on=known)
    assert (carried.origin, carried.giver) == (BackupOrigin.HOST, "chief")
    assert list(carried.sent) == ["other"]
    assert seen(there) == seen(copy)
    assert content(tmp_path / "other") == content(there)
    again = carry(known, "chief", remote, copy, {"same": "other"}, going_on=known)
    assert [one.reused for one in again.sent.values()] == [True]

    del known["chief"]  # lost: the earlier copy is still here
    shutil.rmtree(tmp_path / "other")
    after = carry(known, "chief", remote, copy, going_on=known)
    assert (after.origin, after.giver) == (BackupOrigin.COPY, "")
    assert content(tmp_path / "other") == content(copy)


def test_a_backup_in_a_shared_folder_is_left_alone(
    sessions: Callable[[int], Session], there: Path, tmp_path: Path
) -> None:
    known = {"chief": sessions(0), "other": sessions(1)}
    before, inode = seen(there), there.stat().st_ino
    carried = carry(known, "chief", dict.fromkeys(known, str(there)), tmp_path / "copy", going_on=known)
    assert (carried.origin, [one.reused for one in carried.sent.values()]) == (BackupOrigin.HOST, [True])
    assert (seen(there), there.stat().st_ino) == (before, inode)


def test_a_backup_that_existed_only_on_a_lost_host_is_reported(
    sessions: Callable[[int], Session], there: Path, tmp_path: Path
) -> None:
    remote = {"chief": str(there), "other": str(tmp_path / "other")}
    lost = carry({"other": sessions(1)}, "chief", remote, tmp_path / "copy", going_on=["other"])
    assert (lost.origin, lost.sent, lost.failed) == (BackupOrigin.NOWHERE, {}, {})
    remote["chief"] = str(tmp_path / "nothing")
    none = carry({"chief": sessions(0)}, "chief", remote, tmp_path / "copy", going_on=["chief"])
    assert (none.origin, none.sent, none.failed) == (BackupOrigin.NOWHERE, {}, {})
    assert not (tmp_path / "other").exists()


def test_an_old_copy_does_not_overwrite_newer_files_on_a_shared_disk(
    sessions: Callable[[int], Session], there: Path, tmp_path: Path
) -> None:
    known = {"chief": sessions(0), "other": sessions(1), "apart": sessions(0)}
    remote = {"chief": str(there), "other": str(there), "apart": str(tmp_path / "apart")}
    copy, shared = tmp_path / "run" / "backup", {"chief": "chief", "other": "chief"}
    carry(known, "chief", remote, copy, shared, going_on=known)
    (there / "step 1" / "part1").write_bytes(b"newer")
    newer = content(there)
    del known["chief"]
    carried = carry(known, "chief", remote, copy, shared, going_on=known)
    assert (carried.origin, carried.giver, list(carried.sent)) == (BackupOrigin.HOST, "other", ["apart"])
    assert content(there) == content(copy) == content(tmp_path / "apart") == newer


def test_nothing_changes_if_the_newest_backup_is_unavailable(
    sessions: Callable[[int], Session], there: Path, tmp_path: Path
) -> None:
    known = {"chief": sessions(0), "other": sessions(1)}
    remote = {"chief": str(there), "other": str(tmp_path / "other")}
    copy = tmp_path / "run" / "backup"
    carry(known, "chief", remote, copy, going_on=known)
    before = content(copy)
    (tmp_path / "other" / "newer").write_text("of another")
    shutil.rmtree(there)
    os.mkfifo(there)
    carried = carry(known, "chief", remote, copy, going_on=known)
    assert (carried.origin, carried.sent, list(carried.failed)) == (BackupOrigin.NOWHERE, {}, ["chief"])
    assert (tmp_path / "other" / "newer").exists()
    # A host that was replaced, and returned in that state, counts as lost.
    carried = carry(known, "chief", remote, copy, going_on=["other"])
    assert (carried.origin, list(carried.sent), carried.failed) == (BackupOrigin.COPY, ["other"], {})
    assert content(tmp_path / "other") == content(copy) == before


def test_a_backup_removed_by_a_host_is_not_restored_from_elsewhere(
    sessions: Callable[[int], Session], there: Path, tmp_path: Path
) -> None:
    """Keras removes a backup at the end of training; copies on other hosts would restore an old step."""
    known = {name: sessions(number % 2) for number, name in enumerate(("chief", "other", "own", "ill"))}
    remote = {"chief": str(there)} | {name: str(tmp_path / name) for name in ("other", "own", "ill")}
    copy, removed = tmp_path / "run" / "backup", tmp_path / "run" / "backup.removed"
    carry(known, "chief", remote, copy, going_on=known)
    before = seen(copy)
    (tmp_path / "own" / "mine").write_text("not of the chief")
    shutil.rmtree(there)
    (tmp_path / "ill").rename(tmp_path / "kept")
    os.mkfifo(tmp_path / "ill")
    carried = carry(known, "chief", remote, copy, going_on=known)
    assert (carried.origin, list(carried.failed)) == (BackupOrigin.REMOVED, ["ill"])
    assert seen(copy) == before  # the remaining copies must be known

    (tmp_path / "ill").unlink()
    (tmp_path / "kept").rename(tmp_path / "ill")
    carried = carry(known, "chief", remote, copy, going_on=known)
    assert (carried.origin, carried.failed) == (BackupOrigin.REMOVED, {})
    assert [(tmp_path / name).exists() for name in ("other", "own", "ill")] == [False, True, False]
    assert (tmp_path / "own" / "mine").exists()
    assert hidden(tmp_path) == []
    assert (copy.exists(), seen(removed)) == (False, before)
    assert carry(known, "chief", remote, copy, going_on=known).origin is BackupOrigin.NOWHERE


# --- Local folders arrive unchanged, in pieces and by rsync; only missing parts are sent ---


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


@pytest.fixture(params=["pieces", "rsync"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Keep no trees in memory, and send files the host has a version of in one way only."""
    if request.param == "rsync":
        request.getfixturevalue("usable_rsync")
    monkeypatch.setattr("orchestrator.sync.contents._KEPT", 0)
    monkeypatch.setattr(sends, "RSYNC_FROM", 0 if request.param == "rsync" else 1 << 40)
    return str(request.param)


def edit(root: Path) -> Contents:
    """Append a few bytes to one file, and create another."""
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


def test_a_tree_damaged_on_the_host_is_detected(session: Session, root: Path, workdir: str) -> None:
    first = read_tree(root)
    send(session, first, workdir)
    victim = Path(workdir) / "trees" / first.digest / "package 1" / "module8.py"
    victim.write_bytes(b"somebody wrote here")
    second = edit(root)
    send(session, second, workdir)
    assert arrived(workdir, second)
    assert 0 < send(session, first, workdir).bytes < 300_000
    assert arrived(workdir, first)


def test_a_file_that_changes_while_being_sent_is_one_clear_error(
    session: Session, root: Path, workdir: str, way: str
) -> None:
    send(session, read_tree(root), workdir)
    tree = edit(root)
    (root / "package 1" / "module1.py").write_text("changed after it was read")
    with pytest.raises(ChangedError) as caught:
        send(session, tree, workdir)
    assert not isinstance(caught.value, HostError), way
    assert caught.value.paths == ("package 1/module1.py",)
    send(session, again := read_tree(root), workdir)  # and the session stays alive
    assert arrived(workdir, again)


def test_a_file_that_grows_while_it_is_sent_arrives_as_it_was_read(
    session: Session, root: Path, workdir: str, way: str
) -> None:
    """A log in the folder of the code."""
    send(session, read_tree(root), workdir)
    tree = edit(root)
    with (root / "package 1" / "module1.py").open("ab") as file:
        file.write(b"one more line")
    send(session, tree, workdir)
    assert arrived(workdir, tree), way


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
def test_an_rsync_vulnerable_to_a_lying_host_is_not_used(
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
    """The controller disappears at this moment."""


@pytest.mark.parametrize("kind", ["code", "backup", "pull", "fetch"])
def test_an_interrupted_transfer_resumes_and_sends_nothing_twice(
    session: Session, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut after each of some messages: the next transfer completes, and resends nothing that had arrived."""
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
                concurrent.futures.wait(sent, 60)  # otherwise the number that arrive depends on the load
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
        assert crossed[1] <= contents.size + 5 * MESSAGE, point  # those in transit


def test_messages_in_flight_fill_the_channel_s_window() -> None:
    """With 60 ms latency, pull was half as fast once messages became a quarter as large."""
    assert min(sends._AHEAD * sends._MESSAGE, files._AHEAD * CHUNK) >= connect._WINDOW


# --- Event files are copied as they grow ---

EVENTS = "events.out.tfevents.1.gpu-01"


def test_growing_remote_files_grow_locally(session: Session, tmp_path: Path) -> None:
    there, here = tmp_path / "there", tmp_path / "here"
    mirror = EventMirror(here, str(there))
    mirror.catch_up(session)  # the folder does not exist yet
    for name in ("worker/train", "worker/validation", "no events"):
        (there / name).mkdir(parents=True)
    (there / "worker/train" / EVENTS).write_bytes(os.urandom((5 << 20) + 17))  # in pieces
    (there / "worker/validation" / EVENTS).write_bytes(b"first")
    (there / "worker" / "checkpoint").write_bytes(b"stays there")
    (there / "worker" / "link.tfevents").symlink_to("/etc/passwd")
    mirror.catch_up(session)
    names = {f"worker/{name}/{EVENTS}" for name in ("train", "validation")}
    found = {str(path.relative_to(here)): path.read_bytes() for path in here.rglob("*") if path.is_file()}
    assert found == {name: (there / name).read_bytes() for name in names}
    inode = (here / "worker/validation" / EVENTS).stat().st_ino
    with (there / "worker/validation" / EVENTS).open("ab") as grown:
        grown.write(b" and second")
    mirror.catch_up(session)
    assert (here / "worker/validation" / EVENTS).read_bytes() == b"first and second"
    # The same file: TensorBoard has it open.
    assert (here / "worker/validation" / EVENTS).stat().st_ino == inode
    (there / "worker/validation" / EVENTS).write_bytes(b"anew")
    mirror.catch_up(session)
    assert (here / "worker/validation" / EVENTS).read_bytes() == b"anew"
