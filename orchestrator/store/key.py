"""The user's key, which never leaves this machine, and the seal it puts on plans.

A node stores a plan for a takeover: compressed, because every host receives it and it grows with the number
of hosts, as one base64 word, followed by a seal over its JSON. The seal proves that a holder of the key
wrote it.
"""

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

from orchestrator.errors import UsageError
from orchestrator.node.base.fault import reason
from orchestrator.plainfile import make_folder, open_plain, write_atomically, xdg
from orchestrator.value import Value

KEY_BYTES = 32
_DOMAIN = b"orchestrate plan, version 2\n"  # the key may have other uses later
_LARGEST = 64 << 20  # bytes of a plan: a node could send data that decompresses to more
_TEXT = re.compile(rb"[0-9a-f]{%d}\n?" % (2 * KEY_BYTES))


def key_path() -> Path:
    """Return $XDG_CONFIG_HOME/orchestrate/key."""
    return xdg("CONFIG", ".config") / "key"


def read_key() -> bytes | None:
    """Return the key, or None; raise UsageError for a damaged one, or one that others may know."""
    path = key_path()
    try:
        with os.fdopen(open_plain(path, os.O_RDONLY, follow=True), "rb") as file:
            about, text = os.fstat(file.fileno()), file.read(4096)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except PermissionError as error:  # of another user, such as the one of whom HOME was kept
        hint = "set XDG_CONFIG_HOME to a folder of yours, or make the key yours with `chown`"
        raise UsageError(f"the key {path} cannot be used", why=reason(error), hint=hint) from error
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
    """Return the key, created if necessary; None if that is impossible."""
    key, path = read_key(), key_path()
    if key is not None:
        return key
    with contextlib.suppress(OSError):
        make_folder(path.parent)
        # Of several launches at once the first one's key is that of all: their plans bear its seal.
        beside = path.with_name(f".key.{secrets.token_hex(8)}")
        write_atomically(beside, secrets.token_hex(KEY_BYTES).encode() + b"\n")
        try:
            path.hardlink_to(beside)
        except FileExistsError:
            pass
        except OSError:  # a file system without hard links
            beside.replace(path)
        beside.unlink(missing_ok=True)
    return read_key()


def _unusable(path: Path, why: str) -> UsageError:
    quoted = shlex.quote(str(path))
    hint = f"`mv {quoted} {quoted}.old`; the next launch makes a key"
    return UsageError(f"the key {path} cannot be used", why=why, hint=hint)


class OpenedPlan(Value):
    """A plan's JSON, and whether a holder of the key has sealed exactly this."""

    plan: bytes
    authentic: bool


def seal(plan: bytes, key: bytes | None) -> str:
    """Return the packed JSON of a plan with its seal; without a key the seal is missing."""
    packed = base64.b64encode(zlib.compress(plan, 1)).decode()
    return packed if key is None else f"{packed} {_mac(plan, key)}"


def opened(text: str, key: bytes | None) -> OpenedPlan:
    """Return the plan without its seal; with no key, or a different seal, it is not authentic.

    Raise ValueError for data that is not a packed plan.
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
