"""A host that lies gets one error: nothing of ours is read, moved, changed or made, the target included."""

from __future__ import annotations

import contextlib
import io
import os
import secrets
import stat
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orchestrator.errors import ClusterError, HostError, OrchestrateError
from orchestrator.node.disk import archive
from orchestrator.node.disk.below import stays_inside
from orchestrator.node.disk.removing import remove
from orchestrator.sync import carry, fetch, pull
from orchestrator.sync.conversation import Conversation
from orchestrator.sync.files import look, look_here
from orchestrator.sync.taking import RECORD, Part, read_record
from tests.sync.liar import Liar, file, folder, link, member, tar, with_sum

SYM, HARD, FIFO, CHAR, SPARSE = (
    tarfile.SYMTYPE,
    tarfile.LNKTYPE,
    tarfile.FIFOTYPE,
    tarfile.CHRTYPE,
    tarfile.GNUTYPE_SPARSE,
)
UNASKED = "sent files that were not asked for"
GARBLED = "does not speak our protocol"

LISTINGS: dict[str, object] = {
    "dotdot": [file("../x")],
    "inner dotdot": [folder("a"), file("a/../../x")],
    "absolute": [file("/tmp/x")],
    "absolute folder": [folder("/tmp/made")],
    "empty name": [file("")],
    "a dot": [file(".")],
    "two slashes": [folder("a"), file("a//x")],
    "ends in a slash": [folder("a/")],
    "a NUL": [file("a\0b")],
    "a lone surrogate": [file("\ud800")],
    "long component": [file("x" * 256)],
    "long path": [folder("/".join(["x" * 200] * n)) for n in range(1, 25)],
    "deep": [folder("/".join(["d"] * n)) for n in range(1, 300)],
    "twice": [file("a"), file("a")],
    "a file and a folder": [file("a"), folder("a")],
    "below a file": [file("a"), file("a/x")],
    "below a link": [link("a", "b"), file("a/x")],
    "below nothing": [file("a/x")],
    "before its folder": [file("a/x"), folder("a")],
    "a device": [file("a", kind="device")],
    "no kind": [file("a", kind="")],
    "negative size": [file("a", -1)],
    "huge size": [file("a", 1 << 60)],
    "a folder with a size": [file("a", 7, kind="folder")],
    "a huge time": [file("a", mtime_ns=1 << 70)],
    "a negative mode": [file("a", mode=-1)],
    "a link to nothing": [link("a", "")],
    "a link with a NUL": [link("a", "x\0y")],
    "a long link": [link("a", "x" * 5000)],
    "a size of text": [["a", "file", "1", 0, 0, ""]],
    "a bool": [["a", "file", True, 0, 0, ""]],
    "a short row": [["a", "file"]],
    "a row of text": ["abcdef"],
    "no list": {"a": 1},
    "no JSON": b"\xff",
    "nested": b"[" * 100_000,
    "null": None,
}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """What is the user's own; whatever the host says, it is as it was at the end."""
    home = tmp_path / "home"
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh" / "id").write_text("key")
    (home / "target").mkdir()
    (home / "target" / "mine").write_text("mine")
    return home


def all_of(root: Path) -> list[object]:
    """Every name, with all that can change about it."""
    found: list[object] = []
    for place in sorted(root.rglob("*")):
        now = place.lstat()
        content = place.read_bytes() if stat.S_ISREG(now.st_mode) else b""
        found.append((str(place), now.st_mode, now.st_ino, content))
    return found


def into_fetch(liar: Liar, home: Path) -> None:
    fetch(liar.session, "/there", home / "target")


def into_pull(liar: Liar, home: Path) -> None:
    parts = pull.choose(liar.session, "/there", [], ())
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


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("listing", LISTINGS.values(), ids=LISTINGS)
def test_a_listing_that_cannot_be_true_changes_nothing(
    home: Path, listing: object, way: Callable[[Liar, Path], None]
) -> None:
    error = refused(way, Liar(listing, [tar()]), home)
    assert isinstance(error, HostError)
    assert error.what in {UNASKED, GARBLED}


