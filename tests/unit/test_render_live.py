from __future__ import annotations

import fcntl
import os
import re
import struct
import termios
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest
from rich.text import Text

from orchestrator import events as ev
from orchestrator.events import Event, Outcome, Stamped
from orchestrator.render import choose
from orchestrator.render import live as live_module
from orchestrator.render.live import Live, _Terminal
from orchestrator.render.sink import DisplayGoneError, Sink

PLAN = ev.RunPlanned(
    "r1", "", "ann@laptop", (), (("worker/0", "gpu-01"), ("worker/1", "gpu-02")), (), "/runs/r1"
)
STARTED = [ev.TaskStarted("worker/0", "gpu-01", "1", 1), ev.TaskStarted("worker/1", "gpu-02", "1", 2)]
END = ev.RunEnded("r1", Outcome.SUCCEEDED, 0, 5.0, "", "", (), "/runs/r1")

_TOKEN = re.compile(r"\x1b\[(\??[0-9;]*)([A-Za-z])|[\r\n]|[^\x1b\r\n]+")


class Terminal:
    """The far end of a pty: what a person sees, scrolled-off lines included. It knows what we may send."""

    def __init__(self, columns: int = 80, rows: int = 24) -> None:
        self._fd, near = os.openpty()
        self.resize(columns, rows)
        settings = termios.tcgetattr(near)
        settings[1] &= ~termios.OPOST
        termios.tcsetattr(near, termios.TCSANOW, settings)
        self.stream = os.fdopen(near, "w", encoding="utf-8")
        self._raw = bytearray()
        self._go = threading.Event()
        self._go.set()
        threading.Thread(target=self._read, daemon=True).start()

    def resize(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def _read(self) -> None:
        while True:
            self._go.wait()
            try:
                data = os.read(self._fd, 65536)
            except OSError:
                return
            self._raw += data

    def stand_still(self) -> None:
        self._go.clear()

    def go_on(self) -> None:
        self._go.set()

    def hang_up(self) -> None:
        os.close(self._fd)

    @property
    def raw(self) -> str:
        return bytes(self._raw).decode()

    def lines(self) -> list[str]:
        screen, row, column = [""], 0, 0
        for token in _TOKEN.finditer(self.raw):
            text, argument, command = token.group(), token.group(1), token.group(2)
            if command == "A":
                row -= int(argument)
                assert row >= 0, "the cursor left the screen"
            elif (argument, command) == ("2", "K"):
                screen[row] = ""
            elif command == "m" or (argument, command) in (("?25", "l"), ("?25", "h")):
                pass
            elif command:
                raise AssertionError(f"the terminal was sent {text!r}")
            elif text == "\r":
                column = 0
            elif text == "\n":
                row, column = row + 1, 0
                screen += [""] * (row + 1 - len(screen))
            else:
                screen[row] = screen[row][:column].ljust(column) + text + screen[row][column + len(text) :]
                column += len(text)
        return screen

    def wait_for(self, seen: Callable[[list[str]], bool]) -> list[str]:
        deadline = time.monotonic() + 20
        while not seen(lines := self.lines()):
            assert time.monotonic() < deadline, lines[-30:]
            time.sleep(0.02)
        return lines


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    monkeypatch.setenv("TERM", "xterm-256color")
    for name in ("NO_COLOR", "COLUMNS", "LINES"):
        monkeypatch.delenv(name, raising=False)
    one = Terminal()
    yield one
    one.stream.close()


def show(display: Live, *events: Event) -> None:
    for event in events:
        display.handle(Stamped(time.time(), event))


def log(number: int) -> ev.LogLine:
    return ev.LogLine("worker/0", "gpu-01", f"line {number}", 0.0)


def test_no_colour_means_none(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    display = Live(terminal.stream)
    show(display, PLAN, *STARTED, ev.LogLine("worker/0", "gpu-01", "\x1b[31mred\x1b[0m", 0.0), END)
    display.close()
    terminal.wait_for(lambda lines: "logs: /runs/r1/logs" in lines)
    assert not re.search(r"\x1b\[[0-9;]*m", terminal.raw)


def test_every_line_of_a_fast_log_is_shown(terminal: Terminal) -> None:
    display = Live(terminal.stream)
    show(display, PLAN, *(log(number) for number in range(5_000)))
    display.close()
    lines = terminal.wait_for(lambda lines: "worker/0 gpu-01 | line 4999" in lines)
    assert [line for line in lines if "line" in line] == [f"worker/0 gpu-01 | line {n}" for n in range(5_000)]


def test_closing_gives_up_on_a_terminal_that_stands_still(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_module, "PATIENCE", 0.1)
    display = Live(terminal.stream)
    terminal.stand_still()
    show(display, PLAN, *(log(number) for number in range(3_000)))
    began = time.monotonic()
    display.close()
    assert time.monotonic() - began < 10
    terminal.go_on()
    terminal.wait_for(lambda lines: "worker/0 gpu-01 | line 2999" in lines)
    display.close()


def test_a_closed_terminal_is_said(terminal: Terminal) -> None:
    display = Live(terminal.stream)
    show(display, PLAN)
    terminal.wait_for(lambda lines: len(lines) > 1)
    terminal.hang_up()

    def until_it_is_seen() -> None:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            show(display, log(1))
            time.sleep(0.01)

    with pytest.raises(DisplayGoneError):
        until_it_is_seen()
    display.close()


def test_a_terminal_gets_the_live_display(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    display = choose(terminal.stream, json=False, stderr=terminal.stream)
    assert isinstance(display, Live)
    display.close()
    for dumb in ("dumb", "Dumb", "unknown"):
        monkeypatch.setenv("TERM", dumb)
        assert not isinstance(choose(terminal.stream, json=False, stderr=terminal.stream), Live)


def test_a_frame_is_one_write(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    monkeypatch.setattr(Sink, "write", lambda _, text: written.append(text))
    drawn = _Terminal(terminal.stream)
    drawn.start()
    drawn.measure()
    drawn.draw([Text("a"), Text("b")], [Text("r1"), Text("r2")])
    drawn.stop([Text("c")])
    assert ["a" in text for text in written if text] == [False, True, False]


def test_after_a_resize_wrapped_rows_are_taken_away_too(terminal: Terminal) -> None:
    drawn = _Terminal(terminal.stream)
    drawn.start()
    assert drawn.measure() == (80, 24)
    drawn.draw([Text("a")], [Text("x" * 70), Text("y" * 20, "red")])
    terminal.wait_for(lambda lines: lines[1:] == ["x" * 70, "y" * 20])
    before = terminal.raw
    terminal.resize(40, 24)
    assert drawn.measure() == (40, 24)
    drawn.draw([], [Text("z")])
    terminal.wait_for(lambda _: terminal.raw.endswith("z"))
    assert terminal.raw.removeprefix(before).count("\x1b[1A") == 2  # the rows took three lines


def test_lines_of_several_tasks_are_folded_on_a_terminal(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 5.0
    clock = SimpleNamespace(monotonic=lambda: now, time=time.time)
    monkeypatch.setattr(live_module, "time", clock)
    display = Live(terminal.stream)
    noise = "I0000 00:00:1795320342.882476    8101 port.cc:153] oneDNN custom operations are on."
    show(display, PLAN, *STARTED)
    for text in (noise, "Epoch 1/2", "6/6 - 0s - loss: 0.5000 - {}ms/epoch"):
        for place, host in enumerate(("gpu-01", "gpu-02")):
            show(display, ev.LogLine(f"worker/{place}", host, text.format(300 + place), 1.0))
    show(display, ev.LogLine("worker/1", "gpu-02", "ValueError: x", 1.0))
    now += 1.0  # nobody calls again: the thread that draws looks at the clock
    terminal.wait_for(lambda lines: any("ValueError" in line for line in lines))
    show(display, ev.LogLine("worker/0", "gpu-01", "the last", 1.0))
    display.close()
    lines = terminal.wait_for(lambda lines: "worker/0 gpu-01 | the last" in lines)
    assert lines[1:5] == [
        "worker/[0-1]    | Epoch 1/2",
        "worker/[0-1]    | 6/6 - 0s - loss: 0.5000 - 300ms/epoch",
        "worker/1 gpu-02 | ValueError: x",
        "worker/0 gpu-01 | the last",
    ]
