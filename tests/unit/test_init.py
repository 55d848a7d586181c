"""The file that `init` writes from the facts of machines."""

import pytest

from orchestrator.config.load import parse
from orchestrator.config.mistakes import Wrong
from orchestrator.envs import Lock, Platform
from orchestrator.envs.platforms import fit
from orchestrator.model import EnvironmentPlan
from orchestrator.phases.survey import Machine, TrainingPython, choose_addresses, choose_python, unfit
from orchestrator.verbs import init
from orchestrator.verbs.inventory import host_of


def test_host_names_survive_writing_and_reading() -> None:
    with pytest.raises(Wrong, match="letters, digits"):
        host_of("g\u00fcn", "/dev/null")
    assert host_of("gpu-01.", "/dev/null").address == "gpu-01"


@pytest.mark.parametrize(
    ("places", "a", "b", "chosen"),
    [
        ("xy", "10.0.0.1 10.0.0.1", "10.0.0.2 10.0.0.2 192.168.7.2", "10.0.0.1 10.0.0.2"),
        ("xy", "198.51.100.1 172.17.0.1 10.1.2.3", "198.51.100.2 172.17.0.1 10.1.2.4", "10.1.2.3 10.1.2.4"),
        ("xy", "127.0.0.1 10.1.2.3", "127.0.0.1 10.1.9.4", "10.1.2.3 10.1.9.4"),
        ("xy", "gpu-a 10.1.2.3", "10.1.2.4 10.1.2.4", "10.1.2.3 10.1.2.4"),
        ("xx", "127.0.0.2", "127.0.0.3", "127.0.0.2 127.0.0.3"),
        ("xy", "gpu-a 10.1.2.3", "gpu-b 192.168.1.1 169.254.0.1", ""),
    ],
    ids=["as ssh", "NAT, and a bridge of each", "forwarded ports", "a name", "one machine", "no network"],
)
def test_the_address_reachable_by_the_others_is_chosen(places: str, a: str, b: str, chosen: str) -> None:
    machines = {}
    for name, place, words in zip("ab", places, (a, b), strict=True):
        hostname, *addresses = words.split()
        machines[name] = Machine(hostname, place, ("127.0.0.1", *addresses))
    assert choose_addresses(machines) == dict(zip("ab", chosen.split(), strict=False))


def test_the_first_python_present_on_all_hosts_is_chosen() -> None:
    old, new, own = map(TrainingPython, ("/opt/a", "/opt/b", "~/c"), ("2.16", "2.17", "2.17"))

    def having(*pythons: TrainingPython) -> Machine:
        return Machine("h", "p", (), pythons=pythons)

    assert choose_python([having(old, new), having(own, new)]) == new
    assert choose_python([having(new), having(own)]) is None
    assert choose_python([having(new), having()]) is None
    assert choose_python([]) is None


def written(*words: str, note: str = "", **machines: Machine) -> str:
    """Return the file for these hosts; each machine is passed under its host's name."""
    hosts = init.read_hosts(words, "/dev/null")
    notes = {host.name: note for host in hosts.values() if note}
    return init.text(hosts, machines, notes, "/etc/my config")


def test_the_written_file_reads_back_as_intended() -> None:
    gpus = Machine("one", "a", ("10.0.0.1",), ("A\x1b[2J",) * 2, (TrainingPython("~/größe/py", "2.17"),))
    other = Machine("two", "b", ("10.0.0.2",), (), gpus.pythons)
    text = written("one", "me@two:2200", note="x\ny = 1", one=gpus, two=other)
    first, second = parse(text).hosts
    assert (first.name, first.ssh, first.address) == ("one", "one", "10.0.0.1")
    assert (second.ssh, second.user, second.port, second.address) == ("two", "me", 2200, "10.0.0.2")
    assert (second.python, first.ssh_config) == ("~/größe/py", "/etc/my config")
    assert "# devices = [0, 1]" in text
    assert "\x1b" not in text


def test_gpus_are_listed_where_an_environment_is_created() -> None:
    """[env] uses TensorFlow's GPU build only if hosts list their GPUs."""
    made = parse(written("a", a=Machine("10.0.0.1", "a", (), ("A100",) * 2)))
    assert made.hosts[0].devices == ("0", "1")
    assert made.environment is not None
    assert any("and-cuda" in package for package in made.environment.packages)


@pytest.mark.parametrize(
    ("libc", "minors", "lines"),
    [
        ("glibc 2.36", (11, 14), []),
        ("glibc 2.41", (14,), ["a: no wheel of tensorflow for Python 3.14; setup sends Python 3.13"]),
        ("", (12,), ["a: no wheel of tensorflow for Python 3.12; nor for any other Python"]),
    ],
)
def test_a_python_without_wheels_is_reported_early(
    monkeypatch: pytest.MonkeyPatch, libc: str, minors: tuple[int, ...], lines: list[str]
) -> None:
    wheels = [
        {"url": f"https://x/tensorflow-1-cp3{one}-cp3{one}-manylinux2014_x86_64.whl"} for one in (11, 13)
    ]
    packages = [{"name": "tensorflow", "wheels": wheels}]
    monkeypatch.setattr(
        "orchestrator.phases.survey.fitting", lambda _lock, target, _plan: fit(packages, target)
    )
    machine = Machine("h", "p", (), platform=Platform("x86_64", libc), minors=minors)
    assert unfit({"a": machine}, Lock("", ""), EnvironmentPlan("")) == lines
