"""The one error that a node answers with, in the parts that the controller shows."""

from __future__ import annotations


class NodeError(Exception):
    """An error in three parts (what happened, why, what to try) with a stable `kind` ("state", ...)."""

    def __init__(self, kind: str, what: str, why: str = "", hint: str = "") -> None:
        super().__init__(what)
        self.kind = kind
        self.what = what
        self.why = why
        self.hint = hint

    def as_dict(self) -> dict[str, str]:
        """The `error` object of a reply."""
        return dict(vars(self))


def reason(error: OSError) -> str:
    """Return what the system says of it, without its number and the path."""
    return error.strerror or str(error)


def unwritable(path: str, error: OSError) -> NodeError:
    """A working folder in which nothing can be written, or no more."""
    return NodeError(
        "workdir",
        f"cannot write {path}",
        reason(error),
        "make room, or set `workdir` to a folder that this user may write",
    )


def no_process(kind: str, what: str, error: OSError) -> NodeError:
    """A machine that has no room for one more process."""
    hint = "make room there: memory is short, or this user has too many processes (`ulimit -u`)"
    return NodeError(kind, what, reason(error), hint)
