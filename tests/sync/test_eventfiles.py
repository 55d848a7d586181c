"""Event files come here as they grow there, and a host that lies gets nowhere."""

import contextlib
import os
from pathlib import Path

import pytest

from orchestrator.errors import HostError
from orchestrator.fleet import Session
from orchestrator.sync.files import EventMirror
from tests.sync.liar import Liar, file, folder

NAME = "events.out.tfevents.1.gpu-01"


def everything(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_what_grows_there_grows_here(session: Session, tmp_path: Path) -> None:
    there, here = tmp_path / "there", tmp_path / "here"
    mirror = EventMirror(here, str(there))
    mirror.catch_up(session)  # the folder is not made yet
    for name in ("worker/train", "worker/validation", "no events"):
        (there / name).mkdir(parents=True)
    (there / "worker/train" / NAME).write_bytes(os.urandom((5 << 20) + 17))  # in pieces
    (there / "worker/validation" / NAME).write_bytes(b"first")
    (there / "worker" / "checkpoint").write_bytes(b"stays there")
    (there / "worker" / "link.tfevents").symlink_to("/etc/passwd")
    mirror.catch_up(session)
    names = {f"worker/{name}/{NAME}" for name in ("train", "validation")}
    assert everything(here) == {name: (there / name).read_bytes() for name in names}
    inode = (here / "worker/validation" / NAME).stat().st_ino
    with (there / "worker/validation" / NAME).open("ab") as grown:
        grown.write(b" and second")
    mirror.catch_up(session)
    assert (here / "worker/validation" / NAME).read_bytes() == b"first and second"
    # The same file: TensorBoard has it open.
    assert (here / "worker/validation" / NAME).stat().st_ino == inode
    (there / "worker/validation" / NAME).write_bytes(b"anew")
    mirror.catch_up(session)
    assert (here / "worker/validation" / NAME).read_bytes() == b"anew"


@pytest.mark.parametrize("name", [NAME, f"link/{NAME}", "link.tfevents"])
def test_nothing_is_written_through_a_link(name: str, tmp_path: Path) -> None:
    """Nobody but us makes anything there; if somebody did, it would lead nowhere."""
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
