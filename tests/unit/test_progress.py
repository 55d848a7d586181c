"""The rows that `setup` and `push` draw while hosts are supplied."""

from __future__ import annotations

from rich.console import Console

from orchestrator.render.progress import Steps
from tests.golden import matches_golden

MB = 1_000_000


def test_hosts_that_do_the_same_are_one_row_and_no_name_is_cut() -> None:
    now = 0.0
    rows = Steps([f"gpu-{number:02}" for number in range(1, 9)], lambda: now)
    rows.step("gpu-01", "fetch", 0, 0)
    for name in ("gpu-02", "gpu-03"):
        rows.step(name, "fetch here", 0, 0)
    rows.step("gpu-04", "send", 0, 400 * MB)
    now = 2.0
    rows.step("gpu-01", "fetch", 50 * MB, 0)
    for name in ("gpu-02", "gpu-03"):
        rows.step(name, "fetch here", 80 * MB, 0)
    rows.step("gpu-04", "send", 100 * MB, 400 * MB)
    rows.step("gpu-05", "unpack", 10, 40)
    rows.step("gpu-06", "import", 0, 0)
    shown = []
    for width in (100, 60):
        console = Console(width=width, force_terminal=False, color_system=None)
        with console.capture() as capture:
            console.print(rows())
        shown.append("\n".join(line.rstrip() for line in capture.get().splitlines()))
    matches_golden("render/steps.txt", "\n\n".join(shown) + "\n")
