"""Hashes of requirements files: found however they are written, put behind their packages in the lock."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import pytest

from orchestrator.envs import lock
from orchestrator.envs.hashes import bare, hashes_in, with_hashes
from orchestrator.envs.lock import Lock
from orchestrator.envs.wheels import Platform, fetch, pins
from orchestrator.errors import ClusterError, UsageError
from orchestrator.model import Environment
from tests.wheels import wheel

DEBIAN = Platform("x86_64", "glibc 2.36", "3.11.2")
A, B = f"sha256:{'a' * 64}", f"sha256:{'b' * 64}"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (f"six==1.17.0 --hash={A}\n", {("six", "1.17"): (A,)}),
        (f"six==1.17.0 \\\n    --hash={A} \\\n    --hash={B}\n", {("six", "1.17"): (A, B)}),
        (f"six==1.17.0 \\\r\n    --hash={A}\r\n", {("six", "1.17"): (A,)}),
        (
            f"S_N===1.0 ; sys_platform == 'linux' \\\n --hash {A}  # via x\n",
            {("s-n", "1"): (A,)},
        ),
        (f"a[b]==1 --hash={A}\na==1 --hash={B}\n", {("a", "1"): (A, B)}),
        (f"a==1 --hash={A} --hash={A}\n", {("a", "1"): (A,)}),
        (f"a>=1 --hash={A}\nb==1.* --hash={A}\nc --hash={A}\n", {}),  # no one version
        (f"a==1.0 --hash={A.upper()}\n", {("a", "1"): (A,)}),
        (f"a @ https://192.0.2.1/a.whl --hash={A}\n", {("a", "https://192.0.2.1/a.whl"): (A,)}),
        (f"a==1\n# b==1 --hash={A}\n--index-url x\n-r other.txt\n./folder --hash={A}\n", {}),
        ("a==1 \\", {}),
    ],
)
def test_hashes_are_found_however_they_are_written(
    text: str, found: Mapping[tuple[str, str], tuple[str, ...]]
) -> None:
    assert hashes_in([text]) == found


def test_a_hash_that_can_be_of_no_one_file_is_a_mistake(tmp_path: Path) -> None:
    """It was left out, and whatever the index served was installed."""
    wanted = tmp_path / "requirements.txt"
    for line in ("six", "six>=1", "six==1.*", "six==1,==2"):
        wanted.write_text(f"other==1 --hash={A}\n{line} --hash={A}\n")
        with pytest.raises(UsageError, match="cannot check the hash of 'six") as caught:
            lock.resolve(Environment(requirements=str(wanted)))
        assert "`six==VERSION`" in caught.value.hint


def test_a_lock_gets_those_of_its_versions() -> None:
    known = {("six", "1.17"): (A, B), ("other", "2"): (A,)}
    text = "Six==1.17.0 ; python_version < '4'\nother==3\n"
    made = with_hashes(text, known)
    assert with_hashes("a==1.0.0\n", {("a", "1"): (A,)}) == f"a==1.0.0 --hash={A}\n"
    assert made == f"Six==1.17.0 ; python_version < '4' --hash={A} --hash={B}\nother==3\n"
    assert with_hashes(made, known) == made
    assert [bare(line) for line in made.splitlines()] == text.splitlines()
    assert Lock(made, "name").names == ("Six", "other")
    assert pins(Lock(made, "name"), DEBIAN) == [f"Six==1.17.0 --hash={A} --hash={B}", "other==3"]


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "index"
    folder.mkdir()
    for name in ("small", "other"):
        wheel(folder, name, "1.0", "")
    monkeypatch.setenv("UV_DEFAULT_INDEX", folder.as_uri())
    monkeypatch.setenv("PIP_INDEX_URL", folder.as_uri())
    for name in ("UV_CACHE_DIR", "XDG_CACHE_HOME", "PIP_CACHE_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    return folder


def requirements(index: Path, name: str, hashed: str | None = None) -> Environment:
    digest = hashed or hashlib.sha256((index / f"{name}-1.0-py3-none-any.whl").read_bytes()).hexdigest()
    path = index.parent / "requirements.txt"
    path.write_text(f"{name}==1.0 \\\n    --hash=sha256:{digest}\n")
    return Environment(str(path), ("other",))


def test_what_is_downloaded_for_hosts_has_to_have_them(index: Path) -> None:
    good = lock.resolve(requirements(index, "small"))
    assert "small==1.0 --hash=sha256:" in good.text
    assert "other==1.0\n" in good.text
    names = {path.name for path in fetch(good, DEBIAN, None).glob("*.whl")}
    assert names == {"small-1.0-py3-none-any.whl", "other-1.0-py3-none-any.whl"}
    bad = lock.resolve(requirements(index, "small", hashed="0" * 64))
    with pytest.raises(ClusterError, match="cannot download the packages") as caught:
        fetch(bad, DEBIAN, None)
    assert caught.value.hint.startswith("compare the hashes in `requirements`")
