"""The rows of a long step on a terminal, and what is said of it at its end."""

from __future__ import annotations

import io
import re
import sys

import pytest
from rich.console import Console
from rich.progress import Progress

from orchestrator.cli.desk.out import bars
from orchestrator.events import DataPlaced, EnvironmentMade, Stepped
from orchestrator.render import progress

HOSTS = ("gpu-01", "gpu-02", "gpu-03")
BAR = re.compile("[\u2500-\u257f]+")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def each(step: str, done: int = 0, total: int = 0, *, unit: str = "bytes", hosts: int = 3) -> list[Stepped]:
    return [Stepped(host, step, done, total, unit) for host in HOSTS[:hosts]]


# What each of the hosts does, and the rows of the screen then, twelve seconds later.
SCREENS: list[tuple[list[Stepped], list[str]]] = [
    ([Stepped("", "resolve packages")], ["this machine: resolve packages 12 s"]),
    ([Stepped("", "resolve packages"), Stepped("", "")], []),
    (each("unpack", 10**9), ["gpu-[01-03]: unpack 3.0 GB"]),
    (
        [*each("unpack", 10**9), *each("install", 20, 80, unit="packages", hosts=2)],
        ["gpu-03: unpack 1.0 GB", "gpu-[01-02]: install | 40 of 160 packages"],
    ),
    ([*each("import check"), *each("", hosts=2)], ["gpu-03: import check 12 s"]),
    (
        each("receive packages", 12 * 10**7, 24 * 10**7, hosts=1),
        ["gpu-01: receive packages | 120 MB of 240 MB, 10 MB/s"],
    ),
    ([*each("unpack", 7), *each("")], []),
]


@pytest.mark.parametrize(("steps", "rows"), SCREENS)
def test_hosts_at_the_same_step_share_a_row(
    steps: list[Stepped], rows: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now, made = [0.0], list[Progress]()

    def start(self: Progress) -> None:
        made.append(self)

    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setattr(progress, "Console", lambda **_: Console(file=Terminal(), get_time=lambda: now[0]))
    monkeypatch.setattr(Progress, "start", start)
    with progress.steps() as show:
        for step in steps:
            show(step)
        now[0] = 12.0
        screen = Console(file=io.StringIO(), width=100, record=True)
        screen.print(made[0].get_renderable())
    lines = [" ".join(BAR.sub("|", line).split()) for line in screen.export_text().splitlines()]
    assert sorted(filter(None, lines)) == sorted(rows)


def test_results_are_folded(capsys: pytest.CaptureFixture[str]) -> None:
    made = [
        EnvironmentMade(host, "/e", {"python": "3.11.2"}, float(at), reused=False)
        for at, host in enumerate(HOSTS, 31)
    ]
    data = [DataPlaced(host, "d", "/d", 10**9, 0, 0, 1.0, reused=True) for host in HOSTS]
    other = EnvironmentMade("head", "/e", {"python": "3.12.0"}, 9.0, reused=False)
    with bars(json=False) as emit:
        for one in made:
            emit(one)
        emit(other)
        for another in data:
            emit(another)
    assert capsys.readouterr().err.splitlines() == [
        "gpu-[01-03]: environment made in 31 s to 33 s: python 3.11.2",
        "head: environment made in 9.0 s: python 3.12.0",
        "gpu-[01-03]: has the data already (1.0 GB)",
    ]