@pytest.mark.parametrize(
    "rows",
    [[file("/tmp/x")], [file("a/x")], [file("a"), file("b")], [folder("a")], [link("a", "b")], []],
    ids=["absolute", "below", "two", "folder", "link", "none"],
)
@pytest.mark.parametrize("way", [into_fetch, into_backup])
def test_a_single_file_is_one_name(home: Path, rows: object, way: Callable[[Liar, Path], None]) -> None:
    """An absolute one made a file of the controller move into the run's folder, and on to other hosts."""
    assert refused(way, Liar(rows, [tar()], kind="file"), home).what == UNASKED


def bad_sum() -> bytes:
    header = bytearray(member("a")[:512])
    header[148:156] = b"0000000\0"
    return bytes(header) + b"x" * 512


def negative_size() -> bytes:
    header = bytearray(member("a")[:512])
    header[124:136] = b"\xff" * 12
    return with_sum(header)


def huge_pax() -> bytes:
    header = bytearray(member("a", b"")[:512])
    header[156:157] = b"x"
    header[124:136] = b"\x80" + (600 << 20).to_bytes(11, "big")
    return with_sum(header)


def pax(text: bytes) -> bytes:
    header = bytearray(member("a", b"")[:512])
    header[156:157] = b"x"
    header[124:136] = b"%011o\0" % len(text)
    return with_sum(header) + text + b"\0" * (-len(text) % 512)


def record(key: str, value: str) -> bytes:
    body = f" {key}={value}\n"
    size = len(body) + 2
    return f"{size}{body}".encode() if len(str(size)) == 2 else f"{size + 1}{body}".encode()


A, DIR = member("a"), member("d", b"", type=tarfile.DIRTYPE)
STREAMS: dict[str, bytes] = {
    "another name": tar(A, member("b")),
    "only another name": tar(member("b")),
    "dotdot": tar(A, member("../b")),
    "absolute": tar(A, member("/tmp/b")),
    "dotted": tar(member("./a")),
    "twice": tar(A, A),
    "longer": tar(member("a", b"xy")),
    "shorter": tar(member("a", b"")),
    "a folder for a file": tar(member("a", b"", type=tarfile.DIRTYPE)),
    "a link for a file": tar(member("a", b"", type=SYM, linkname="/etc")),
    "a hard link": tar(member("a", b"", type=HARD, linkname="mine")),
    "a pipe": tar(member("a", b"", type=FIFO)),
    "a device": tar(member("a", b"", type=CHAR)),
    "a sparse file": tar(member("a", b"", type=SPARSE)),
    "a sparse file by header": tar(pax(record("GNU.sparse.major", "1")), A),
    "a link elsewhere": tar(A, DIR, member("l", b"", type=SYM, linkname="/etc")),
    "a file for a folder": tar(A, member("d")),
    "a folder with content": tar(A, member("d", b"x", type=tarfile.DIRTYPE)),
    "a file below a link": tar(A, member("l", b"", type=SYM, linkname="d"), member("l/x")),
    "silently less": tar(A, DIR),
    "nothing": tar(),
    "no end": A,
    "cut": tar(A, DIR)[:700],
    "no tar": b"x" * 4096,
    "a wrong sum": bad_sum(),
    "a negative size": negative_size() + bytes(1024),
    "a huge header": huge_pax() + bytes(1024),
    "headers behind headers": b"".join([pax(record("comment", f"{n:04}")) for n in range(900)]) + tar(A),
    "a header that renames": tar(pax(record("path", "../../x")), A),
    "a header that resizes": tar(pax(record("size", "99")), A),
    "a header with a time of text": tar(pax(record("orchestrate.mtime_ns", "x")), A),
    "a header with a huge time": tar(pax(record("orchestrate.mtime_ns", "9" * 19)), A),
    "a cut header": tar(pax(b"99 path=x\n"), A),
    "a header without a member": tar(A, pax(record("path", "b"))),
    "padding without an end": tar(A, DIR, member("l", b"", type=SYM, linkname="d")) + bytes(1 << 20),
}
LISTED = [file("a"), folder("d"), link("l", "d")]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("stream", STREAMS.values(), ids=STREAMS)
def test_a_stream_that_holds_something_else_changes_nothing(
    home: Path, stream: bytes, way: Callable[[Liar, Path], None]
) -> None:
    pieces = [stream[at : at + 4096] for at in range(0, len(stream), 4096)]
    error = refused(way, Liar(LISTED, pieces), home)
    assert isinstance(error, HostError)
    assert error.what in {UNASKED, GARBLED}


