"""What is said of tasks that fetch their data."""

from __future__ import annotations

from orchestrator.events import FetchStepped
from orchestrator.run.view import Fetching, fetch_words


def test_one_who_waits_is_told_of_once_and_a_download_in_tenths() -> None:
    fetching = Fetching()
    told = [
        fetching.is_news(FetchStepped(task, "mnist", step, done, total))
        for task, step, done, total in (
            ("worker/0", "waits", 0, 0),
            ("worker/0", "waits", 0, 0),
            ("worker/1", "waits", 0, 0),
            ("worker/0", "downloads", 0, 100),
            ("worker/0", "downloads", 9, 100),
            ("worker/0", "downloads", 11, 100),
            ("worker/0", "prepares", 11, 100),
            ("worker/0", "prepares", 11, 100),
        )
    ]
    assert told == [True, False, True, True, False, True, True, False]


def test_words() -> None:
    event = FetchStepped("worker/0", "mnist", "downloads\x1b[2J", 4_200_000, 11_594_722)
    assert fetch_words(event).startswith("mnist: downloads")
    assert fetch_words(event).endswith(" (4.2 MB of 12 MB)")
    assert "\x1b" not in fetch_words(event)
