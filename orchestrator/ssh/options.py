"""What ssh_config says of a name: asked of `ssh -G` where OpenSSH exists.

paramiko's parser, which ignores Include and misreads some Match lines, is the fallback.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TypeAlias

from orchestrator.ssh.programs import ask

Options: TypeAlias = Mapping[str, Sequence[str]]  # lower-case keyword -> its values

_FRESH = 20.0  # seconds an answer is good for: from the question for passphrases to the connection


class BadConfigError(Exception):
    """ssh_config cannot be read; the text says where and why."""


@dataclass(frozen=True)
class CommandLine:
    """What the command line of `ssh` would say."""

    alias: str
    user: str | None = None
    port: int | None = None
    identity: Path | None = None
    config: Path | None = None


def first(options: Options, keyword: str, default: str) -> str:
    values = options.get(keyword)
    return values[0] if values else default


def options_for(asked: CommandLine) -> Options:
    """The options in force; raise `BadConfigError`. Thread-safe; each name is asked for once."""
    with _lock:
        slot = _slots.setdefault(asked, _Slot())
    with slot.lock:
        if time.monotonic() - slot.since > _FRESH:
            slot.options = _ask(asked)
            slot.since = time.monotonic()
        return slot.options


@dataclass
class _Slot:
    lock: threading.Lock = field(default_factory=threading.Lock)
    since: float = float("-inf")
    options: Options = field(default_factory=dict)


_lock = threading.Lock()
_slots: dict[CommandLine, _Slot] = {}


def _ask(asked: CommandLine) -> Options:
    binary = ssh_binary()
    return read_files(asked) if binary is None else _ask_ssh(binary, asked)


@cache
def ssh_binary() -> str | None:
    return shutil.which("ssh")


def _ask_ssh(binary: str, asked: CommandLine) -> Options:
    flags = {"-F": asked.config, "-l": asked.user, "-p": asked.port, "-i": asked.identity}
    words = [str(word) for flag, value in flags.items() if value is not None for word in (flag, value)]
    try:
        done = ask([binary, "-G", "-T", *words, "--", asked.alias], errors="surrogateescape")
    except subprocess.TimeoutExpired as error:
        raise BadConfigError(f"ssh -G took more than {error.timeout:.0f} s (a Match exec?)") from error
    if done.returncode != 0:
        said = [line for line in done.stderr.strip().splitlines() if "terminating" not in line]
        raise BadConfigError(said[-1] if said else f"ssh -G exited with {done.returncode}")
    return parse_dump(done.stdout)


def parse_dump(text: str) -> Options:
    """The output of `ssh -G`: a keyword and its value a line; some keywords come several times."""
    options: dict[str, list[str]] = {}
    for line in text.splitlines():
        keyword, _, value = line.partition(" ")
        options.setdefault(keyword.lower(), []).append(value)
    return options


def read_files(asked: CommandLine) -> Options:
    """What paramiko's parser makes of the files; what was asked for wins."""
    import paramiko  # noqa: PLC0415 - only where there is no OpenSSH

    parsed = paramiko.SSHConfig()
    usual = [Path("~/.ssh/config").expanduser(), Path("/etc/ssh/ssh_config")]
    try:
        for file in [asked.config] if asked.config else usual:
            if file.is_file():
                with file.open(encoding="utf-8", errors="replace") as stream:
                    parsed.parse(stream)
        user, host, port = split_destination(asked.alias)
        found = parsed.lookup(host)
    except (OSError, paramiko.SSHException) as error:
        raise BadConfigError(str(error)) from error
    several = {"identityfile", "certificatefile", "localforward", "remoteforward"}  # lists, says paramiko
    options = {key: list(value) if key in several else [value] for key, value in found.items()}
    options["hostname"] = [found.get("hostname", host)]
    if asked.user or user:
        options["user"] = [asked.user or user or ""]
    if asked.port or port:
        options["port"] = [str(asked.port or port)]
    if asked.identity:
        options["identityfile"] = [str(asked.identity), *options.get("identityfile", [])]
    return options


def split_destination(text: str) -> tuple[str | None, str, int | None]:
    """`[ssh://][user@]host[:port]` in its parts; IPv6 with a port is in brackets."""
    text = text.strip().removeprefix("ssh://").rstrip("/")
    user, at, rest = text.rpartition("@")
    bracketed = re.fullmatch(r"\[([^]]+)\](?::(\d+))?", rest)
    plain = re.fullmatch(r"([^:]+):(\d+)", rest)
    match = bracketed or plain
    host, port = (match[1], match[2]) if match else (rest, None)
    return (user if at else None), host, (int(port) if port else None)
