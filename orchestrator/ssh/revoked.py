"""RevokedHostKeys: files of public keys, one a line, or key revocation lists, which ssh-keygen reads."""

from __future__ import annotations

import base64
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from orchestrator.ssh.keyfile import reason
from orchestrator.ssh.knownhosts import key_type
from orchestrator.ssh.programs import ask

_KRL = b"SSHKRL\n\0"


class CannotTellError(Exception):
    """A file of revoked keys gives no answer; as `ssh` does, we then trust no key at all."""


def revoked_in(files: Sequence[Path], blob: bytes) -> str | None:
    """The file (and line) that revokes this key; raise `CannotTellError`."""
    for file in files:
        try:
            data = file.read_bytes()
        except OSError as error:
            raise CannotTellError(f"{file} cannot be read: {reason(error)}") from error
        if data.startswith(_KRL):
            if _in_list(file, blob):
                return str(file)
        elif line := _in_lines(data, blob):
            return f"{file}:{line}"
    return None


def _in_lines(data: bytes, blob: bytes) -> int | None:
    wanted = base64.b64encode(blob)
    for number, line in enumerate(data.splitlines(), start=1):
        if line.split()[1:2] == [wanted]:
            return number
    return None


def _in_list(file: Path, blob: bytes) -> bool:
    program = shutil.which("ssh-keygen")
    if program is None:
        raise CannotTellError(f"{file} is a key revocation list, which needs ssh-keygen")
    with tempfile.NamedTemporaryFile("w", suffix=".pub") as key:
        key.write(f"{key_type(blob)} {base64.b64encode(blob).decode()}\n")
        key.flush()
        try:
            done = ask([program, "-Q", "-f", str(file), key.name])
        except subprocess.TimeoutExpired as error:
            raise CannotTellError(f"ssh-keygen -Q -f {file} took more than {error.timeout:.0f} s") from error
    if done.returncode == 0:
        return False
    if "REVOKED" in done.stdout:
        return True
    lines = done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"]
    raise CannotTellError(f"ssh-keygen -Q -f {file}: {lines[-1]}")
