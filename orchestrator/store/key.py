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
from orchestrator.plainfile import make_folder, open_plain, write_atomically
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
    try:
        with os.fdopen(open_plain(path, os.O_RDONLY, follow=True), "rb") as file:
            about, text = os.fstat(file.fileno()), file.read(4096)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise _unusable(path, reason(error)) from error
    if about.st_uid not in (os.getuid(), 0):
        raise _unusable(path, f"it belongs to uid {about.st_uid}")
    if about.st_mode & 0o077:
        raise _unusable(path, f"its mode is {stat.S_IMODE(about.st_mode):03o}: others may know it")
    if not _TEXT.fullmatch(text):
        raise _unusable(path, "it is damaged")
    return bytes.fromhex(text.decode())


def own_key() -> bytes | None:
    """The key, made when there is none; None where none can be made."""
    key, path = read_key(), key_path()
    if key is not None:
        return key
    with contextlib.suppress(OSError):
        make_folder(path.parent)
        write_atomically(path, secrets.token_hex(KEY_BYTES).encode() + b"\n")
    return read_key()


def _unusable(path: Path, why: str) -> UsageError:
    quoted = shlex.quote(str(path))
    hint = f"`mv {quoted} {quoted}.old`; the next launch makes a key"
    return UsageError(f"the key {path} cannot be used", why=why, hint=hint)
