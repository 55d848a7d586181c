"""Progress on a terminal: a bar for a transfer or a host, a line for a wait; nothing elsewhere."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from msgspec.structs import replace
from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn
from rich.progress_bar import ProgressBar
from rich.text import Text

from orchestrator.events import Stepped
from orchestrator.ranges import fold, grouped
from orchestrator.text import duration, plain, size


class _Bar(BarColumn):
    """A bar if the total is known; otherwise nothing moves."""

    def render(self, task: Task) -> ProgressBar:
        return super().render(task) if task.total else ProgressBar(width=0)


class _Figures(ProgressColumn):
    """The amount and total, in bytes with their rate for transfers; otherwise the elapsed time."""

    def render(self, task: Task) -> Text:
        step, seconds = task.fields["step"], task.elapsed or 0.0
        if step.total or step.done:
            word = size if step.unit == "bytes" else str
            of = f" of {word(step.total)}" if step.total else ""
            unit = "" if step.unit == "bytes" else f" {step.unit}"
            comes = step.total and not unit and step.done and seconds >= 1
            pace = f", {size(step.done / seconds)}/s" if comes else ""
            return Text(f"{word(step.done)}{of}{unit}{pace}")
        return Text(duration(int(seconds)) if seconds >= 1 else "")


@contextmanager
def steps(*, quiet: bool = False) -> Iterator[Callable[[Stepped], None]]:
    """Show a row for hosts at the same step on stderr while the block runs."""
    if quiet or not sys.stderr.isatty():
        yield lambda _: None
        return
    now: dict[str, Stepped] = {}
    rows: dict[str, TaskID] = {}  # of each step
    column = TextColumn("{task.description}", markup=False)
    console = Console(stderr=True)
    with Progress(column, _Bar(bar_width=20), _Figures(), console=console, transient=True) as progress:

        def show(step: Stepped) -> None:
            now[step.who or "this machine"] = step
            groups = grouped((last.step, (name, last)) for name, last in now.items() if last.step)
            for finished in rows.keys() - groups.keys():
                progress.remove_task(rows.pop(finished))
            for name, members in groups.items():
                done, total = (sum(getattr(last, what) for _, last in members) for what in ("done", "total"))
                merged = replace(members[0][1], done=done, total=total)
                title = plain(f"{fold(who for who, _ in members)}: {name}")
                if name not in rows:
                    rows[name] = progress.add_task("", total=None, step=merged)
                progress.update(
                    rows[name], description=title, completed=done, total=total or None, step=merged
                )

        yield show
