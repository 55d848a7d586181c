"""The seal on a plan, and the key that makes it."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.errors import UsageError
from orchestrator.phases.connect import for_nodes
from orchestrator.planning.seal import OpenedPlan, opened, seal
from orchestrator.store.key import key_path, own_key, read_key
from orchestrator.store.planfile import decode_plan
from tests.unit.plans import host, make

KEY, OTHER = bytes(32), bytes(range(32))
PLAN = make(host("a", identity="~/.ssh/mine", ssh_config="~/x", user="ada", port=2200))
TEXT = msgspec.json.encode(for_nodes(PLAN))


def test_a_sealed_plan_is_authentic_with_its_key_alone() -> None:
    sealed = seal(TEXT, KEY)
    assert opened(sealed, KEY) == OpenedPlan(TEXT, authentic=True)
    for key in (OTHER, None):
        assert opened(sealed, key) == OpenedPlan(TEXT, authentic=False)
    assert opened(seal(TEXT, None), KEY) == OpenedPlan(TEXT, authentic=False)
    assert decode_plan(opened(sealed, KEY).plan) == for_nodes(PLAN)


def test_what_nodes_keep_does_not_say_how_this_machine_reaches_them() -> None:
    for own in ("~/.ssh/mine", "~/x", "2200", '"ada"'):
        assert own not in TEXT.decode()


@given(st.integers(0), st.binary(min_size=1, max_size=3))
def test_a_plan_that_was_altered_anywhere_is_not_authentic(place: int, bytes_: bytes) -> None:
    sealed = seal(TEXT, KEY).encode()
    at = place % len(sealed)
    altered = sealed[:at] + bytes_ + sealed[at + len(bytes_) :]
    try:
        found = opened(altered.decode(errors="surrogateescape"), KEY)
    except ValueError:
        return
    assert found.authentic == (found.plan == TEXT and altered == sealed)


def test_a_seal_does_not_cover_another_plan() -> None:
    other = msgspec.json.encode(for_nodes(replace(PLAN, attempt=2)))
    assert not opened(f"{seal(TEXT, None)} {seal(other, KEY).split()[1]}", KEY).authentic


def test_a_small_text_does_not_open_out_without_a_bound() -> None:
    with pytest.raises(ValueError, match="it ends elsewhere"):
        opened(seal(bytes(65 << 20), None), KEY)


@given(st.text())
def test_any_text_is_opened_or_refused(text: str) -> None:
    for one in (text, text + "\ud800"):
        with contextlib.suppress(ValueError):
            assert not opened(one, KEY).authentic


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "config"


def test_a_key_is_made_once_for_its_owner_alone(config: Path) -> None:
    assert read_key() is None
    key = own_key()
    assert key is not None
    assert len(key) == 32
    assert own_key() == read_key() == key
    assert key_path() == config / "orchestrate" / "key"
    assert stat.S_IMODE(key_path().stat().st_mode) == 0o600
    assert stat.S_IMODE(key_path().parent.stat().st_mode) == 0o700
    assert os.listdir(key_path().parent) == ["key"]


def test_of_many_that_make_it_at_once_all_have_the_same(config: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(lambda _: own_key(), range(32)))) == 1
    assert os.listdir(config / "orchestrate") == ["key"]


def put(path: Path, make: Callable[[], None]) -> None:
    """Something else in a file's place."""
    path.unlink()
    make()


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda path: path.chmod(0o640), "its mode is 640"),
        (lambda path: path.write_text(""), "it is damaged"),
        (lambda path: path.write_bytes(b"\xff" * 65), "it is damaged"),
        (lambda path: put(path, lambda: path.mkdir(0o700)), "it is a folder"),
        (lambda path: put(path, lambda: os.mkfifo(path, 0o600)), "it is a FIFO"),
        (lambda path: put(path, lambda: path.symlink_to(path)), "symbolic links"),
    ],
)
@pytest.mark.usefixtures("config")
def test_a_key_that_is_none_is_an_error(damage: Callable[[Path], object], why: str) -> None:
    own_key()
    damage(key_path())
    for use in (read_key, own_key):
        with pytest.raises(UsageError) as caught:
            use()
        assert why in caught.value.why
        assert caught.value.hint.startswith("`")


def test_where_no_key_can_be_made_there_is_none(config: Path) -> None:
    config.write_text("a file")
    assert own_key() is None
