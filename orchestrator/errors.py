"""The errors that users see, and the exit statuses they lead to.

OrchestrateError      4  a bug
    UsageError        2  bad usage or configuration
    ClusterError      3  preflight or a connection failed
        HostError     3  the part that concerns one host; hosts with the same one share a block
            HereError 5  a failure of this machine: no process, descriptor or memory left
    RunError          1  the run failed
"""

import errno
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from enum import IntEnum, StrEnum
from typing import TypeAlias

from orchestrator.node.base.fault import exhausted, reason
from orchestrator.node.base.lenient import FULL
from orchestrator.text import cut

_LONG = 500  # characters of a reason shown on one line with others
# Of this machine, and possibly over soon; not of what was to be opened.
SPENT = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EIO)


class ExitStatus(IntEnum):
    """The exit statuses of the process, as documented; defined here only."""

    OK = 0
    RUN_FAILED = 1
    USAGE = 2
    CLUSTER = 3
    BUG = 4
    HERE = 5
    INTERRUPTED = 130


class OrchestrateError(Exception):
    """An error in three parts: what happened and where, why, and what to try."""

    status = ExitStatus.BUG

    def __init__(self, what: str, *, why: str = "", hint: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.why = why
        self.hint = hint

    def __str__(self) -> str:
        """Return all three: a traceback and `print` show nothing else."""
        parts = (self.what, self.why and f"why: {self.why}", self.hint and f"try: {self.hint}")
        return "\n  ".join(part.replace("\n", "\n    ") for part in parts if part)

    @property
    def in_one_line(self) -> str:
        """Return the error for a row of a table or a warning, with the start of a long reason."""
        why = "; ".join(line.strip() for line in self.why.split("\n") if line.strip())
        return f"{self.what}: {cut(why, _LONG)}" if why else self.what


class UsageError(OrchestrateError):
    """The request or the configuration is wrong; nothing was started."""

    status = ExitStatus.USAGE


class HelpRequested(UsageError):  # noqa: N818 - an answer
    """Not an error: the options of the bundled program ask for its help."""

    status = ExitStatus.OK

    def __init__(self, text: str) -> None:
        super().__init__("--help prints the options of the bundled program, and launches nothing")
        self.text = text


class ClusterError(OrchestrateError):
    """A host is unreachable, or failed a check."""

    status = ExitStatus.CLUSTER


class RunError(OrchestrateError):
    """The run failed, or cannot continue."""

    status = ExitStatus.RUN_FAILED


class Trouble(StrEnum):
    """Kinds of HostError that decisions depend on; the other kinds are names only."""

    LOST = "lost"
    PROTOCOL = "protocol"  # it sent something our agent never sends
    TIMEOUT = "timeout"
    REFUSED = "refused"
    NO_ROUTE = "no-route"
    KEPT = "kept"  # another keeper owns the run
    STOPPED = "stopped"  # a user stopped the run
    MISSING = "missing"  # a path does not exist
    AUTH = "auth"
    HOSTKEY_UNKNOWN = "hostkey-unknown"
    HOSTKEY_CHANGED = "hostkey-changed"
    HOSTKEY_REVOKED = "hostkey-revoked"
    HUNG_UP = "hung-up"  # before its banner, as a busy sshd does; worth a retry
    HERE = "here"  # the controller itself failed
    FORBIDDEN = "forbidden"  # its bastion does not forward
    NO_PYTHON = "no-python"  # no suitable interpreter on the host
    NO_INDEX = "no-index"  # the host reaches no package index
    INCOMPLETE = "incomplete"  # a transferred folder is incomplete
    RSYNC = "rsync"
    STATE = "state"  # its state folder cannot be used, or a disk of it has failed


FOREIGN = "does not speak our protocol"  # from a host that sent something our agent never sends


class HostError(ClusterError):
    """A failure that concerns one host.

    `what` does not contain the host's name ("refused the login"), so that hosts with the same failure can be
    folded into one message. `kind` is a stable slug such as "disk", or a `Trouble`.
    """

    def __init__(self, host: str, what: str, *, kind: str, why: str = "", hint: str = "") -> None:
        super().__init__(what, why=why, hint=hint)
        self.host = host
        self.kind = kind

    def __str__(self) -> str:
        return f"{self.host}: {super().__str__()}"

    @property
    def lost(self) -> bool:
        """Return True if the host counts as lost because of it."""
        return self.kind in (Trouble.LOST, Trouble.PROTOCOL)


HostErrors: TypeAlias = dict[str, HostError]  # by host


class HereError(HostError):
    """A failure of the controller, whichever host it was working on; the host is not to blame."""

    status = ExitStatus.HERE

    def __init__(self, host: str, why: str, hint: str = "") -> None:
        hint = hint or "check this machine: `ulimit -a`, `df -h`, `ls -ld ~/.ssh`; then try again"
        if os.strerror(errno.EMFILE) in why:  # the soft limit was raised to the hard one
            hint = "name fewer hosts (`--only`), or have root raise the limit that `ulimit -Hn` shows: each "
            hint += "host needs an open file, and each task of a run three more"
        super().__init__(host, "cannot be reached from this machine", kind=Trouble.HERE, why=why, hint=hint)


def status_of(errors: Iterable[OrchestrateError]) -> ExitStatus:
    """Return the exit status for hosts that failed: HERE if this machine failed for every one of them."""
    return ExitStatus.HERE if {error.status for error in errors} == {ExitStatus.HERE} else ExitStatus.CLUSTER


def expect(right: object, why: str) -> None:
    """Raise ValueError with the problem unless the condition holds."""
    if not right:
        raise ValueError(why)


@contextmanager
def unless_refused(what: str, hint: str) -> Iterator[None]:
    """Raise a UsageError with the system's reason for an OSError of this machine."""
    try:
        yield
    except OSError as error:
        raise UsageError(what, why=reason(error), hint=hint) from error


def of_this_machine(error: Exception) -> OrchestrateError | None:
    """Return the error for a failure of this machine that nothing closer has described; None for a bug."""
    if isinstance(error, OSError):
        why = reason(error)
        why = f"{error.filename}: {why}" if error.filename else why
        removed = error.errno == errno.ENOENT and not error.filename
        hint = "`--debug` shows where" + "; the current folder may have been removed" * removed
    elif exhausted(error):  # a bug in our code or a library
        why, hint = str(error) or "no memory is left", "check `ulimit -a` and `free`; then try again"
    elif isinstance(error, RuntimeError) and "home directory" in str(error):  # as Path.home() raises it
        why = "HOME is not set, and this user has no entry in /etc/passwd"
        hint = "`export HOME=FOLDER` with a folder of yours, then try again"
    else:
        return None
    worded = OrchestrateError("orchestrate failed on this machine", why=why, hint=hint)
    worded.status = ExitStatus.HERE
    return worded


def worded(error: Exception) -> OrchestrateError:
    """Return an error of ours for any exception: a failure of this machine, or a bug.

    A request is not wrong because of a full or read-only disk, a limit, or an I/O error.
    """
    if isinstance(error, OrchestrateError):
        number = getattr(error.__cause__, "errno", None)
        if isinstance(error, UsageError) and number in (*FULL, *SPENT, errno.EROFS):
            error.status = ExitStatus.HERE
            if number in SPENT:
                error.hint = "check this machine: `ulimit -a`, `free`, `dmesg`; then try again"
        return error
    what = f"a bug in orchestrate: {type(error).__name__}: {error}"
    hint = "`--debug` shows the place: run the same command with it, and report what it prints"
    return of_this_machine(error) or OrchestrateError(what, hint=hint)


class SeveralErrors(OrchestrateError):  # noqa: N818 - a bundle, not a kind
    """Errors that are shown one after another; the first one's exit status counts."""

    def __init__(self, errors: Iterable[OrchestrateError]) -> None:
        self.errors = tuple(errors)
        super().__init__("; ".join(error.what for error in self.errors))
        self.status = self.errors[0].status

    def __str__(self) -> str:
        return "\n".join(map(str, self.errors))
