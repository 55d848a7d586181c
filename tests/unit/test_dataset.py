"""Data of this machine: read once, named by its content, cut into pieces."""

from __future__ import annotations

import os
import random
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator import wire
from orchestrator.config import parse
from orchestrator.errors import ClusterError, UsageError
from orchestrator.launching.data import check_data
from orchestrator.model import Data, Host
from orchestrator.phases.prepare import Maker, NotPreparedError, SetName, find_set, sources
from orchestrator.sync import Contents, DataPath, contents, read_data, read_folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    noise = random.Random(3)
    made = tmp_path / "my data"
    (made / "sub").mkdir(parents=True)
    (made / "a").write_bytes(noise.randbytes(9 << 20))
    (made / "sub" / "b").write_bytes(noise.randbytes(1 << 20))
    (made / "sub" / "empty").touch()
    (made / "ü").write_text("odd")
    return made


def read(folder: Path, cache: Path) -> Contents:
    return read_data([DataPath("files/mine", folder)], cache)


def test_its_pieces_are_its_files_end_to_end(folder: Path, tmp_path: Path) -> None:
    made = read(folder, tmp_path / "cache")
    assert [file.path for file in made.manifest.files] == [
        f"files/mine/{name}" for name in ("a", "sub/b", "sub/empty", "ü")
    ]
    whole = b"".join(path.read_bytes() for path in made.paths)
    assert b"".join(made.read(piece) for piece in range(len(made.manifest.pieces))) == whole
    assert [blob.size for blob in made.manifest.pieces[0]] == [4 << 20]


def test_what_was_read_is_not_read_again(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = read(folder, tmp_path / "cache")
    monkeypatch.setattr(contents, "_hash", None)
    assert read(folder, tmp_path / "cache").digest == first.digest


def test_a_change_while_it_is_sent_is_an_error_that_names_the_file(folder: Path, tmp_path: Path) -> None:
    made = read(folder, tmp_path / "cache")
    with (folder / "a").open("r+b") as file:
        file.write(b"x")
    with pytest.raises(ClusterError, match="changed while it was sent") as caught:
        made.read(0)
    assert "/a" in caught.value.why
    (folder / "a").unlink()
    with pytest.raises(ClusterError, match="changed"):
        made.read(1)


def test_links_are_followed_and_a_circle_is_an_error(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "big disk"
    other.mkdir()
    (other / "c").write_text("far away")
    (folder / "sub" / "link").symlink_to(other)
    assert "files/mine/sub/link/c" in [file.path for file in read(folder, tmp_path / "cache").manifest.files]
    (folder / "sub" / "back").symlink_to(folder)
    with pytest.raises(UsageError, match="leads back"):
        read(folder, tmp_path / "cache")


def test_a_link_that_leads_nowhere_is_named_with_what_it_leads_to(folder: Path, tmp_path: Path) -> None:
    (folder / "sub" / "old one").symlink_to("/no/such/disk")
    with pytest.raises(UsageError, match=r"cannot read .*/sub/old one") as caught:
        read(folder, tmp_path / "cache")
    assert "/no/such/disk" in caught.value.why


def test_names_that_no_message_holds_are_refused_before_anything_is_sent(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contents, "_MOST_NAMED", 100)
    with pytest.raises(UsageError, match="4 files") as caught:
        read(folder, tmp_path / "cache")
    assert "the list of their names has" in caught.value.why
    with pytest.raises(UsageError, match="4 files"):
        read_folder(folder)


def test_a_path_that_no_machine_has_is_a_mistake_in_the_inventory() -> None:
    given = f"/{'a' * 300}/images"
    inventory = parse(f'[[host]]\nssh = "a"\n[data]\npaths = ["{given}"]\n')
    with pytest.raises(UsageError, match="\\[data\\] names"):
        check_data(inventory)
    data = Data(paths=(given,))
    with pytest.raises(UsageError):
        read_data(sources(data, (), Path("/none")), Path("/none"))


def test_nothing_is_said_of_nothing(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="nothing but empty folders"):
        read(tmp_path / "empty", tmp_path / "cache")
    with pytest.raises(UsageError, match="not there"):
        read(tmp_path / "none", tmp_path / "cache")


@pytest.mark.parametrize("kind", ["fifo", "endless", "deep", "noise"])
def test_digests_that_were_kept_and_are_damaged_are_made_anew(
    folder: Path, tmp_path: Path, kind: str
) -> None:
    cache = tmp_path / "cache"
    known = read(folder, cache)
    (kept,) = cache.iterdir()
    kept.unlink()
    match kind:
        case "fifo":
            os.mkfifo(kept)
        case "endless":
            kept.symlink_to("/dev/zero")
        case "deep":
            kept.write_text("[" * 200_000)
        case "noise":
            kept.write_bytes(b"\xff\0")
    assert read(folder, cache).digest == known.digest


# --- prepared sets ---


def prepared(root: Path, where: str) -> None:
    (root / where).mkdir(parents=True)
    (root / where / "dataset_info.json").write_text("{}")


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ("toy", "toy/10.0.0"),
        ("toy:2.0.0", "toy/2.0.0"),
        ("toy:3.0.0", None),
        ("other", None),
        ("named", "named/small/1.0.0"),
        ("named/small", "named/small/1.0.0"),
        ("two", None),
        ("two/b:1.0.0", "two/b/1.0.0"),
    ],
)
def test_a_prepared_set_is_found_by_its_name(tmp_path: Path, wanted: str, found: str | None) -> None:
    for where in ("toy/2.0.0", "toy/10.0.0", "named/small/1.0.0", "two/a/1.0.0", "two/b/1.0.0"):
        prepared(tmp_path, where)
    (tmp_path / "toy" / "11.0.0").mkdir()  # not complete
    assert find_set(tmp_path, SetName.parse(wanted)) == (tmp_path / found if found else None)


