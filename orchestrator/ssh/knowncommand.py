"""KnownHostsCommand: a program of the user's that prints lines of known_hosts."""

from __future__ import annotations

import base64
import shlex
import subprocess

from orchestrator.ssh import knownhosts
from orchestrator.ssh.keyfile import reason
from orchestrator.ssh.knownhosts import KnownKey
from orchestrator.ssh.programs import ask
from orchestrator.ssh.target import Target
from orchestrator.ssh.tokens import expand

SOURCE = "KnownHostsCommand's output"


class CommandFailedError(Exception):
    """It did not end well; as `ssh` does, we then do not connect."""


def keys_from(target: Target, name: str, blob: bytes | None) -> tuple[KnownKey, ...]:
    """What the program prints for the key that the host shows, or (None) before it shows one.

    Raise `CommandFailedError`. Its words are those of the target; `%%` waits until the last tokens are known.
    """
    if not target.known_hosts_command:
        return ()
    tokens = {
        "%": "%",
        "H": name,
        "I": "ORDER" if blob is None else "HOSTNAME",
        "K": "NONE" if blob is None else base64.b64encode(blob).decode(),
        "t": "NONE" if blob is None else knownhosts.key_type(blob),
        "f": "NONE" if blob is None else knownhosts.fingerprint(blob),
    }
    argv = [expand(word, tokens) for word in target.known_hosts_command]
    try:
        done = ask(argv)
    except OSError as error:
        raise CommandFailedError(f"KnownHostsCommand `{shlex.join(argv)}`: {reason(error)}") from error
    except subprocess.TimeoutExpired as error:
        text = f"it took more than {error.timeout:.0f} s"
        raise CommandFailedError(f"KnownHostsCommand `{shlex.join(argv)}`: {text}") from error
    if done.returncode != 0:
        words = done.stderr.strip().splitlines()[-1:] or [f"it ended with status {done.returncode}"]
        raise CommandFailedError(f"KnownHostsCommand `{shlex.join(argv)}`: {words[0]}")
    return knownhosts.parse(done.stdout, SOURCE)
