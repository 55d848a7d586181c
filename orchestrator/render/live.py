"""For a terminal: the tasks' lines scroll by above, a region at the bottom shows where the run stands.

The main thread hands over, a thread of its own draws, a few times a second and in one write: a terminal
that stands still (Ctrl-S, a dead link) never holds up the signals of the main thread. Lines wait for a slow
terminal for a second; what does not fit then is left out of the display, and said.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from typing import TextIO

from orchestrator import events as ev
from orchestrator.ends import failed
from orchestrator.events import Event, LogLine, Stamped
from orchestrator.render.paint import Paint, Said
from orchestrator.render.region import region
from orchestrator.render.screen import Screen
from orchestrator.render.sink import Sink, colours
from orchestrator.render.words import gap, say
from orchestrator.view import View, apply

FRAME = 0.1  # seconds between two frames
ROOM = 4000  # lines that may wait to be drawn
PATIENCE = 1.0  # seconds a line waits for room; then the terminal counts as stuck


class Live:
    def __init__(self, stdout: TextIO) -> None:
        self._sink = Sink(stdout)
        self._paint = Paint(colour=colours(stdout))
        self._screen = Screen(self._sink)
        self._view = View()
        self._said: deque[Said] = deque()
        self._dropped: Counter[str] = Counter()
        self._changed = threading.Condition()
        self._closing = False
        self._frames = 0
        self._gone: Exception | None = None
        self._thread = threading.Thread(target=self._draw_on, name="display", daemon=True)
        self._thread.start()

    def handle(self, stamped: Stamped) -> None:
        """Take an event to be drawn; raise DisplayGoneError once the terminal is gone."""
        event = stamped.event
        with self._changed:
            if self._gone:
                raise self._gone
            if isinstance(event, LogLine):
                self._add_line(event)
                return
            self._view = apply(self._view, event, stamped.at)
            self._said.extend(_words(self._view, event))

    def close(self) -> None:
        """Draw what is left, take the region away; give up on a terminal that stands still."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        frames = -1
        while self._thread.is_alive() and frames != self._frames:
            frames = self._frames
            self._thread.join(2 * PATIENCE)

    def _add_line(self, line: LogLine) -> None:
        """Queue a line, or count it as dropped while the terminal is stuck."""
        if len(self._said) >= ROOM:
            self._changed.notify_all()
            stuck = bool(self._dropped)
            if stuck or not self._changed.wait_for(lambda: len(self._said) < ROOM, PATIENCE):
                self._dropped[line.task] += 1
                return
        self._said.append(line)

    def _draw_on(self) -> None:
        try:
            while self._draw():
                pass
        except Exception as error:  # also a bug of ours: the main thread has to hear of it
            with self._changed:
                self._gone = error
                self._said.clear()
                self._changed.notify_all()

    def _draw(self) -> bool:
        """One frame; False after the last one."""
        with self._changed:
            self._changed.wait_for(lambda: self._closing or len(self._said) >= ROOM, FRAME)
            said, view, closing = list(self._said), self._view, self._closing
            self._said.clear()
            said += _gaps(self._dropped)
            self._dropped.clear()
            self._changed.notify_all()
        self._paint.learn(view)
        rows = [] if closing else region(view, time.time(), max(2, self._screen.height // 2))
        self._screen.draw(
            [self._paint.line(one) for one in said],
            [self._paint.row(row, self._screen.width - 1) for row in rows],
        )
        self._frames += 1
        return not closing


def _words(view: View, event: Event) -> list[Said]:
    """What is said above the region; what the region shows is not said again."""
    if isinstance(event, ev.PhaseStarted | ev.TaskStarted | ev.TaskReady):
        return []
    if isinstance(event, ev.TaskExited) and not failed(event):
        return []
    if isinstance(event, ev.RunEnded):
        return [(line, "") for line in say(view, event)]
    return [(line, _style(event)) for line in say(view, event)]


def _style(event: Event) -> str:
    match event:
        case ev.HostFailed():
            return "red"
        case ev.TaskExited():
            return "red" if failed(event) else "dim"
        case ev.HostLost() | ev.LogGap() | ev.StopRequested():
            return "yellow"
        case _:
            return "dim"


def _gaps(dropped: Counter[str]) -> list[Said]:
    return [
        (f"{task}: {gap(ev.LogGap(task, 'display', lines, 'the terminal is too slow'))}", "yellow")
        for task, lines in dropped.items()
    ]
