"""A lying host causes one error: none of our files is read, moved, changed, or created."""

import contextlib
import os
import secrets
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.errors import ClusterError, HostError, OrchestrateError
from orchestrator.node.disk.below import Below, stays_inside
from orchestrator.node.disk.listing import MOST_ENTRIES
from orchestrator.node.disk.removing import remove
from orchestrator.sync import pull
from orchestrator.sync.backups import carry
from orchestrator.sync.conversation import Conversation
from orchestrator.sync.files import EventMirror, fetch
from orchestrator.sync.pull import RECORD, Part, read_record
from tests.sync.liar import Liar, file, folder, link

UNASKED = "sent files that were not requested"

LISTINGS: dict[str, object] = {
    "dotdot": [file("../x")],
    "a NUL": [file("a\0b")],
    "long path": [folder("/".join(["x" * 200] * n)) for n in range(1, 25)],
    "twice": [file("a"), file("a")],
    "below a file": [file("a"), file("a/x")],
    "before its folder": [file("a/x"), folder("a")],
    "a device": [file("a", kind="device")],
    "negative size": [file("a", -1)],
    "no JSON": b"\xff",
}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The user's own files, which must be unchanged at the end whatever the host sends."""
    home = tmp_path / "home"
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh" / "id").write_text("key")
    (home / "target").mkdir()
    (home / "target" / "mine").write_text("mine")
    return home


def all_of(root: Path) -> list[object]:
    """Return every path with everything that can change about it."""
    found: list[object] = []
    for place in sorted(root.rglob("*")):
        now = place.lstat()
        content = place.read_bytes() if stat.S_ISREG(now.st_mode) else b""
        found.append((str(place), now.st_mode, now.st_ino, content))
    return found


def into_fetch(liar: Liar, home: Path) -> None:
    fetch(liar.session, "/there", home / "target")


def into_pull(liar: Liar, home: Path) -> None:
    parts = pull.choose(liar.session, "/there", [])
    pull.take(liar.session, parts, home / "target", "run", lambda _: None)


def into_backup(liar: Liar, home: Path) -> None:
    carried = carry({"liar": liar.session}, "liar", {"liar": "/there"}, home / "target", going_on=["liar"])
    raise carried.failed["liar"]


WAYS: list[Callable[[Liar, Path], None]] = [into_fetch, into_pull, into_backup]


def refused(way: Callable[[Liar, Path], None], liar: Liar, home: Path) -> OrchestrateError:
    before = all_of(home.parent)
    with pytest.raises(ClusterError) as caught:
        way(liar, home)
    assert all_of(home.parent) == before
    assert caught.value.why.isprintable()
    return caught.value


@pytest.mark.parametrize("listing", LISTINGS.values(), ids=LISTINGS)
def test_an_impossible_listing_changes_nothing(home: Path, listing: object) -> None:
    error = refused(into_fetch, Liar(listing), home)
    assert isinstance(error, HostError)
    assert error.what in {UNASKED, "does not speak our protocol"}


def test_an_endless_listing_is_read_only_up_to_its_bound(home: Path) -> None:
    for rows in (b"0\n" * (MOST_ENTRIES + 2), b"[" + b"[]," * 30_000 + b"[]]"):
        assert refused(into_fetch, Liar(rows), home).what == UNASKED


LISTED = [file("a"), folder("d"), link("l", "d")]


@pytest.mark.parametrize(
    "says",
    [({"gone": []}, b"xy"), ({"gone": []}, b""), ({"gone": [0]}, b"x")],
    ids=["more", "less", "gone and there"],
)
def test_unrequested_contents_change_nothing(home: Path, says: tuple[dict[str, object], bytes]) -> None:
    for way in WAYS:
        error = refused(way, Liar(LISTED, says=says), home)
        assert isinstance(error, HostError)
        assert error.what in {UNASKED, "does not speak our protocol"}


def test_two_paths_are_put_in_place_only_once_both_have_arrived(home: Path) -> None:
    liar = Liar([file("x")], {"x": b"x"})
    parts = pull.choose(liar.session, "/there", ["/a", "/b"])
    before = all_of(home.parent)

    def lie(_size: int) -> None:
        liar.says = {"gone": []}, b"xy"

    with pytest.raises(HostError, match=UNASKED):
        pull.take(liar.session, parts, home / "target", "run", lie)
    assert (liar.asked.count("files_get"), all_of(home.parent)) == (2, before)


