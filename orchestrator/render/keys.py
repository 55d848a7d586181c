"""What the keys do while a run is shown. Pure: a key and a state in, another state and an action out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from orchestrator import ranges

HELP = (
    ("f", "show only the lines of some tasks"),
    ("p", "pause: lines wait, the run continues"),
    ("s", "take the stacks of all tasks: where they stand"),
    ("d", "detach: leave, the run continues"),
    ("x", "stop the run"),
    ("?", "hide this"),
)


class KeyAction(StrEnum):
    """What a key asks of whoever watches the run."""

    STACKS = "stacks"
    DETACH = "detach"
    STOP = "stop"


@dataclass(frozen=True)
class Keys:
    """How far the user has come with the keys."""

    known: bool = False  # somebody may press keys
    help: bool = False
    paused: bool = False
    only: str = ""  # tasks, as they were typed
    typing: str | None = None  # what is typed for `only`
    asking: bool = False  # whether the run shall be stopped
    stacks: bool = False  # they were asked for

    def press(self, key: str) -> tuple[Keys, KeyAction | None]:
        """After one key; what means nothing changes nothing."""
        if not key:
            return self, None
        if self.typing is not None:
            return self._type(self.typing, key), None
        if self.asking:
            return replace(self, asking=False), KeyAction.STOP if key in ("y", "Y") else None
        match key:
            case "?" | "h":
                return replace(self, help=not self.help), None
            case "\x1b":
                return replace(self, help=False), None
            case "p" | " ":
                return replace(self, paused=not self.paused), None
            case "f" | "/":
                return replace(self, typing="", help=False), None
            case "s":
                return replace(self, stacks=True, help=False), KeyAction.STACKS
            case "d" | "q":
                return self, KeyAction.DETACH
            case "x":
                return replace(self, asking=True, help=False), None
            case _:
                return self, None

    def _type(self, text: str, key: str) -> Keys:
        if key in ("\r", "\n"):
            return replace(self, only=text.strip(), typing=None)
        if key == "\x1b":
            return replace(self, typing=None)
        if key in ("\x7f", "\b"):
            return replace(self, typing=text[:-1])
        return replace(self, typing=text + key) if key.isprintable() and len(text) < 60 else self


def chosen(only: str, task: str, host: str) -> bool:
    """Whether a task is among those that were typed: `worker/1`, `1`, `worker`, a host, `worker/[0-2]`."""
    if not only:
        return True
    try:
        wanted = set(ranges.expand_all(",".join(only.split())))
    except ValueError:  # half of a range
        wanted = set()
    return bool(wanted & {task, host, *task.split("/")})
