"""The error type of nodes, in the parts that the controller shows."""

from __future__ import annotations

import errno
import os

LIMITED = "`ulimit -f` limits the size of files"


class NodeError(Exception):
    """An error in three parts (what happened, why, a fix) with a stable `kind` ("state", ...)."""

    def __init__(self, kind: str, what: str, why: str = "", hint: str = "") -> None:
        super().__init__(what)
        self.kind = kind
        self.what = what
        self.why = why
        self.hint = hint

    def as_dict(self) -> dict[str, str]:
        """The `error` object of a reply."""
        return dict(vars(self))


def reason(error: BaseException) -> str:
    """Return the system's reason, without its number and the path; otherwise its text, or its class."""
    text = str(getattr(error, "strerror", "") or error) or type(error).__name__
    return f"{text}: {LIMITED}" if text == os.strerror(errno.EFBIG) else text


def exhausted(error: BaseException) -> bool:
    """Return True if no memory or thread was left; Python has no type for the latter."""
    return isinstance(error, MemoryError) or "start new thread" in str(error)


def unwritable(path: str, error: OSError) -> NodeError:
    """Return the error for a working folder that cannot be written."""
    hint = "make room, or set `workdir` to a folder that this user may write"
    hint = "have root raise that limit in /etc/security/limits.conf" if error.errno == errno.EFBIG else hint
    return NodeError("workdir", f"cannot write {path}", reason(error), hint)


def no_process(kind: str, what: str, error: BaseException) -> NodeError:
    """Return the error for a machine that cannot start another process."""
    hint = "make room there: memory is short, or this user has too many processes (`ulimit -u`)"
    return NodeError(kind, what, reason(error), hint)
