"""One deviation: the verb, the host's lie, and the required result."""

from dataclasses import dataclass
from enum import StrEnum

PROTOCOL = "does not speak our protocol"
LOST = "was lost"


class Verb(StrEnum):
    """The user's command while the host lies."""

    PREFLIGHT = "preflight"
    LAUNCH = "launch"
    RESTART = "restart"  # a launch whose first attempt fails, with a backup to be copied
    STATUS = "status"
    STACKS = "stacks"
    EXEC = "exec"
    CLEAN = "clean"
    PULL = "pull"
    PUSH = "push"  # with data that no host has yet
    SETUP = "setup"  # for the liar's environment only
    STOP = "stop"  # for its own run, from an empty state folder
    AWAY_STATUS = "away_status"  # the others: for the living run, from an empty state folder
    AWAY_TAIL = "away_tail"
    AWAY_PULL = "away_pull"
    AWAY_STACKS = "away_stacks"
    AWAY_MADE_UP = "away_made_up"  # `tail` of a run that only the liar reports,
    AWAY_STOP_MADE_UP = "away_stop_made_up"  # and `stop` of it


@dataclass(frozen=True)
class Row:
    name: str
    verb: Verb
    lie: str  # see `middle`
    status: int
    words: str  # what the user reads; "" if the lie is harmless and not reported
    run: str = ""  # the run that the host has invented

    @property
    def id(self) -> str:
        return f"{self.verb}-{self.name}".replace(" ", "_")


# Updates follow the reply directly, and may be read first: then a task has succeeded, whatever the reply.
_NO_NEWS = "if 'stream' in header:\n    header = None\n"


def when(op: str, what: str) -> str:
    """Return code that replaces each reply to `op`; after one to `follow` no updates are sent."""
    body = "".join(f"    {line}\n" for line in what.split("\n"))
    return f"if op == {op!r}:\n{body}" + (_NO_NEWS if op == "follow" else "")
