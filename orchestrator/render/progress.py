"""Progress on a terminal: a bar for a transfer or a host, a line for what is awaited; elsewhere nothing."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from orchestrator.ranges import fold
from orchestrator.text import plain, size


@contextmanager
def progress(title: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar on stderr while the block runs; call what it gives with each number of bytes that came."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=total or None)
        yield lambda number: bar.advance(task, number)


@contextmanager
def steps(names: Sequence[str], *, quiet: bool = False) -> Iterator[Callable[[str, str, int, int], None]]:
    """A row for hosts that do the same, on stderr while the block runs.

    Call the result with (name, step, done, total); what is counted is bytes, but of a step `unpack`.
    """
    if quiet or not sys.stderr.isatty():
        yield lambda *_: None
        return
    table = Steps(names)
    with Live(get_renderable=table, console=Console(stderr=True), transient=True, refresh_per_second=4):
        yield table.step


class Steps:
    """The rows: names folded, step, figures, bar. A bar needs a total."""

    def __init__(self, names: Sequence[str], clock: Callable[[], float] = time.monotonic) -> None:
        self._now = dict.fromkeys(names, ("waits", 0, 0))
        self._began: dict[str, tuple[float, int]] = {}  # of the step: when, and from how much on
        self._clock = clock

    def step(self, name: str, step: str, done: int, total: int) -> None:
        if self._now.get(name, ("", 0, 0))[0] != step:
            self._began[name] = self._clock(), done
        self._now[name] = step, done, total

    def __call__(self) -> Table:
        groups: dict[str, list[str]] = {}
        for name, (step, *_) in list(self._now.items()):
            groups.setdefault(step, []).append(name)
        table = Table.grid(padding=(0, 1))
        rows = {step: plain(fold(names)) for step, names in groups.items()}
        table.add_column(overflow="fold", min_width=min(30, max(map(len, rows.values()), default=0)))
        for _ in range(3):
            table.add_column(no_wrap=True)
        for step, names in groups.items():
            done = sum(self._now[name][1] for name in names)
            total = sum(self._now[name][2] for name in names)
            bar = ProgressBar(total, done, width=20) if total else Text("")
            figures = self._figures(step, names, done, total)
            table.add_row(Text(rows[step]), Text(plain(step)), Text(figures), bar)
        return table

    def _figures(self, step: str, names: Sequence[str], done: int, total: int) -> str:
        if not done:
            return ""
        if step == "unpack":
            return f"{done} of {total} packages"
        if step == "fetch here":  # once for all of them
            names = names[:1]
            done = self._now[names[0]][1]
        rate = 0.0 if total and done >= total else sum(self._rate(name) for name in names)
        return (
            f"{size(done)}{f' of {size(total)}' if total else ''}{f', {size(int(rate))}/s' if rate else ''}"
        )

    def _rate(self, name: str) -> float:
        began, first = self._began.get(name, (0.0, 0))
        seconds = self._clock() - began
        return (self._now[name][1] - first) / seconds if seconds >= 1 else 0.0


@contextmanager
def awaiting() -> Iterator[Callable[[str], None]]:
    """Name what is awaited on stderr while the block runs; call the result with each step."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    with Console(stderr=True, markup=False, emoji=False, highlight=False).status("") as status:
        yield lambda step: status.update(plain(step))
