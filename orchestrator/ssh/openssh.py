"""OpenSSH's own client as a transport: its words, its errors, and the questions it asks a person.

Nothing asks anybody during the fan-out (`BatchMode`). What OpenSSH has to ask is asked before, by a master
connection in the foreground of the terminal; the fan-out then uses that connection.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

from orchestrator import processes
from orchestrator.errors import HostError, Trouble
from orchestrator.model import Host
from orchestrator.ranges import fold
from orchestrator.ssh.resolve import client_words, resolve
from orchestrator.text import plain


class OnlyOpenSSHError(HostError):
    """A connection that failed with our own client, and that OpenSSH's may make: it has what is needed."""

    def __init__(self, needs: str, error: HostError) -> None:
        super().__init__(error.host, error.what, kind=error.kind, why=error.why, hint=error.hint)
        self.needs = needs


_NOT_CONNECTED = 255  # the exit status of ssh itself
_LOGIN, _SLOW = 20.0, 2.0  # seconds for a login that asks nobody, and until its host is named
_IDLE = 600  # seconds without use after which a master of ours ends by itself
_OPTIONS = {
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
     "refused the login", "{look}; what has to be typed is asked for in a terminal"),
    (r"Could not resolve hostname", "resolve", "has a name that does not resolve", "{look}"),
    (r"Connection refused", Trouble.REFUSED, "refused the connection", "start sshd there; {look}"),
    (r"timed out", Trouble.TIMEOUT, "did not answer in time", "{look}"),
    (r"No route to host|Network is unreachable", Trouble.NO_ROUTE, "cannot be reached", "{look}"),
    (r"no matching \S+ .*found|no mutual", "algorithms", "has no algorithm in common with us", "{look}"),
    (r"kex_exchange_identification|Connection (closed|reset)|banner", Trouble.HUNG_UP,
     "hung up at once, every time", "look into its log (MaxStartups? PerSourcePenalties?): {look}"),
)  # fmt: skip


def command(host: Host, *options: str, masters: Path | None = None) -> list[str]:
    """Return the words of an ssh that forwards nothing; the host is the last of them. Raise HostError."""
    words = [word for name, value in _OPTIONS.items() for word in ("-o", f"{name}={value}")]
    if resolve(host).accept_new:  # `no` would connect though the key was changed or revoked
        words += ["-o", "StrictHostKeyChecking=accept-new"]
    if masters and (options[:1] == ("-f",) or (masters / host.name).exists()):
        words += ["-o", f"ControlPath={masters / host.name}"]
    return client_words(host, "-T", *words, *options)


def client(host: Host, masters: Path | None = None) -> list[str]:
    """Return the words to which a command line is appended; ssh asks nobody. Raise HostError."""
    return command(host, "-o", "BatchMode=yes", "-o", "ControlMaster=no", masters=masters)


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


def open_masters(hosts: Sequence[Host], tell: Callable[[str], None]) -> Path | None:
    """Connect to hosts that may have to ask something, each on the terminal where it must be.

    Return the folder of the connections; None where nothing had to be asked.
    """
    pool = ThreadPoolExecutor(8)
    try:
        answers = {host.name: pool.submit(_asks, host) for host in hosts}
        if slow := [name for name, one in answers.items() if one in wait(answers.values(), _SLOW).not_done]:
            tell(f"waiting for the login of {fold(slow)}")
        asking = [host for host in hosts if answers[host.name].result()]
    finally:
        pool.shutdown(wait=False, cancel_futures=True)  # on Ctrl-C nobody waits for their logins
    if not asking:
        return None
    folder = Path(tempfile.mkdtemp(prefix="orchestrate-"))
    for host in asking:
        tell(f"{host.name}: logging in with ssh")
        persist = ("-o", f"ControlPersist={_IDLE}")
        subprocess.run(command(host, "-f", "-N", "-M", *persist, masters=folder), check=False)
    return folder


def _asks(host: Host) -> bool:
    """Return True for a host whose login works only when a person answers."""
    done = processes.run([*client(host), "true"], _LOGIN)
    problem = error(host, done.status, done.err)
    return problem is not None and problem.kind in (Trouble.AUTH, Trouble.HOSTKEY_UNKNOWN)


def close_masters(folder: Path) -> None:
    """End the connections in a folder of `open_masters`, and remove it."""
    for socket in folder.glob("*"):
        with contextlib.suppress(OSError):
            processes.run(["ssh", "-F", "/dev/null", "-O", "exit", "-o", f"ControlPath={socket}", "x"], 5)
    shutil.rmtree(folder, ignore_errors=True)
