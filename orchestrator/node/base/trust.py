"""Checks that nobody else may have written, or can replace, the files that we execute.

As in sshd's check of the path to its keys: each folder from the working folder down, and each file of a
tree, must belong to us or to root and must not be writable by others. Exceptions are a folder with the
sticky bit, where only owners rename their files, and one of a group without other members.
"""

from __future__ import annotations

import functools
import os
import stat

from .fault import NodeError

_user_mask: int | None = None  # before we made it stricter


def tighten_umask() -> None:
    """Make everything that we create unwritable by others, whatever the login's umask is."""
    global _user_mask  # noqa: PLW0603 - a process has one
    _user_mask = os.umask(0o077)
    os.umask(_user_mask | 0o022)


def restore_umask() -> None:
    """Give a task the login's umask: its files are the user's own."""
    if _user_mask is not None:
        os.umask(_user_mask)


def user_mask() -> int | None:
    """The umask that a task gets; None where it is this process's own."""
    return _user_mask


def check_way(workdir: str, *below: str) -> None:
    """Raise NodeError for the first of these folders that others may write; missing ones are fine."""
    path = workdir
    for name in ("", *below):
        path = os.path.join(path, name) if name else path
        try:
            status = os.stat(path) if path == workdir else os.lstat(path)
        except (FileNotFoundError, NotADirectoryError):
            return
        why = why_not(status)
        if why:
            raise _foreign(path, why, status)


def is_ours(tree: str) -> bool:
    """Return True if a tree and everything in it is unchanged by others; False if it is missing.

    One of ours that others could write is invalid and may be replaced; raise NodeError for one that belongs
    to somebody else.
    """
    try:
        top = os.lstat(tree)
    except (FileNotFoundError, NotADirectoryError):
        return False
    if top.st_uid not in _trusted():
        raise _foreign(tree, why_not(top), top)
    try:
        if not stat.S_ISDIR(top.st_mode) or why_not(top):
            return False
        walk = os.walk(tree, onerror=_raise)
        entries = (os.path.join(at, name) for at, folders, files in walk for name in (*folders, *files))
        return not any(why_not(os.lstat(path)) for path in entries)
    except FileNotFoundError:
        return False  # it vanishes during the check


def _raise(error: OSError) -> None:
    raise error


def _trusted() -> frozenset[int]:
    return frozenset((0, os.geteuid()))


def why_not(status: os.stat_result) -> str:
    """Return why others may write there; empty if they may not."""
    if status.st_uid not in _trusted():
        return f"it belongs to uid {status.st_uid}, we are uid {os.geteuid()}"
    if stat.S_ISLNK(status.st_mode) or (stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX):
        return ""
    if status.st_mode & stat.S_IWOTH:
        return f"its mode is {stat.S_IMODE(status.st_mode):03o}: anyone may write there"
    if status.st_mode & stat.S_IWGRP and not is_private(status.st_gid):
        return f"its mode is {stat.S_IMODE(status.st_mode):03o}: group {status.st_gid} may write to it"
    return ""


@functools.lru_cache(maxsize=None)
def is_private(gid: int) -> bool:
    """Return True if a group is private: it has the user's name, as with useradd, and no other member."""
    import grp
    import pwd

    try:
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(gid)
    except KeyError:
        return False
    return user.pw_gid == gid and group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}


def _foreign(path: str, why: str, status: os.stat_result) -> NodeError:
    if status.st_uid in _trusted():
        import shlex

        hint = f"`chmod go-w {shlex.quote(path)}`"
    else:
        hint = "set `workdir` of this host to a folder of your own, which nobody else writes"
    return NodeError(
        "workdir", f"will not run code from {path}", f"{why}, and could replace code that runs as you", hint
    )
