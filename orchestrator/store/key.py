"""The user's key, with which plans are sealed: on this machine alone, never sent to a node."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shlex
import stat
from pathlib import Path

from orchestrator.errors import UsageError
from orchestrator.node.base.fault import reason
from orchestrator.plainfile import make_folder
from orchestrator.planning.seal import KEY_BYTES

_TEXT = re.compile(rb"[0-9a-f]{%d}\n?" % (2 * KEY_BYTES))


def key_path() -> Path:
    """$XDG_CONFIG_HOME/orchestrate/key (XDG base directory specification)."""
    config = Path(os.environ.get("XDG_CONFIG_HOME", ""))
    base = config if config.is_absolute() else Path.home() / ".config"
    return base / "orchestrate" / "key"


def read_key() -> bytes | None:
    """The key, None where there is none; raise UsageError for one that others may know or that is damaged."""
    path = key_path()
    quoted = shlex.quote(str(path))
    try:
        # Without waiting: anything may stand there.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise _unusable(path, reason(error), f"`ls -l {quoted}` shows what it is") from error
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise _unusable(
                path, "it is not a file", f"`mv {quoted} {quoted}.old`; the next launch makes a key"
            )
        if found.st_uid not in (os.getuid(), 0):
            raise _unusable(path, f"it belongs to uid {found.st_uid}", "have its owner remove it")
        if found.st_mode & 0o077:
            mode = f"its mode is {stat.S_IMODE(found.st_mode):03o}: others may know it"
            raise _unusable(path, mode, f"`chmod 600 {quoted}`, or remove it: the next launch makes another")
        text = os.read(fd, 4096)
    finally:
        os.close(fd)
    if not _TEXT.fullmatch(text):
        raise _unusable(path, "it is damaged", f"`mv {quoted} {quoted}.old`; the next launch makes a key")
    return bytes.fromhex(text.decode())


def own_key() -> bytes | None:
    """The key, made when there is none; None where none can be made.

    Of two launches that make one at the same moment both use the same.
    """
    key = read_key()
    if key is not None:
        return key
    path = key_path()
    beside = path.with_name(f".key.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        make_folder(path.parent)
        fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(fd, "wb") as file:
                file.write(secrets.token_hex(KEY_BYTES).encode() + b"\n")
            with contextlib.suppress(FileExistsError):
                os.link(beside, path)
        finally:
            beside.unlink(missing_ok=True)
    except OSError:
        return None
    return read_key()


def _unusable(path: Path, why: str, hint: str) -> UsageError:
    return UsageError(f"the key {path} cannot be used", why=why, hint=hint)
