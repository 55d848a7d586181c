"""How far a transfer has come: a bar on a terminal, nothing elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from orchestrator.text import plain


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
        yield lambda size: bar.advance(task, size)


@contextmanager
def steps(names: Sequence[str], *, quiet: bool = False) -> Iterator[Callable[[str, str, int, int], None]]:
    """A bar for each name on stderr while the block runs; call the result with (name, step, done, total)."""
    if quiet or not sys.stderr.isatty():
        yield lambda *_: None
        return
    columns = (
        TextColumn("{task.fields[name]}", markup=False),
        BarColumn(20),
        TextColumn("{task.description}", markup=False),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        tasks = {name: bars.add_task("", name=name, total=None) for name in names}
        yield lambda name, step, done, total: bars.update(
            tasks[name], description=plain(step), completed=done, total=total or None
        )
