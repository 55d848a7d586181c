"""The errors a person reads, and the exit statuses they end in.

OrchestrateError
├── UsageError        2  bad usage or configuration
├── ClusterError      3  preflight or connection failed
│   └── HostError     3  one host's share of it; folded over hosts before it is shown
│       └── HereError 5  this machine could not do its part: no process, no descriptor, no memory
└── RunError          1  the run failed
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum, StrEnum

from orchestrator.text import cut

_LONG = 500  # characters of a reason that stands in a line with others


class ExitStatus(IntEnum):
    """Exit statuses of the process; documented, and the only place where the numbers stand."""

    OK = 0
    RUN_FAILED = 1
    USAGE = 2
    CLUSTER = 3
    BUG = 4
    HERE = 5
    INTERRUPTED = 130


class OrchestrateError(Exception):
    """An error in three parts: what happened and to whom, why, and what to try."""

    status = ExitStatus.BUG

    def __init__(self, what: str, *, why: str = "", hint: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.why = why
        self.hint = hint

    @property
    def in_one_line(self) -> str:
        """Word the error for a row of a table or a warning, with the beginning of a long reason."""
        why = "; ".join(line.strip() for line in self.why.split("\n") if line.strip())
        return f"{self.what}: {cut(why, _LONG)}" if why else self.what


class UsageError(OrchestrateError):
    """The request or the configuration is wrong; nothing was started."""

    status = ExitStatus.USAGE


class HelpRequested(UsageError):  # noqa: N818 - an answer
    """Nothing is wrong: the options of the bundled program ask for its help."""

    status = ExitStatus.OK

    def __init__(self, text: str) -> None:
        super().__init__("--help prints the options of the bundled program, and launches nothing")
        self.text = text


class ClusterError(OrchestrateError):
    """A host could not be reached, or failed a check."""

    status = ExitStatus.CLUSTER


class RunError(OrchestrateError):
    """The run failed, or cannot go on."""

    status = ExitStatus.RUN_FAILED


class Trouble(StrEnum):
    """The kinds of a HostError by which behaviour is chosen; the others only have a name."""

    LOST = "lost"
    PROTOCOL = "protocol"  # it says what our agent would not
    TIMEOUT = "timeout"
    REFUSED = "refused"
    NO_ROUTE = "no-route"
    KEPT = "kept"  # another keeper has the run
    STOPPED = "stopped"  # a user has stopped the run
    MISSING = "missing"  # nothing is at a path
    AUTH = "auth"
    HOSTKEY_UNKNOWN = "hostkey-unknown"
    HOSTKEY_CHANGED = "hostkey-changed"
    HOSTKEY_REVOKED = "hostkey-revoked"
    HUNG_UP = "hung-up"  # before its banner, as a busy sshd does: worth another try
    HERE = "here"  # this machine could not do its part
    FORBIDDEN = "forbidden"  # its bastion does not forward
    NO_PYTHON = "no-python"  # no interpreter there fits
    NO_INDEX = "no-index"  # no package index can be reached from it
    INCOMPLETE = "incomplete"  # a folder that was sent lacks something
    RSYNC = "rsync"


FOREIGN = "does not speak our protocol"  # of a host that says what our agent would not


class HostError(ClusterError):
    """Something went wrong with one host.

    `what` is worded without the host's name ("refused the login") so that hosts which fail
    alike can be folded into one message; `kind` is a stable slug such as "disk", or a `Trouble`.
    """

    def __init__(self, host: str, what: str, *, kind: str, why: str = "", hint: str = "") -> None:
        super().__init__(what, why=why, hint=hint)
        self.host = host
        self.kind = kind

    @property
    def lost(self) -> bool:
        """Return True where the host counts as lost over it."""
        return self.kind in (Trouble.LOST, Trouble.PROTOCOL)


class HereError(HostError):
    """A failure of this machine, whatever host it was about: nothing is said against the host."""

    status = ExitStatus.HERE

    def __init__(self, host: str, why: str, hint: str = "") -> None:
        hint = hint or "look at this machine: `ulimit -a`, `df -h`, `ls -ld ~/.ssh`; then try again"
        super().__init__(host, "cannot be talked to from here", kind=Trouble.HERE, why=why, hint=hint)


def expect(right: object, why: str) -> None:
    """Raise ValueError with what is wrong, unless it is right."""
    if not right:
        raise ValueError(why)


def of_this_machine(error: Exception) -> OrchestrateError | None:
    """Word what failed on this machine, where nothing nearer to it has; None for a bug."""
    if isinstance(error, OSError):
        why = error.strerror or str(error)
        why = f"{error.filename}: {why}" if error.filename else why
        hint = "`--debug` shows where; the current folder may have been removed"
    elif isinstance(error, MemoryError) or "start new thread" in str(error):  # of Python and its libraries
        why, hint = str(error) or "no memory is left", "look at `ulimit -a` and `free`; then try again"
    else:
        return None
    worded = OrchestrateError("this machine could not do its part", why=why, hint=hint)
    worded.status = ExitStatus.HERE
    return worded


def worded(error: Exception) -> OrchestrateError:
    """Return an error of ours for any that was raised: this machine's fault, or a bug."""
    if isinstance(error, OrchestrateError):
        return error
    what = f"a bug in orchestrate: {type(error).__name__}: {error}"
    hint = "`--debug` shows the place: run the same command with it, and report what it prints"
    return of_this_machine(error) or OrchestrateError(what, hint=hint)


class SeveralErrors(OrchestrateError):  # noqa: N818 - a bundle, not a kind
    """Errors that are shown one after another; the status is the first one's."""

    def __init__(self, errors: Iterable[OrchestrateError]) -> None:
        self.errors = tuple(errors)
        super().__init__("; ".join(error.what for error in self.errors))
        self.status = self.errors[0].status