def test_a_set_keeps_its_place_below_the_data_dir(tmp_path: Path) -> None:
    for where in ("toy/1.0.0", "named/small/1.0.0"):
        prepared(tmp_path / "sets", where)
    data = Data(sets=("toy", "named"), tfds_dir=str(tmp_path / "sets"))
    found = sources(data, [], tmp_path / "cache")
    assert [one.name for one in found] == ["tfds/toy/1.0.0", "tfds/named/small/1.0.0"]


def test_a_set_that_is_nowhere_is_not_prepared_by_a_look(tmp_path: Path) -> None:
    with pytest.raises(NotPreparedError, match="is not prepared yet"):
        sources(Data(sets=("toy:1.0.0",), tfds_dir=str(tmp_path)), [], tmp_path / "cache")


def test_original_files_that_are_missing_are_named(tmp_path: Path) -> None:
    (tmp_path / "train-images-idx3-ubyte.gz").touch()
    with pytest.raises(UsageError, match="does not hold the files of mnist") as caught:
        sources(Data(sets=("mnist",), mnist=str(tmp_path)), [], tmp_path / "cache")
    assert "t10k-labels-idx1-ubyte.gz" in caught.value.why
    assert "train-images" not in caught.value.why


class _Floods:
    """A host that prints 130 MB while it prepares a set."""

    def __init__(self) -> None:
        self.host = Host("a", "a", "a")
        self.on_output: Callable[[str, bytes], None] = lambda _stream, _data: None

    def request(self, request: wire.Exec, timeout: float) -> wire.CommandEnd:  # noqa: ARG002
        for _ in range(2000):
            self.on_output("out", (b"x" * 64 + b"\n") * 1000)
        self.on_output("err", b"the last word\n")
        return wire.CommandEnd(status=1, stopped=False, ended=0, left=())


def test_what_a_host_prints_while_it_prepares_a_set_is_not_kept() -> None:
    fleet: Any = None
    session: Any = _Floods()
    tracemalloc.start()
    try:
        said = Maker(fleet, None, lambda _: None)._run(session, SetName("toy"), "ab", "/made")
        assert tracemalloc.get_traced_memory()[1] < 10 << 20
    finally:
        tracemalloc.stop()
    assert said.endswith("the last word")
