"""Event files come here as they grow there, and a host that lies gets nowhere."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator import wire
from orchestrator.errors import ClusterError, HostError
from orchestrator.fleet import Session
from orchestrator.sync.eventfiles import EventMirror
from orchestrator.wire.request import ProtocolError
from tests.sync.liar import Liar

NAME = "events.out.tfevents.1.gpu-01"
KNOWN = {f"a/{NAME}": 5}


def everything(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_what_grows_there_grows_here(session: Session, tmp_path: Path) -> None:
    there, here = tmp_path / "there", tmp_path / "here"
    mirror = EventMirror(here, str(there))
    assert not mirror.catch_up(session)  # the folder is not made yet
    for name in ("worker/train", "worker/validation", "no events"):
        (there / name).mkdir(parents=True)
    (there / "worker/train" / NAME).write_bytes(os.urandom((2 << 20) + 17))  # in pieces
    (there / "worker/validation" / NAME).write_bytes(b"first")
    (there / "worker" / "checkpoint").write_bytes(b"stays there")
    (there / "worker" / "link.tfevents").symlink_to("/etc/passwd")
    assert mirror.catch_up(session)
    wanted = {f"worker/{name}/{NAME}" for name in ("train", "validation")}
    assert everything(here) == {name: (there / name).read_bytes() for name in wanted}
    inode = (here / "worker/validation" / NAME).stat().st_ino
    with (there / "worker/validation" / NAME).open("ab") as file:
        file.write(b" and second")
    assert mirror.catch_up(session)
    assert not mirror.catch_up(session)
    assert (here / "worker/validation" / NAME).read_bytes() == b"first and second"
    # The same file: TensorBoard has it open.
    assert (here / "worker/validation" / NAME).stat().st_ino == inode
    (there / "worker/validation" / NAME).write_bytes(b"anew")
    assert mirror.catch_up(session)
    assert (here / "worker/validation" / NAME).read_bytes() == b"anew"


def test_a_host_with_more_than_there_may_be(session: Session, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / NAME).write_bytes(bytes(3 << 20))
    mirror = EventMirror(tmp_path / "here", str(tmp_path / "there"))
    mirror.catch_up(session, most=2 << 20)
    assert mirror.full == "it has more than 2 MB of events"
    assert sum(mirror.sizes.values()) <= 2 << 20
    assert not mirror.catch_up(session)


def one(path: str = f"a/{NAME}", offset: Any = 5, length: Any = 3) -> dict[str, Any]:
    return {"path": path, "offset": offset, "length": length}


LIES: list[tuple[str, dict[str, Any]]] = [
    ("a name that leads out", {"files": [one(f"../{NAME}", 0)]}),
    ("an absolute name", {"files": [one(f"/tmp/{NAME}", 0)]}),
    ("two dots within", {"files": [one(f"a/../../{NAME}", 0)]}),
    ("a zero byte", {"files": [one(f"a\0{NAME}", 0)]}),
    ("5,000 characters", {"files": [one("x" * 5000 + NAME, 0)]}),
    ("300 levels", {"files": [one("a/" * 300 + NAME, 0)]}),
    ("a file that TensorBoard does not read", {"files": [one(".bashrc", 0)]}),
    ("the mark in a folder alone", {"files": [one("tfevents/.bashrc", 0)]}),
    ("an offset that was not asked for", {"files": [one(offset=4)]}),
    ("an offset far out", {"files": [one(offset=2**60)]}),
    ("an offset below zero", {"files": [one(offset=-1)]}),
    ("a length below zero", {"files": [one(length=-3)]}),
    ("more bytes than pieces", {"files": [one(length=2)]}),
    ("fewer bytes than pieces", {"files": [one(length=2**50)]}),
    ("a file twice", {"files": [one(length=1), one(length=2)]}),
    ("too many files", {"files": [one(f"{number}{NAME}", 0, 0) for number in range(5000)]}),
    ("a list that is none", {"files": "all of them"}),
    ("behind below zero", {"behind": -1}),
]


@pytest.mark.parametrize(("lie", "fields"), LIES, ids=[lie for lie, _ in LIES])
def test_what_cannot_be_is_refused(lie: str, fields: dict[str, Any]) -> None:
    request = wire.EventFilesOf(root="/there", known=KNOWN)
    honest = {"files": [one()], "behind": 0, "more": False}
    assert wire.answer(request, honest, b"abc").files[0].length == 3, lie
    with pytest.raises(ProtocolError):
        wire.answer(request, {**honest, **fields}, b"abc")


class _Says(Liar):
    """Has always the same to say."""

    def __init__(self, *files: dict[str, Any], payload: bytes) -> None:
        super().__init__(())
        self._files, self._bytes = list(files), payload

    def request(self, request: wire.Request[Any], payload: bytes = b"", timeout: float = 60.0) -> Any:  # noqa: ARG002
        said = {"files": self._files, "behind": 0, "more": False}
        return wire.answer(request, said, self._bytes)


@pytest.mark.parametrize("name", [NAME, f"link/{NAME}", "link.tfevents"])
def test_nothing_is_written_through_a_link(name: str, tmp_path: Path) -> None:
    """Nobody but us makes anything there; if somebody did, it would lead nowhere."""
    here, outside = tmp_path / "here", tmp_path / "outside"
    here.mkdir()
    outside.mkdir()
    (here / "link").symlink_to(outside)
    (here / "link.tfevents").symlink_to(outside / "owned")
    mirror = EventMirror(here, "/there")
    liar = _Says(one(name, 0), payload=b"abc")
    if name == NAME:
        assert mirror.catch_up(liar.session)
        assert (here / NAME).read_bytes() == b"abc"
    else:
        with pytest.raises(ClusterError):
            mirror.catch_up(liar.session)
    assert not list(outside.iterdir())


@pytest.mark.parametrize(
    "files",
    [
        (one(f"{NAME}", 0, 1), one(f"{NAME}/{NAME}", 0, 2)),
        (one(f"{NAME}/{NAME}", 0, 1), one(f"{NAME}", 0, 2)),
    ],
)
def test_names_that_cannot_be_are_the_hosts_error_and_not_our_disks(
    files: tuple[dict[str, Any], ...], tmp_path: Path
) -> None:
    """The other hosts are shown all the same: an error of our disk would end the whole verb."""
    liar = _Says(*files, payload=b"abc")
    with pytest.raises(HostError, match="not asked for"):
        EventMirror(tmp_path / "here", "/there").catch_up(liar.session)


class _Goes(Liar):
    """Has always more to come: of the files that it is asked for the n-th time, and `bytes` of them."""

    def __init__(self, names: Callable[[int], list[str]], size: int) -> None:
        super().__init__(())
        self._names, self._size, self.count = names, size, 0

    def request(self, request: wire.Request[Any], payload: bytes = b"", timeout: float = 60.0) -> Any:  # noqa: ARG002
        names = self._names(self.count)
        self.count += 1
        assert self.count < 2000, "there is no end"
        files = [one(name, 0, self._size) for name in names]
        said = {"files": files, "behind": 1, "more": False}
        return wire.answer(request, said, bytes(self._size * len(names)))


def test_a_host_that_has_always_more_is_left_for_the_others(tmp_path: Path) -> None:
    for number, size in enumerate((0, 1, 1 << 20)):
        liar = _Goes(lambda _: [NAME], size)  # the same file, written anew each time
        EventMirror(tmp_path / str(number), "/there").catch_up(liar.session)


def test_a_host_does_not_fill_our_disk_with_empty_files(tmp_path: Path) -> None:
    liar = _Goes(lambda turn: [f"{turn}-{number}-{NAME}" for number in range(500)], 0)
    mirror = EventMirror(tmp_path / "here", "/there")
    for _ in range(20):
        mirror.catch_up(liar.session)
    assert mirror.full == "it has more than 4,096 event files"
    assert len(everything(tmp_path / "here")) == len(mirror.sizes) == 4000
