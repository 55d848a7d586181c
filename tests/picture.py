"""README's picture: the live display at one moment of a recorded run.

The recording has the run's events as lines of JSON, after a line with the command and the tasks' figures at
the moment of the picture. The clock stands at the recorded times: the same recording gives the same picture.
"""

import io
from pathlib import Path

import msgspec
from msgspec import Struct
from rich.console import Console
from rich.text import Text

from orchestrator.clock import Clock
from orchestrator.events import decode
from orchestrator.render.board import Row
from orchestrator.render.live import Live
from orchestrator.run.view import Vitals

ROOT = Path(__file__).resolve().parents[1]
RECORDING, PICTURE = ROOT / "docs" / "run.jsonl", ROOT / "docs" / "run.svg"
COLUMNS, LINES = 118, 32


class Moment(Struct, frozen=True):
    """Values in the picture that come from no event."""

    command: str
    vitals: Vitals


class _Recorded(Clock):
    """A clock that shows the time of the replayed event."""

    def __init__(self) -> None:
        self.at = 0.0

    def now(self) -> float:
        return self.at

    def wall(self) -> float:
        return self.at


class _Screen(Live):
    """A live display that keeps what it would draw."""

    def __init__(self, clock: Clock) -> None:
        self.rows: list[Row] = []
        self.lines: list[Text] = []
        super().__init__(io.StringIO(), clock=clock)

    def _draw(self, *, board: bool = True) -> None:
        self.rows, lines = self.frame(COLUMNS, LINES, board=board)
        self.lines += lines

    def shot(self) -> list[Text]:
        """Return the rows of the terminal."""
        self._draw()
        below = [Text(text, style) for text, style in self.rows]
        return [*self.lines[len(below) - LINES :], *below]


def svg() -> str:
    """Return the picture of the recording."""
    head, *events = RECORDING.read_bytes().splitlines()
    moment = msgspec.json.decode(head, type=Moment)
    clock = _Recorded()
    screen = _Screen(clock)
    for stamped in map(decode, events):
        clock.at = stamped.at
        screen.tick()
        screen.handle(stamped)
    screen.measured(moment.vitals)
    screen.tick()
    console = Console(
        record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, color_system="truecolor"
    )
    console.print(Text(f"$ {moment.command}"), no_wrap=True, overflow="crop")
    for line in screen.shot():
        console.print(line, no_wrap=True, overflow="crop")
    return console.export_svg(title="orchestrate", unique_id="orchestrate")
