"""OpenSSH's own client as a transport: its words and its errors. It asks nobody (`BatchMode`)."""

from __future__ import annotations

import re
from pathlib import Path

from orchestrator.errors import HostError, Trouble
from orchestrator.model import Host
from orchestrator.text import plain


class OnlyOpenSSHError(HostError):
    """A connection that failed with our own client, and that OpenSSH's may make: it has what is needed."""

    def __init__(self, needs: str, error: HostError) -> None:
        super().__init__(error.host, error.what, kind=error.kind, why=error.why, hint=error.hint)
        self.needs = needs


_NOT_CONNECTED = 255  # the exit status of ssh itself
_OPTIONS = {
    "BatchMode": "yes",
    "ControlMaster": "no",
    "ConnectTimeout": "15",
    "ServerAliveInterval": "15",
    "ServerAliveCountMax": "4",
    "ClearAllForwardings": "yes",
    "ForwardAgent": "no",
    "ForwardX11": "no",
    "PermitLocalCommand": "no",
    "RemoteCommand": "none",
    "LogLevel": "INFO",
}
# What ssh says last, the most specific first: kind, what it means, what to try.
_ERRORS: tuple[tuple[str, str, str, str], ...] = (
    (r"REMOTE HOST IDENTIFICATION HAS CHANGED|host key .* has changed", Trouble.HOSTKEY_CHANGED,
     "shows another host key than the one we know", "find out why; then `ssh-keygen -R` its old key"),
    (r"REVOKED HOST KEY|revoked", Trouble.HOSTKEY_REVOKED, "shows a host key that was revoked",
     "do not connect; ask who runs the machine for its new key"),
    (r"administratively prohibited", Trouble.FORBIDDEN, "may not be reached through its bastion",
     "allow it in the bastion's sshd_config: AllowTcpForwarding, PermitOpen, DisableForwarding"),
    (r"Host key verification failed|host key is known", Trouble.HOSTKEY_UNKNOWN,
     "shows a host key that we do not know", "compare its fingerprint in {look}"),
    (r"Permission denied|Too many authentication failures|No more authentication methods", Trouble.AUTH,
     "refused the login", "{look}; where that asks something, see Questions in docs/ssh.md"),
    (r"Could not resolve hostname", "resolve", "has a name that does not resolve", "{look}"),
    (r"Connection refused", Trouble.REFUSED, "refused the connection", "start sshd there; {look}"),
    (r"timed out", Trouble.TIMEOUT, "did not answer in time", "{look}"),
    (r"No route to host|Network is unreachable", Trouble.NO_ROUTE, "cannot be reached", "{look}"),
    (r"no matching \S+ .*found|no mutual", "algorithms", "has no algorithm in common with us", "{look}"),
    (r"kex_exchange_identification|Connection (closed|reset)|banner", Trouble.HUNG_UP,
     "hung up at once, every time", "look into its log (MaxStartups? PerSourcePenalties?): {look}"),
    (r"Bad configuration option|terminating, \d+ bad", "config", "cannot be resolved from ssh_config",
     "{look}"),
)  # fmt: skip


def client(host: Host) -> list[str]:
    """Return the words of an ssh that asks nobody and forwards nothing; a command line is appended."""
    given = {"-F": host.ssh_config, "-l": host.user, "-p": host.port, "-i": host.identity}
    words = ["ssh", "-T"]
    words += [word for name, value in _OPTIONS.items() for word in ("-o", f"{name}={value}")]
    for flag, asked in given.items():
        if asked is not None:
            words += [flag, str(Path(str(asked)).expanduser())]
    return [*words, "--", host.ssh]


def error(host: Host, status: int | None, words: bytes) -> HostError | None:
    """Return the error of a client that did not connect; None where it did."""
    if status != _NOT_CONNECTED:
        return None
    text = words.decode("utf-8", "replace")
    lines = [plain(line.strip()) for line in text.splitlines() if line.strip(" @")]
    look = f"`{host.by_hand()}`"
    for pattern, kind, what, hint in _ERRORS:
        if re.search(pattern, text):
            why = next((line for line in reversed(lines) if re.search(pattern, line)), lines[-1])
            return HostError(host.name, what, kind=kind, why=f"ssh: {why}", hint=hint.format(look=look))
    why = f"ssh: {lines[-1]}" if lines else "ssh ended without a word"
    return HostError(host.name, "could not be connected to", kind="ssh", why=why, hint=look)
