"""Which inventory a command line means: here, in a folder above, or hosts that `--hosts` names."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from orchestrator.cli.desk import inventory
from orchestrator.errors import UsageError

ROOT = Path(__file__).parents[2]
TWO = '[[host]]\nssh = "gpu-[1-2]"\n'


def test_a_file_above_is_used_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "hosts.toml").write_text(TWO)
    deep = tmp_path / "src" / "model"
    deep.mkdir(parents=True)
    monkeypatch.chdir(deep)
    assert [host.name for host in inventory.load(None).hosts] == ["gpu-1", "gpu-2"]
    assert capsys.readouterr().err == "inventory: ../../hosts.toml\n"
    (deep / "hosts.toml").write_text(TWO.replace("gpu", "near"))
    assert [host.name for host in inventory.load(None).hosts] == ["near-1", "near-2"]
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("mode", [0o666, 0o664])
@pytest.mark.parametrize("folder", ["src", "."])
def test_a_file_that_others_may_write_is_used_only_by_name(
    mode: int, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "hosts.toml"
    file.write_text(TWO)
    file.chmod(mode)
    (tmp_path / folder).mkdir(exist_ok=True)
    monkeypatch.chdir(tmp_path / folder)
    with pytest.raises(UsageError, match=r"hosts\.toml is not used"):
        inventory.load(None)
    assert len(inventory.load(str(file)).hosts) == 2


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files to another user")
@pytest.mark.parametrize("linked", [False, True])
def test_a_file_or_link_of_another_user_is_not_used(
    linked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "hosts.toml"
    if linked:
        (tmp_path / "own.toml").write_text(TWO)
        file.symlink_to("own.toml")
    else:
        file.write_text(TWO)
    os.chown(file, 12345, 12345, follow_symlinks=False)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"hosts\.toml is not used"):
        inventory.load(None)


def test_what_was_opened_is_what_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link that is flipped after it was opened changes nothing: the open file itself is looked at."""
    (tmp_path / "theirs.toml").write_text(TWO)
    (tmp_path / "theirs.toml").chmod(0o666)
    (tmp_path / "ours.toml").write_text(TWO)
    link = tmp_path / "hosts.toml"
    link.symlink_to("theirs.toml")
    opened = os.open

    def flipping(path: str | Path, flags: int, mode: int = 0o777) -> int:
        fd = opened(path, flags, mode)
        if Path(path).name == link.name:
            link.unlink()
            link.symlink_to("ours.toml")
        return fd

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "open", flipping)
    with pytest.raises(UsageError, match=r"hosts\.toml is not used"):
        inventory.load(None)


@pytest.mark.parametrize(("wanted", "names"), [(None, "gone.toml"), ("loop.toml", "loop.toml")])
def test_a_link_that_leads_nowhere_is_named(
    wanted: str | None, names: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no hosts.toml above, of other machines perhaps, is taken in its place."""
    (tmp_path / "hosts.toml").write_text(TWO)
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    Path(wanted or "hosts.toml").symlink_to(names)
    with pytest.raises(UsageError, match="toml is a link that leads nowhere") as caught:
        inventory.load(wanted)
    assert caught.value.why == f"it names {names}"


@pytest.mark.parametrize(
    ("words", "hosts"),
    [
        ("192.0.2.1,train@192.0.2.2:2200", [("192.0.2.1", None, None), ("192.0.2.2", "train", 2200)]),
        ("192.0.2.[1-2]", [("192.0.2.1", None, None), ("192.0.2.2", None, None)]),
        ("192.0.2.7,", [("192.0.2.7", None, None)]),
    ],
)
def test_hosts_in_place_of_a_file(
    words: str,
    hosts: list[tuple[str, str | None, int | None]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    found = inventory.load(words)
    assert [(host.address, host.user, host.port) for host in found.hosts] == hosts
    assert inventory.is_there(words)


@pytest.mark.parametrize("words", ["hosts.tml", "./a,b", "cluster,old.toml", "gpu-01"])
def test_what_is_sooner_a_file(words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=f"there is no {Path(words)}"):
        inventory.load(words)


def test_this_machine_has_an_address_that_its_tasks_find() -> None:
    """As `local` it has none: TensorFlow waited for its own server for ever."""
    (host,) = inventory.load("local,").hosts
    assert (host.is_local, host.address) == (True, "127.0.0.1")
    mixed = {host.name: host.address for host in inventory.load("local,192.0.2.1").hosts}
    assert mixed == {"local": socket.gethostname(), "192.0.2.1": "192.0.2.1"}


@pytest.mark.parametrize(
    ("wanted", "what", "hint"),
    [
        ("gpu-[01-04", "has a [ without a ]", "gpu-[01-03],gpu-07"),
        ("gpu-01-04]", "has a ] without a [", "gpu-[01-03],gpu-07"),
        ("gpu-01", "there is no gpu-01", "`--hosts gpu-01,` means the host"),
        ("host.toml", "there is no host.toml", "`--hosts hosts.toml`"),
        (",", "--hosts , names no host", "`--hosts gpu-01,gpu-02`"),
        ("a, b", "is neither a file nor hosts", "`--hosts a,b`"),
        ("gpu-01 gpu-02", "is neither a file nor hosts", "`--hosts gpu-01,gpu-02`"),
    ],
)
def test_hosts_that_are_written_badly_are_taken_for_no_file(
    wanted: str, what: str, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hosts.toml").write_text("")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError) as caught:
        inventory.load(wanted)
    assert what in caught.value.what
    assert hint in caught.value.hint
