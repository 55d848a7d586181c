"""The hosts a command line selects: from a file here or in a parent, `--hosts`, `--only`, `--exclude`."""

import os
import socket
from pathlib import Path

import pytest

from orchestrator.cli.desk.person import Person
from orchestrator.errors import HostError, UsageError
from orchestrator.model import Host, Inventory
from orchestrator.planning.selection import narrow
from orchestrator.ranges import fold
from orchestrator.ssh.resolve import resolve
from orchestrator.verbs import Caller, inventory

pytestmark = pytest.mark.usefixtures("here")

TWO = '[[host]]\nssh = "gpu-[1-2]"\n'


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_file_in_a_parent_folder_is_used_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "hosts.toml").write_text(TWO)
    deep = tmp_path / "src" / "model"
    deep.mkdir(parents=True)
    monkeypatch.chdir(deep)
    assert [host.name for host in inventory.load(None, Person()).hosts] == ["gpu-1", "gpu-2"]
    assert capsys.readouterr().err == "inventory: ../../hosts.toml\n"
    (deep / "hosts.toml").write_text(TWO.replace("gpu", "near"))
    assert [host.name for host in inventory.load(None, Person()).hosts] == ["near-1", "near-2"]
    assert capsys.readouterr().err == ""


def test_a_file_writable_only_by_the_user_s_own_group_is_used(tmp_path: Path) -> None:
    """As with Ubuntu's umask."""
    (tmp_path / "hosts.toml").write_text(TWO)
    (tmp_path / "hosts.toml").chmod(0o664)
    assert len(inventory.load(None, Caller()).hosts) == 2


@pytest.mark.parametrize("mode", [0o666, 0o664])
def test_a_file_writable_by_others_is_used_only_if_named(
    mode: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.node.base.trust.is_private", lambda _group: False)
    file = tmp_path / "hosts.toml"
    file.write_text(TWO)
    file.chmod(mode)
    with pytest.raises(UsageError, match=r"hosts\.toml is not used"):
        inventory.load(None, Caller())
    assert len(inventory.load(str(file), Caller()).hosts) == 2


@pytest.mark.parametrize("included", [False, True])
def test_an_ssh_config_writable_by_others_runs_nothing(included: bool, tmp_path: Path) -> None:
    """`ssh -G` used to run its `Match exec` and ProxyCommand programs before any connection."""
    theirs, config, ran = tmp_path / "theirs", tmp_path / "config", tmp_path / "ran"
    theirs.write_text(f'Match exec "touch {ran}"\n  ProxyCommand touch {ran}\n')
    theirs.chmod(0o666)
    config.write_text(f"Include {theirs}\n")
    named = config if included else theirs
    (tmp_path / "hosts.toml").write_text(f'[defaults]\nssh_config = "{named.name}"\n{TWO}')
    if not included:
        with pytest.raises(UsageError, match="theirs is not used") as caught:
            inventory.load(None, Caller())
        assert f"chmod go-w {theirs}" in caught.value.hint
    with pytest.raises(HostError, match="cannot be resolved from ssh_config") as refused:  # for a live run
        resolve(Host("gpu-1", "gpu-1", "10.0.0.1", ssh_config=str(named)))
    assert str(theirs) in refused.value.why
    assert not ran.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files to another user")
@pytest.mark.parametrize("linked", [False, True])
def test_a_file_or_link_of_another_user_is_not_used(linked: bool, tmp_path: Path) -> None:
    file = tmp_path / "hosts.toml"
    if linked:
        (tmp_path / "own.toml").write_text(TWO)
        file.symlink_to("own.toml")
    else:
        file.write_text(TWO)
    os.chown(file, 12345, 12345, follow_symlinks=False)
    with pytest.raises(UsageError, match=r"hosts\.toml is not used"):
        inventory.load(None, Caller())


@pytest.mark.parametrize(
    ("words", "hosts"),
    [
        ("192.0.2.1,train@192.0.2.2:2200", [("192.0.2.1", None, None), ("192.0.2.2", "train", 2200)]),
        ("192.0.2.[1-2]", [("192.0.2.1", None, None), ("192.0.2.2", None, None)]),
        ("192.0.2.7,", [("192.0.2.7", None, None)]),
    ],
)
def test_hosts_instead_of_a_file(words: str, hosts: list[tuple[str, str | None, int | None]]) -> None:
    found = inventory.load(words, Caller())
    assert [(host.address, host.user, host.port) for host in found.hosts] == hosts
    assert inventory.is_there(words)


@pytest.mark.parametrize("words", ["hosts.tml", "./a,b", "cluster,old.toml", "gpu-01"])
def test_arguments_that_look_like_files_are_not_hosts(words: str) -> None:
    with pytest.raises(UsageError, match=f"there is no {Path(words)}"):
        inventory.load(words, Caller())


def test_this_machine_gets_an_address_its_tasks_can_reach() -> None:
    """As `local` it used to have none, and TensorFlow waited for its own server forever."""
    (host,) = inventory.load("local,", Caller()).hosts
    assert (host.is_local, host.address) == (True, "127.0.0.1")
    mixed = {host.name: host.address for host in inventory.load("local,192.0.2.1", Caller()).hosts}
    assert mixed == {"local": socket.gethostname(), "192.0.2.1": "192.0.2.1"}


INVENTORY = Inventory(tuple(Host(f"gpu-{n:02}", f"gpu-{n:02}", f"10.0.0.{n}") for n in range(1, 9)))


@pytest.mark.parametrize(
    ("only", "exclude", "left"),
    [
        (None, None, "gpu-[01-08]"),
        ("gpu-07, gpu-[02,01]", None, "gpu-[01-02,07]"),
        (None, "gpu-[02-08]", "gpu-01"),
        ("gpu-[01-04]", "gpu-02,gpu-08", "gpu-[01,03-04]"),
    ],
)
def test_hosts_are_selected_by_name(only: str | None, exclude: str | None, left: str) -> None:
    assert fold(host.name for host in narrow(INVENTORY, only, exclude).hosts) == left


@pytest.mark.parametrize(
    ("only", "exclude", "what", "hint"),
    [
        ("gpu-09", None, "--only names gpu-09, which", "write --only gpu-08"),
        ("gpu-[1-2]", None, "--only names gpu-[1-2], which", "write --only 'gpu-[01-02]'"),
        (None, "gpu-[01-03],gpo-4", "--exclude names gpo-4, which", "write --exclude 'gpu-[01-04]'"),
        ("gpu-[03-01]", None, "--only gpu-[03-01]: [03-01] is not a range", "write --only"),
        ("gpu-*", None, "--only names gpu-*, which", "write --only 'gpu-[01-08]'"),
        (None, "gpu-[01-03],gpu-?4", "--exclude names gpu-?4, which", "write --exclude 'gpu-[01-04]'"),
        ("", None, "--only names nothing", "write --only gpu-01"),
        ("gpu-01", "gpu-01", "no host is left", "choose"),
    ],
)
def test_mistakes_are_usage_errors(only: str | None, exclude: str | None, what: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        narrow(INVENTORY, only, exclude)
    assert caught.value.what.startswith(what)
    assert caught.value.hint.startswith(hint)
