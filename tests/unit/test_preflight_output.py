"""What preflight says of many hosts: how much of it, and that the rest can train without them."""

from __future__ import annotations

import argparse

import pytest

from orchestrator.checks.cluster import without
from orchestrator.cli.preflight import _summary
from orchestrator.events import CheckReported, Level, PairReported
from orchestrator.model import Host, Role
from orchestrator.render.preflight import preflight_table
from tests.unit.test_checks import of_pairs

NAMES = [f"gpu-{number:02}" for number in range(1, 65)]
HOSTS = [Host(name, name, f"10.0.0.{number}") for number, name in enumerate(NAMES, 1)]


def mesh(closed: set[str], why: str = "timed out") -> list[PairReported]:
    found = []
    for source in NAMES:
        for host in HOSTS:
            bad = host.name in closed and source != host.name
            address = f"{host.address}:2222"
            ms = None if bad else 0.2
            pair = PairReported(source, host.name, address, not bad, ms, None, why if bad else "")
            found.append(pair)
    return found


def test_thirty_firewalls_of_sixty_four_hosts_are_one_error() -> None:
    closed = {name for number, name in enumerate(NAMES) if number < 30}
    pairs = mesh(closed)
    checks = of_pairs(pairs)
    lines = preflight_table(checks, pairs, 80, hosts=NAMES)
    assert len(lines) <= 25
    assert len([line for line in lines if line.startswith("error")]) == 1
    assert all(len(line) <= 80 for line in lines)
    assert without(HOSTS, checks, pairs, ()) == tuple(sorted(closed))


def test_a_note_is_one_line_for_all_hosts_and_the_cell_says_it() -> None:
    checks = [CheckReported(name, "rsync", Level.NOTE, "none", "files are sent whole") for name in ("a", "b")]
    assert preflight_table([*checks, CheckReported("c", "rsync", Level.OK, "ok")], []) == [
        "host  rsync",
        "a, b  none",
        "c     ok",
        "",
        "note: a, b: rsync: none (files are sent whole)",
    ]


def test_a_host_that_does_not_answer_is_a_row_and_no_second_error() -> None:
    fine = CheckReported("gpu-01", "login", Level.OK, "vera")
    gone = CheckReported("gpu-02", "login", Level.FAIL, "does not answer", "timed out", "look at it")
    assert preflight_table([gone, fine], [], None, hosts=NAMES) == [
        "host    login",
        "gpu-01  vera",
        "gpu-02  FAIL",
    ]


def apart(*ways: tuple[str, str], names: tuple[str, ...] = ("a", "b", "c", "d")) -> list[PairReported]:
    return [
        PairReported(one, two, "10.0.0.1:2222", (one, two) not in ways, None, None)
        for one in names
        for two in names
    ]


FAIL = Level.FAIL


@pytest.mark.parametrize(
    ("checks", "pairs", "failed", "out"),
    [
        ([], apart(), (), ()),
        ([CheckReported("b", "disk", FAIL, "full")], apart(), (), ("b",)),
        ([CheckReported("b", "disk", Level.WARN, "little")], apart(), (), ()),
        ([], apart(), ("c",), ("c",)),
        ([CheckReported("b", "reach", FAIL, "x")], apart(("a", "b"), ("c", "b"), ("d", "b")), (), ("b",)),
        ([CheckReported("b", "reach", FAIL, "x")], apart(("b", "b")), (), ("b",)),
        ([], apart(("a", "b"), ("b", "a"), ("a", "c"), ("c", "a")), (), ("a",)),
        ([], apart(("a", "c"), ("a", "d"), ("b", "c"), ("b", "d")), (), ("c", "d")),
        ([CheckReported(name, "disk", FAIL, "full") for name in "abcd"], apart(), (), ()),
    ],
)
def test_who_is_left_out(
    checks: list[CheckReported], pairs: list[PairReported], failed: tuple[str, ...], out: tuple[str, ...]
) -> None:
    hosts = [Host(name, name, name) for name in "abcd"]
    assert without(hosts, checks, pairs, failed) == out


def test_the_only_chief_is_not_left_out() -> None:
    hosts = [Host("a", "a", "a", role=Role.CHIEF), Host("b", "b", "b"), Host("c", "c", "c")]
    assert without(hosts, [CheckReported("a", "disk", FAIL, "full")], [], ()) == ()
    assert without(hosts, [CheckReported("b", "disk", FAIL, "full")], [], ()) == ("b",)


@pytest.mark.parametrize(("exclude", "names"), [(None, "gpu-[03-04]"), ("gpu-07", "gpu-[03-04,07]")])
def test_the_option_without_them_can_be_copied(exclude: str | None, names: str) -> None:
    arguments = argparse.Namespace(exclude=exclude)
    summary = _summary(arguments, 64, ("gpu-03", "gpu-04"), good=False)
    assert summary == f"62 of 64 hosts are ready; `launch --exclude '{names}'` leaves out the others"
