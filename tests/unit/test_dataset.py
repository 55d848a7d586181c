"""Local data: read once, named by its content, and cut into pieces."""

import os
import random
from pathlib import Path

import pytest

from orchestrator.errors import ClusterError, UsageError
from orchestrator.model import Data
from orchestrator.node.stock.manifest import BLOB
from orchestrator.phases.data import find_set, sources
from orchestrator.sync import contents
from orchestrator.sync.contents import Contents, DataPath, read_data


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


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "orchestrate" / "data" / "digests"


def read(folder: Path) -> Contents:
    return read_data([DataPath("files/mine", folder)])


def test_pieces_are_the_concatenated_files(folder: Path) -> None:
    made = read(folder)
    assert [file.path for file in made.manifest.files] == [
        f"files/mine/{name}" for name in ("a", "sub/b", "sub/empty", "ü")
    ]
    whole = b"".join(path.read_bytes() for path in made.paths)
    assert b"".join(made.read(piece) for piece in range(len(made.manifest.pieces))) == whole
    assert [blob.size for blob in made.manifest.pieces[0]] == [BLOB]


def test_cached_digests_are_used_until_the_cache_is_damaged(
    folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = read(folder)
    with monkeypatch.context() as without:
        without.setattr(contents, "_hash", None)
        assert read(folder).digest == first.digest
    (kept,) = cache.iterdir()
    kept.write_bytes(b"\xff\0")
    assert read(folder).digest == first.digest
    kept.unlink()
    os.mkfifo(kept)
    assert read(folder).digest == first.digest


def test_data_with_too_many_names_is_refused_before_it_is_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contents, "_MOST_NAMED", 5 * 64)  # bytes: five digests, plus the names
    monkeypatch.setattr(contents, "_hash", None)
    with pytest.raises(UsageError, match="names 4 files"):
        read(folder)


def test_a_file_changed_while_being_sent_is_named_in_the_error(folder: Path) -> None:
    made = read(folder)
    with (folder / "a").open("r+b") as file:
        file.write(b"x")
    with pytest.raises(ClusterError, match="/a changed while it was sent"):
        made.read(0)
    (folder / "a").unlink()
    with pytest.raises(ClusterError) as caught:
        made.read(1)
    assert caught.value.why == "No such file or directory"


def test_links_are_followed_if_they_resolve(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "big disk"
    other.mkdir()
    (other / "c").write_text("far away")
    (folder / "sub" / "link").symlink_to(other)
    assert "files/mine/sub/link/c" in [file.path for file in read(folder).manifest.files]
    (folder / "sub" / "back").symlink_to(folder)
    with pytest.raises(UsageError, match="cannot read"):
        read(folder)
    (folder / "sub" / "back").unlink()
    (folder / "sub" / "old one").symlink_to("/no/such/disk")
    with pytest.raises(UsageError, match=r"cannot read .*/sub/old one") as caught:
        read(folder)
    assert "/no/such/disk" in caught.value.why


def test_empty_data_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="nothing but empty folders"):
        read(tmp_path / "empty")
    with pytest.raises(UsageError, match=r"cannot read .*/none"):
        read(tmp_path / "none")


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
    assert find_set(tmp_path, wanted) == (tmp_path / found if found else None)
    if not found:
        with pytest.raises(UsageError, match=f"the set {wanted}"):
            sources(Data(sets=(wanted,), tfds_dir=str(tmp_path)))