@pytest.mark.parametrize("way", WAYS)
def test_no_more_is_taken_than_was_announced(home: Path, way: Callable[[Liar, Path], None]) -> None:
    def endless() -> Iterator[bytes]:
        yield member("a")
        while True:
            yield bytes(1 << 20)

    liar = Liar(LISTED, endless())
    assert refused(way, liar, home).what in {UNASKED, GARBLED}
    assert liar.sent < 4 << 20


@pytest.mark.parametrize("way", WAYS)
def test_a_stream_of_empty_pieces_ends(home: Path, way: Callable[[Liar, Path], None]) -> None:
    def empty() -> Iterator[bytes]:
        while True:
            yield b""

    assert refused(way, Liar(LISTED, empty()), home).what == UNASKED


@pytest.mark.parametrize("gone", ["a", None, [1], {"a": 1}])
@pytest.mark.parametrize("way", WAYS)
def test_what_is_gone_is_a_list_of_names(home: Path, gone: object, way: Callable[[Liar, Path], None]) -> None:
    assert refused(way, Liar(LISTED, [tar(A)], gone=gone), home).what == GARBLED


@pytest.mark.parametrize("way", WAYS)
def test_more_than_the_disk_has_is_not_begun(home: Path, way: Callable[[Liar, Path], None]) -> None:
    before = all_of(home.parent)
    liar = Liar([file("a", 1 << 50)], [tar()])
    with pytest.raises(ClusterError, match="not enough room"):
        way(liar, home)
    assert all_of(home.parent) == before
    assert "files_open" not in liar.asked


@pytest.mark.parametrize(("kind", "root"), [("link", "/x"), (7, "/x"), ("folder", None), ("folder", ["/x"])])
def test_an_answer_of_other_types_is_said(home: Path, kind: object, root: object) -> None:
    liar = Liar([], kind=kind, root=root)
    with pytest.raises(HostError, match=GARBLED):
        look(liar.session, "/there")
    assert refused(into_fetch, liar, home).what == GARBLED


def test_a_folder_that_becomes_a_link_between_two_pulls_leads_nowhere(home: Path) -> None:
    to = home / "results"
    pull.take(
        *parts_of(
            Liar(
                [link("d", "e"), folder("e")],
                [
                    tar(
                        member("e", b"", type=tarfile.DIRTYPE),
                        member("d", b"", type=SYM, linkname="e"),
                    )
                ],
            )
        ),
        to,
        "run",
        lambda _: None,
    )
    (to / "e").rmdir()
    (to / "e").symlink_to(home / ".ssh")  # the worst that can be there: the person's own link
    second = Liar(
        [folder("d"), file("d/authorized_keys")],
        [tar(member("d", b"", type=tarfile.DIRTYPE), member("d/authorized_keys"))],
    )
    pull.take(*parts_of(second), to, "run", lambda _: None)
    assert os.listdir(home / ".ssh") == ["id"]
    assert (to / "d").is_dir()
    assert not (to / "d").is_symlink()
    assert (to / "d" / "authorized_keys").read_text() == "x"


def test_a_folder_that_becomes_a_link_between_two_backups_leads_nowhere(home: Path) -> None:
    copy = home / "backup"
    stamp = {"mtime_ns": 1_700_000_000_000_000_000}
    fetch(
        Liar(
            [folder("d"), file("d/id", 3, **stamp)],
            [tar(member("d", b"", type=tarfile.DIRTYPE), member("d/id", b"one"))],
        ).session,
        "/there",
        copy,
    )
    (copy / "d").rename(copy / "e")
    (copy / "d").symlink_to(home / ".ssh")
    os.utime(home / ".ssh" / "id", ns=(stamp["mtime_ns"], stamp["mtime_ns"]))
    (home / ".ssh" / "id").chmod(0o644)
    liar = Liar(
        [folder("d"), file("d/id", 3, **stamp)],
        [tar(member("d", b"", type=tarfile.DIRTYPE), member("d/id", b"two"))],
    )
    fetch(liar.session, "/there", copy)
    assert (copy / "d" / "id").read_text() == "two"  # and not the key, which looks alike
    assert (home / ".ssh" / "id").read_text() == "key"


def test_a_hosts_modes_are_no_more_than_permissions_and_less_the_umask(home: Path) -> None:
    row = file("a", mode=0o6777)
    fetch(Liar([row], [tar(member("a", mode=0o6777))]).session, "/there", home / "new")
    assert stat.S_IMODE((home / "new" / "a").stat().st_mode) == 0o755


