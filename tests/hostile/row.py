"""One deviation: what the host lies while which verb runs, and what has to become of it."""

from dataclasses import dataclass
from enum import StrEnum

PROTOCOL = "does not speak our protocol"
LOST = "was lost"


class Verb(StrEnum):
    """What the user does while the host lies."""

    PREFLIGHT = "preflight"
    LAUNCH = "launch"
    RESTART = "restart"  # a launch whose first attempt fails, with a backup to be carried
    STATUS = "status"
    STACKS = "stacks"
    EXEC = "exec"
    CLEAN = "clean"
    PULL = "pull"
    PUSH = "push"  # of data that no host has yet
    SETUP = "setup"  # of the liar's environment alone
    STOP = "stop"  # of a run of its own, from an empty state folder
    AWAY_STATUS = "away_status"  # the others: of the living run, from an empty state folder
    AWAY_TAIL = "away_tail"
    AWAY_PULL = "away_pull"
    AWAY_STACKS = "away_stacks"
    AWAY_MADE_UP = "away_made_up"  # `tail` of a run that only the liar tells of,
    AWAY_STOP_MADE_UP = "away_stop_made_up"  # and `stop` of it


@dataclass(frozen=True)
class Row:
    name: str
    verb: Verb
    lie: str  # see `middle`
    status: int
    words: str  # what the user reads; "" where the lie is harmless, and nobody is told
    run: str = ""  # the run that the host has made up

    @property
    def id(self) -> str:
        return f"{self.verb}-{self.name}".replace(" ", "_")


# They are right behind the answer, and may be read first: then a task has ended well, whatever that says.
_NO_NEWS = "if 'stream' in header:\n    header = None\n"


def when(op: str, what: str) -> str:
    """A lie in the place of each answer to `op`; with one to `follow` come no news of the tasks."""
    body = "".join(f"    {line}\n" for line in what.split("\n"))
    return f"if op == {op!r}:\n{body}" + (_NO_NEWS if op == "follow" else "")
