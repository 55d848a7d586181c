"""The user's key, on this machine alone and never sent to a node, and the seal that it puts on plans.

A node keeps a plan for whoever takes the run over: compressed, since every host gets it and it grows with
their number, as one word of base64, followed by the seal that is made over its JSON. The seal is proof that
whoever holds the key has written it.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import os
import re
import secrets
import shlex
import stat
import zlib
from pathlib import Path

from msgspec import Struct

from orchestrator.errors import UsageError
from orchestrator.node.base.fault import reason
from orchestrator.plainfile import make_folder, open_plain, write_atomically

KEY_BYTES = 32
_DOMAIN = b"orchestrate plan, version 2\n"  # the key may have other uses one day
_LARGEST = 64 << 20  # bytes of a plan: a node may send what opens out to more
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


class OpenedPlan(Struct, frozen=True):
    """A plan's JSON, and whether it is exactly what a holder of the key has sealed."""

    plan: bytes
    authentic: bool


def seal(plan: bytes, key: bytes | None) -> str:
    """Pack the JSON of a plan with its seal; without a key there is none."""
    packed = base64.b64encode(zlib.compress(plan, 1)).decode()
    return packed if key is None else f"{packed} {_mac(plan, key)}"


def opened(text: str, key: bytes | None) -> OpenedPlan:
    """Take the seal off; without a key, or with another seal than ours, nothing is authentic.

    Raise ValueError for what no plan was packed into.
    """
    packed, _, mac = text.partition(" ")
    try:
        unpacking = zlib.decompressobj()
        plan = unpacking.decompress(base64.b64decode(packed, validate=True), _LARGEST)
    except (ValueError, zlib.error) as error:
        raise ValueError(f"no packed plan: {error}") from error
    if not unpacking.eof or unpacking.unused_data:
        raise ValueError("no packed plan: it ends elsewhere")
    sealed = mac.isascii() and key is not None and hmac.compare_digest(mac, _mac(plan, key))
    return OpenedPlan(plan, sealed)


def _mac(plan: bytes, key: bytes) -> str:
    return hmac.new(key, _DOMAIN + plan, hashlib.sha256).hexdigest()