def test_a_pull_of_the_root_of_a_disk_stays_in_its_folder(home: Path) -> None:
    liar = Liar([folder("d")], [tar(DIR)], root="/")
    parts = pull.choose(liar.session, "/there", ["/"], ())
    pull.take(liar.session, parts, home / "results", "run", lambda _: None)
    assert (home / "results" / "d").is_dir()


@pytest.mark.parametrize(
    ("name", "target", "inside"),
    [
        ("l", "x", True),
        ("d/l", "../x", True),
        ("d/l", ".././x/y", True),
        ("l", "../x", False),
        ("d/l", "../../x", False),
        ("l", "/x", False),
        ("l", "x/../..", False),
        ("d/l", "x/../y", False),  # x may be a link
        ("l", "", False),
        ("d/l", "..", True),
        ("l", ".", True),
    ],
)
def test_only_links_that_can_never_lead_out_are_taken(name: str, target: str, inside: bool) -> None:
    assert stays_inside(name.split("/"), target) is inside


def test_very_deep_folders_are_refused_with_a_word_and_removed(tmp_path: Path) -> None:
    top = os.open(tmp_path, os.O_RDONLY)
    os.mkdir("deep", dir_fd=top)
    here = os.open("deep", os.O_RDONLY, dir_fd=top)
    for _ in range(3000):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=here))
    os.close(here)
    os.close(top)
    with pytest.raises(ClusterError, match="more than 200 deep"):
        look_here(tmp_path / "deep")
    assert remove(str(tmp_path / "deep")) is None
    assert os.listdir(tmp_path) == []


def test_removing_never_leaves_by_a_link(home: Path) -> None:
    (home / "target" / "out").symlink_to(home / ".ssh")
    (home / "target" / "down").mkdir()
    (home / "target" / "down" / "out").symlink_to(home / ".ssh")
    assert remove(str(home / "target")) is None
    assert os.listdir(home) == [".ssh"]
    assert os.listdir(home / ".ssh") == ["id"]


def test_the_record_of_a_pull_is_not_written_through_a_link_of_the_host(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host can guess the number of our process, and send links under all names that it may lead to."""
    monkeypatch.setattr(secrets, "token_hex", lambda _: "0" * 16)
    names = [f"{RECORD}.{suffix}" for suffix in (os.getpid(), "0" * 16)]
    liar = Liar(
        [*(link(name, "mine") for name in names), file("new")],
        [tar(*(member(name, b"", type=SYM, linkname="mine") for name in names), member("new"))],
    )
    with contextlib.suppress(ClusterError):  # as if it had guessed that, too
        into_pull(liar, home)
    assert (home / "target" / "mine").read_text() == "mine"


@pytest.mark.parametrize("kind", ["fifo", "zero", "folder", "loop", "deep"])
def test_a_record_of_a_pull_that_is_none_hinders_nobody(home: Path, kind: str) -> None:
    record = home / "target" / RECORD
    match kind:
        case "fifo":
            os.mkfifo(record)
        case "zero":
            record.symlink_to("/dev/zero")
        case "folder":
            record.mkdir()
        case "loop":
            record.symlink_to(record)
        case "deep":
            record.write_text("[" * 200_000)
    into_pull(Liar([file("new")], [tar(member("new"))]), home)
    assert (home / "target" / "new").read_text() == "x"
    assert list(read_record(home / "target", "run")) == ["new"]


def parts_of(liar: Liar) -> tuple[Conversation, list[Part]]:
    return liar.session, pull.choose(liar.session, "/there", [], ())


def test_what_somebody_put_in_the_place_of_a_folder_of_ours_is_not_filled(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "incoming").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(NotADirectoryError):
        archive.unpack(io.BytesIO(tar(A)), str(tmp_path / "incoming"))
    (tmp_path / "foreign").mkdir()
    if os.geteuid() == 0:
        os.chown(tmp_path / "foreign", 65534, 65534)
        with pytest.raises(PermissionError, match="somebody else"):
            archive.unpack(io.BytesIO(tar(A)), str(tmp_path / "foreign"))
    assert os.listdir(tmp_path / "elsewhere") == os.listdir(tmp_path / "foreign") == []
