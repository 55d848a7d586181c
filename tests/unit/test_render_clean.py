"""What `clean` says of what it found."""

from __future__ import annotations

import json
from typing import Any

import pytest

from orchestrator import wire
from orchestrator.errors import ExitStatus, HostError
from orchestrator.render.clean import Cleaning, lines
from orchestrator.store.prune import Pruned
from tests.golden import matches_golden

NOTHING: dict[str, Any] = {"count": 0, "bytes": 0, "gone": [], "failed": []}
PROCESS = {"pid": 42, "argv0": "python3", "run": "r1", "task": "worker/0"}


def reply(**more: Any) -> wire.Cleaned:
    found: dict[str, Any] = {"orphans": [], "killed": [], "trouble": []}
    folders = dict.fromkeys(("state", "work", "code", "data", "envs", "scraps"), NOTHING) | more.pop(
        "folders", {}
    )
    known = {**found, "folders": folders, **more}
    return wire.read(known, wire.Cleaned, "a reply")


def cleaning(hosts: dict[str, wire.Cleaned], *, dry: bool = False, **more: Any) -> Cleaning:
    here = Pruned(0, 0, (), 0, (), ())
    wish: dict[str, Any] = {
        "unreachable": {},
        "here": here,
        "alive": frozenset(),
        "work": False,
    }
    return Cleaning(hosts=hosts, dry=dry, **{**wish, **more})


def test_hosts_that_say_the_same_share_a_line() -> None:
    some = {"count": 41, "bytes": 1_200_000_000, "failed": []}
    old = {**some, "gone": [{"name": f"r{n}", "bytes": 25_000_000} for n in range(12)]}
    kinds = {"state": old, "work": {**some, "gone": []}}
    hosts = {"gpu-1": reply(killed=[PROCESS], folders=kinds)}
    done = cleaning({**hosts, **{f"gpu-{n}": reply(folders=kinds) for n in (2, 3)}})
    shown = {width: lines(done, json=False, width=width) for width in (None, 60)}
    matches_golden(
        "render/clean.txt",
        "".join(f"--- {width}\n" + "\n".join(said) + "\n" for width, said in shown.items()),
    )
    assert done.status is ExitStatus.OK


@pytest.mark.parametrize(
    ("found", "dry", "said", "status"),
    [
        (
            {"killed": [PROCESS]},
            False,
            "gpu-1: killed python3 pid 42, of worker/0 of run r1: the run is over",
            0,
        ),
        ({"orphans": [PROCESS]}, True, "gpu-1: would kill python3 pid 42, of worker/0 of run r1: ", 1),
        ({"orphans": [PROCESS]}, False, "gpu-1: cannot kill python3 pid 42, ", 1),
        (
            {"trouble": [{"kind": "orphan", "what": "pid 42 cannot be killed", "why": "w", "hint": "h"}]},
            False,
            "error: gpu-1 says: pid 42 cannot be killed",
            1,
        ),
        (
            {"folders": {"state": {**NOTHING, "failed": ["/var/tmp/x: Permission denied"]}}},
            False,
            "error: gpu-1: cannot remove all",
            1,
        ),
    ],
)
def test_what_was_found_has_a_line_and_a_status(
    found: dict[str, Any], dry: bool, said: str, status: int
) -> None:
    done = cleaning({"gpu-1": reply(**found)}, dry=dry)
    assert any(line.startswith(said) for line in lines(done, json=False)), lines(done, json=False)
    assert done.status == status


def test_a_silent_host_decides_the_status_and_what_it_may_share_is_said() -> None:
    error = HostError("gpu-2", "was lost", kind="lost", why="w", hint="h")
    done = cleaning({"gpu-1": reply()}, unreachable={"gpu-2": error})
    assert done.status is ExitStatus.CLUSTER
    assert any(
        "gpu-2 cannot be asked: code, environments and working folders" in line
        for line in lines(done, json=False)
    )
    clean, silent, here = map(json.loads, lines(done, json=True))
    assert (clean["clean"], silent["clean"], here["host"]) == (True, None, None)
