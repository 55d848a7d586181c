"""Trust in files that we execute: nobody else may have written them, nor may replace them at any moment.

As sshd looks at the way to its keys: each folder from the working folder down, and each file of a tree,
belongs to us or to root and is not writable by others. A folder with the sticky bit may be, since only
owners rename there what is theirs; so may one of a group that has no other member.
"""

from __future__ import annotations

import functools
import os
import stat

from .fault import NodeError

_user_mask: int | None = None  # before we made it stricter


def tighten_umask() -> None:
    """From now on nothing that we make is writable by others, whatever the login's umask is."""
    global _user_mask  # noqa: PLW0603 - a process has one
    _user_mask = os.umask(0o077)
    os.umask(_user_mask | 0o022)


def restore_umask() -> None:
    """Give a task the umask that the login had: its files are the user's own."""
    if _user_mask is not None:
        os.umask(_user_mask)


def check_way(workdir: str, *below: str) -> None:
    """Raise NodeError (kind "workdir") for the first of these folders that others may write.

    What is not there is fine: we make it.
    """
    path = workdir
    for name in ("", *below):
        path = os.path.join(path, name) if name else path
        try:
            found = os.stat(path) if path == workdir else os.lstat(path)
        except (FileNotFoundError, NotADirectoryError):
            return
        why = _why_not(found)
        if why:
            raise _foreign(path, why, found)


def is_ours(tree: str) -> bool:
    """Return True if a tree and all in it is as we wrote it; False also for none.

    One of our own that others could write is no good and may be replaced; raise NodeError for one that
    belongs to somebody else.
    """
    try:
        top = os.lstat(tree)
    except (FileNotFoundError, NotADirectoryError):
        return False
    if top.st_uid not in _trusted():
        raise _foreign(tree, _why_not(top), top)
    try:
        if not stat.S_ISDIR(top.st_mode) or _why_not(top):
            return False
        walk = os.walk(tree, onerror=_raise)
        entries = (os.path.join(at, name) for at, folders, files in walk for name in (*folders, *files))
        return not any(_why_not(os.lstat(path)) for path in entries)
    except FileNotFoundError:
        return False  # it goes while we look


def _raise(error: OSError) -> None:
    raise error


def _trusted() -> frozenset[int]:
    return frozenset((0, os.geteuid()))


def _why_not(found: os.stat_result) -> str:
    """Why others may write there; empty when they may not."""
    if found.st_uid not in _trusted():
        return f"it belongs to uid {found.st_uid}, we are uid {os.geteuid()}"
    if stat.S_ISLNK(found.st_mode) or (stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX):
        return ""
    if found.st_mode & stat.S_IWOTH:
        return f"its mode is {stat.S_IMODE(found.st_mode):03o}: everybody may write there"
    if found.st_mode & stat.S_IWGRP and not _is_private(found.st_gid):
        return f"its mode is {stat.S_IMODE(found.st_mode):03o}: group {found.st_gid} may write there"
    return ""


@functools.lru_cache(maxsize=None)
def _is_private(gid: int) -> bool:
    """Return True if a group is this user's alone: the user's name, as with useradd, and no other member."""
    import grp
    import pwd

    try:
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(gid)
    except KeyError:
        return False
    return user.pw_gid == gid and group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}


def _foreign(path: str, why: str, found: os.stat_result) -> NodeError:
    if found.st_uid in _trusted():
        import shlex

        hint = f"`chmod go-w {shlex.quote(path)}`"
    else:
        hint = "set `workdir` of this host to a folder of your own, which nobody else writes"
    return NodeError(
        "workdir", f"will not run code from {path}", f"{why}, and could exchange what is run as you", hint
    )
