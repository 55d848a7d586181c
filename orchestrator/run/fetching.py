"""The words of tasks that fetch their data, and which of them are news. Pure."""

from __future__ import annotations

from orchestrator.events import FetchStepped
from orchestrator.text import plain, size

_PARTS = 10  # of a download: so often its progress is news


def words(event: FetchStepped) -> str:
    of = f" ({size(event.done)} of {size(event.total)})" if event.total else ""
    return plain(f"{event.name}: {event.step}{of}")


class Fetching:
    """The last word of each task: a host that waits for minutes is told of once."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[str, str, int]] = {}

    def is_news(self, event: FetchStepped) -> bool:
        now = event.name, event.step, event.done * _PARTS // event.total if event.total else 0
        if self._last.get(event.task) == now:
            return False
        self._last[event.task] = now
        return True
