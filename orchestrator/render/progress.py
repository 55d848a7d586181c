"""How far a transfer has come: a bar on a terminal, nothing elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn


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
