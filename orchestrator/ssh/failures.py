"""What connecting raises beside the errors of fabric, paramiko and sockets, and the shape of its wording."""

from __future__ import annotations

from typing import NamedTuple

import paramiko

from orchestrator.ssh.algorithms import Disagreement
from orchestrator.ssh.target import Target


class ConnectTimeout(TimeoutError):  # noqa: N818 - as the library it stands beside
    """Time ran out; `doing` says in what."""

    def __init__(self, doing: str, seconds: float) -> None:
        super().__init__(f"{doing} took more than {seconds:.0f} s")


class NoBanner(paramiko.SSHException):
    """What answered does not speak SSH."""


class HungUp(NoBanner):
    """It closed the connection before its banner, as sshd does beyond MaxStartups."""


class NoCommand(paramiko.SSHException):
    """The host opened a channel, and closed it when a command was to run."""


class LargePackets(TimeoutError):  # noqa: N818 - as the library it stands beside
    """The key exchange began and never ended, as it does where only small packets pass."""


class NoWayOn(TimeoutError):  # noqa: N818
    """A bastion got no answer from the host behind it."""

    def __init__(self, bastion: Target, seconds: float) -> None:
        super().__init__(f"{bastion.alias} got no answer from it in {seconds:.0f} s")
        self.bastion = bastion


class NothingInCommon(paramiko.SSHException):
    """The two sides have no algorithm of one family in common."""

    def __init__(self, nothing: Disagreement) -> None:
        super().__init__(f"no {nothing.family.noun} in common")
        self.nothing = nothing


class Problem(NamedTuple):
    kind: str
    what: str
    why: str
    hint: str


def look(target: Target, flags: str = "-v ") -> str:
    """How a person sees for themselves, in backquotes."""
    return f"`{with_flags(target, flags)}`"


def with_flags(target: Target, flags: str) -> str:
    return target.command.replace("ssh ", f"ssh {flags}", 1)
