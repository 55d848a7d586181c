"""Lists of hosts that people have, and what `init` makes of machines that were looked at."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator import config
from orchestrator.cli import init
from orchestrator.cli.desk import choosing
from orchestrator.cli.desk.choosing import Candidate
from orchestrator.config.mistakes import Wrong
from orchestrator.errors import UsageError
from orchestrator.phases.survey import Machine, TensorFlowPython, choose_addresses, choose_python, pythons_of


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
    assert [(one.name, one.ssh, one.tasks) for one in choosing.of_hostfile(text)] == hosts


def test_a_line_that_is_none_of_a_hostfile() -> None:
    with pytest.raises(ValueError, match="line 2 is not `host slots=4`: gpu 02"):
        choosing.of_hostfile("gpu-01\ngpu 02\n")


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
    first, second, here = choosing.of_ansible(json.dumps(LISTED))
    assert (first.name, first.ssh, sorted(first.groups)) == (
        "gpu-01",
        "me@10.0.0.1:2200",
        ["all", "gpu", "training"],
    )
    assert (second.ssh, second.identity, here.ssh) == ("gpu-02", "~/.ssh/my key", "local")


@pytest.mark.parametrize("text", ["[gpu]\ngpu-[01:02]\n", "gpu-01 ansible_port=22\n", "all:\n  hosts:\n"])
def test_an_inventory_of_ansible_is_read_by_ansible(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my hosts").write_text(text)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="Ansible is not installed here"):
        choosing.read(tmp_path / "my hosts")
    program = tmp_path / "ansible-inventory"
    program.write_text(
        f"#!/bin/sh\n[ \"$2$3\" = '{tmp_path}/my hosts--list' ] && echo '{json.dumps(LISTED)}'\n"
    )
    program.chmod(0o755)
    assert [one.name for one in choosing.read(tmp_path / "my hosts")] == ["gpu-01", "gpu-02", "here"]
    chosen = choosing.choose(["gpu-02", "ungrouped"], str(tmp_path / "my hosts"), None)
    assert [one.name for one in chosen] == ["gpu-02", "here"]
    with pytest.raises(UsageError, match="tpu is not in"):
        choosing.choose(["tpu"], str(tmp_path / "my hosts"), None)
    program.write_text("#!/bin/sh\necho 'no such plugin' >&2; exit 1\n")
    with pytest.raises(UsageError) as caught:
        choosing.read(tmp_path / "my hosts")
    assert caught.value.why == "no such plugin"


@pytest.mark.parametrize(
    "text",
    [
        "# nothing\n",
        "gpu 01\n",
        "{}",
        '{"_meta": 3}',
        '{"gpu": {"hosts": [3]}}',
    ],
)
def test_a_file_that_is_no_list_of_hosts(text: str, tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text(text)
    with pytest.raises(UsageError, match=r"cannot read|names no host"):
        choosing.read(tmp_path / "hosts")


def test_names_of_ssh_config(tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "a").write_text('host = "gpu-03" gpu-04\n')
    (tmp_path / "config").write_text(
        f"# hosts\nHost gpu-01 gpu-0? !gpu-09\n  HostName 10.0.0.1\nHost=gpu-02 gpu-01\n"
        f"Include {tmp_path}/more/* {tmp_path}/config {tmp_path}/none\nHost *\n  User me\nMatch host x\n"
    )
    assert choosing.aliases(tmp_path / "config") == ("gpu-01", "gpu-02", "gpu-03", "gpu-04")
    assert choosing.aliases(tmp_path / "none") == ()
    with pytest.raises(UsageError) as caught:
        choosing.choose([], None, str(tmp_path / "config"))
    assert caught.value.why.endswith(" names gpu-[01-04]")


def test_a_host_is_written_only_under_a_name_that_is_read_again() -> None:
    with pytest.raises(Wrong, match="letters, digits"):
        choosing.host_of(Candidate("g\u00fcn", "10.0.0.1"), None)
    assert choosing.hostname(choosing.host_of(Candidate("gpu-01.", "gpu-01."), "/dev/null")) == "gpu-01"


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


def test_the_first_python_that_all_have() -> None:
    old, new, own = (
        TensorFlowPython("/opt/a", "2.16"),
        TensorFlowPython("/opt/b", "2.17"),
        TensorFlowPython("~/c", "2.17"),
    )

    def having(*pythons: TensorFlowPython) -> Machine:
        return Machine("h", "p", (), pythons=pythons)

    assert choose_python([having(old, new), having(own, new)]) == new
    assert choose_python([having(new), having(own)]) is None
    assert choose_python([having(new), having()]) is None
    assert choose_python([]) is None


def written(*candidates: Candidate, note: str = "", task_port: int = 2222, **machines: Machine) -> str:
    """Write the file of these candidates; a machine is given under its host's name."""
    hosts = [choosing.host_of(one, "/dev/null") for one in candidates]
    notes = {one.name: note for one in candidates if note}
    return init.text(candidates, hosts, machines, notes, task_port=task_port, ssh_config="/etc/my config")


def test_what_is_written_is_read_as_it_was_meant() -> None:
    gpus = Machine(
        "10.0.0.1", "a", ("10.0.0.1",), ("A\x1b[2J",) * 2, (TensorFlowPython("~/größe/py", "2.17"),)
    )
    other = Machine("10.0.0.2", "b", ("10.0.0.2",), (), gpus.pythons)
    text = written(
        Candidate("one", "10.0.0.1", tasks=2, identity="~/.ssh/my key"),
        Candidate("two", "me@10.0.0.2:2200"),
        note="x\ny = 1",
        task_port=2300,
        one=gpus,
        two=other,
    )
    first, second = config.parse(text).hosts
    assert (first.name, first.ssh, first.address, first.tasks) == ("one", "10.0.0.1", "10.0.0.1", 2)
    assert (second.ssh, second.user, second.port, second.task_port) == ("10.0.0.2", "me", 2200, 2300)
    assert (first.identity, second.python, first.ssh_config) == (
        "~/.ssh/my key",
        "~/größe/py",
        "/etc/my config",
    )
    assert "# devices = [0, 1]" in text
    assert "\x1b" not in text


def test_entries_for_one_machine_get_ports_and_folders_of_their_own() -> None:
    machine = Machine("127.0.0.1", "a", ())
    first, second = config.parse(
        written(Candidate("a", "local", tasks=3), Candidate("b", "local"), a=machine, b=machine)
    ).hosts
    assert (first.task_port, second.task_port) == (2222, 2225)
    assert (first.state, second.state) == (None, "/var/tmp/orchestrate-b")


def test_where_an_environment_is_made_gpus_are_named() -> None:
    """[env] takes TensorFlow's build for GPUs only where hosts name theirs."""
    made = config.parse(written(Candidate("a", "10.0.0.1"), a=Machine("10.0.0.1", "a", (), ("A100",) * 2)))
    assert made.hosts[0].devices == ("0", "1")
    assert made.environment is not None
    assert any("and-cuda" in package for package in made.environment.packages)


@pytest.mark.parametrize(
    "answer",
    [
        "login banner",
        "2.1 -c",
        "2.1 x y",
        "2.1 ../x",
        "2.1 /x/",
        "2.1 ",
        "2.1; /x",
        "2" * 100 + " /x",
        "2 /x\u202e",
        "2 /" + "x" * 2000,
    ],
)
def test_what_hosts_toml_may_not_say_is_not_believed(answer: str) -> None:
    assert list(pythons_of(f"{answer}\n2.21.0 /opt/a b")) == [TensorFlowPython("/opt/a b", "2.21.0")]