def test_a_transfer_larger_than_the_disk_is_not_started(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor a transfer that would nearly fill it: other programs on this machine also write."""
    found = shutil.disk_usage(home)._replace(free=1 << 30)  # the real value changes at any time
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: found)
    liar = Liar([file("a", (1 << 30) - (256 << 20))])
    with pytest.raises(ClusterError, match="no disk space for"):
        into_pull(liar, home)
    assert "files_get" not in liar.asked
    assert (home / "target" / "mine").read_text() == "mine"


def test_a_folder_replaced_by_a_link_between_pulls_is_not_followed(home: Path) -> None:
    to = home / "results"
    first = Liar([link("d", "e"), folder("e"), file("e/x")], {"e/x": b"x"})
    pull.take(*parts_of(first), to, "run", lambda _: None)
    remove(str(to / "e"))
    (to / "e").symlink_to(home / ".ssh")  # the worst case: the user's own link
    second = Liar([folder("d"), file("d/authorized_keys")], {"d/authorized_keys": b"x"})
    pull.take(*parts_of(second), to, "run", lambda _: None)
    assert os.listdir(home / ".ssh") == ["id"]
    assert (to / "d").is_dir()
    assert not (to / "d").is_symlink()
    assert (to / "d" / "authorized_keys").read_text() == "x"


def test_a_folder_replaced_by_a_link_between_backups_is_not_followed(home: Path) -> None:
    copy = home / "backup"
    stamp = {"mtime_ns": 1_700_000_000_000_000_000}
    rows = [folder("d"), file("d/id", 3, **stamp)]
    fetch(Liar(rows, {"d/id": b"one"}).session, "/there", copy)
    (copy / "d").rename(copy / "e")
    (copy / "d").symlink_to(home / ".ssh")
    os.utime(home / ".ssh" / "id", ns=(stamp["mtime_ns"], stamp["mtime_ns"]))
    (home / ".ssh" / "id").chmod(0o644)
    fetch(Liar(rows, {"d/id": b"two"}).session, "/there", copy)
    assert (copy / "d" / "id").read_text() == "two"  # and not the key, which looks similar
    assert (home / ".ssh" / "id").read_text() == "key"


def test_file_modes_from_a_host_are_limited_to_permissions_and_the_umask(home: Path) -> None:
    usual = os.umask(0o022)
    try:
        fetch(Liar([file("a", mode=0o6777)], {"a": b"x"}).session, "/there", home / "new")
    finally:
        os.umask(usual)
    assert stat.S_IMODE((home / "new" / "a").stat().st_mode) == 0o755


def test_only_links_that_cannot_escape_are_accepted() -> None:
    assert stays_inside(["l"], "x")
    assert stays_inside(["d", "l"], "../x")
    assert not stays_inside(["d", "l"], "../../x")
    assert not stays_inside(["l"], "/x")
    assert not stays_inside(["l"], "x/../..")
    assert not stays_inside(["d", "l"], "x/../y")  # x may be a link
    assert stays_inside(["d", "l"], "..")


def test_removing_never_follows_a_link(home: Path) -> None:
    (home / "target" / "out").symlink_to(home / ".ssh")
    (home / "target" / "down").mkdir()
    (home / "target" / "down" / "out").symlink_to(home / ".ssh")
    assert remove(str(home / "target")) is None
    assert os.listdir(home) == [".ssh"]
    assert os.listdir(home / ".ssh") == ["id"]


def parts_of(liar: Liar) -> tuple[Conversation, list[Part]]:
    return liar.session, pull.choose(liar.session, "/there", [])


def test_the_pull_record_is_not_written_through_a_link_from_the_host(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host can guess our pid, and send links under all temporary names that it implies."""
    monkeypatch.setattr(secrets, "token_hex", lambda _: "0" * 16)
    names = [f"{RECORD}.{suffix}" for suffix in (os.getpid(), "0" * 16)]
    liar = Liar([*(link(name, "mine") for name in names), file("new")], {"new": b"x"})
    with contextlib.suppress(ClusterError):  # as if it had guessed that too
        into_pull(liar, home)
    assert (home / "target" / "mine").read_text() == "mine"


def test_an_invalid_pull_record_does_no_harm(home: Path) -> None:
    os.mkfifo(home / "target" / RECORD)
    into_pull(Liar([file("new")], {"new": b"x"}), home)
    assert (home / "target" / "new").read_text() == "x"
    assert list(read_record(home / "target", "run")) == ["new"]


def test_something_else_in_place_of_our_folder_is_not_filled(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "incoming").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(NotADirectoryError):
        Below(str(tmp_path / "incoming"), made=True)
    (tmp_path / "foreign").mkdir()
    if os.geteuid() == 0:
        os.chown(tmp_path / "foreign", 65534, 65534)
        with pytest.raises(PermissionError, match="somebody else"):
            Below(str(tmp_path / "foreign"), made=True)


@pytest.mark.parametrize("name", ["a.tfevents", "link/a.tfevents", "link.tfevents"])
def test_nothing_is_written_through_a_link(name: str, tmp_path: Path) -> None:
    """Only we create files there; a link created by anyone else is not followed."""
    here, outside = tmp_path / "here", tmp_path / "outside"
    here.mkdir()
    outside.mkdir()
    (here / "link").symlink_to(outside)
    (here / "link.tfevents").symlink_to(outside / "owned")
    mirror = EventMirror(here, "/there")
    liar = Liar([folder("link"), file(name, 3)], {name: b"abc"})
    with contextlib.suppress(HostError):
        mirror.catch_up(liar.session)
    assert not list(outside.iterdir())
