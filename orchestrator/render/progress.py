"""Progress on a terminal: a bar for a transfer or a host, a line for what is awaited; elsewhere nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from orchestrator.ranges import fold, grouped
from orchestrator.text import plain, size


@contextmanager
def steps(*, quiet: bool = False) -> Iterator[Callable[[str, str, int, int], None]]:
    """A bar for hosts at the same step, on stderr while the block runs.

    Call the result with (name, step, done, total), in bytes; with "" for who has nothing left to do.
    """
    if quiet or not sys.stderr.isatty():
        yield lambda *_: None
        return
    now: dict[str, tuple[str, int, int]] = {}
    tasks: dict[str, TaskID] = {}  # the bar of each step
    columns = TextColumn("{task.description}", markup=False), BarColumn(bar_width=20)
    bars = Progress(
        *columns, TextColumn("{task.fields[figures]}"), console=Console(stderr=True), transient=True
    )
    with bars:

        def show(name: str, step: str, done: int, total: int) -> None:
            now[name] = step, done, total
            groups = grouped((step, name) for name, (step, *_) in now.items() if step)
            for gone in tasks.keys() - groups.keys():
                bars.remove_task(tasks.pop(gone))
            if not step:
                return
            names = groups[step]
            if step not in tasks:
                tasks[step] = bars.add_task("", total=None, figures="")
            done, total = sum(now[name][1] for name in names), sum(now[name][2] for name in names)
            seconds = next(task.elapsed or 0.0 for task in bars.tasks if task.id == tasks[step])
            said = f"{size(done)}{f' of {size(total)}' if total else ''}" if done else ""
            said += f", {size(done / seconds)}/s" if done and seconds >= 1 else ""
            words = plain(f"{fold(names)} {step}")
            bars.update(tasks[step], description=words, completed=done, total=total or None, figures=said)

        yield show


@contextmanager
def progress(title: str, total: int, *, quiet: bool = False) -> Iterator[Callable[[int], None]]:
    """A bar for one host; call the result with each number of bytes that came."""
    done = 0
    with steps(quiet=quiet) as show:

        def add(number: int) -> None:
            nonlocal done
            done += number
            show(title, "arrives", done, total)

        yield add


@contextmanager
def awaiting() -> Iterator[Callable[[str], None]]:
    """Name what is awaited on stderr while the block runs; call the result with each step."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    with Console(stderr=True, markup=False, emoji=False, highlight=False).status("") as status:
        yield lambda step: status.update(plain(step))
