"""OpenSSH's own client as a transport: its arguments, its errors, and its questions to the user.

Nothing asks questions during the fan-out (`BatchMode`). OpenSSH's questions are asked before, by a master
connection in the foreground of the terminal, which the fan-out then uses.
"""

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
    """A connection that failed with our own client, and that the installed OpenSSH may make."""

    needs = ""  # what only OpenSSH supports


_NOT_CONNECTED = 255  # the exit status of ssh itself
_LOGIN, _SLOW = 20.0, 2.0  # seconds for a login without questions, and until its host is named
_IDLE = 600  # seconds without use after which our master ends by itself
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
# The last output of ssh, the most specific first: kind, meaning, fix.
_ERRORS: tuple[tuple[str, str, str, str], ...] = (
    (r"REMOTE HOST IDENTIFICATION HAS CHANGED|host key .* has changed", Trouble.HOSTKEY_CHANGED,
     "presented an unexpected host key", "find out why; then `ssh-keygen -R` its old key"),
    (r"REVOKED HOST KEY|revoked", Trouble.HOSTKEY_REVOKED, "presented a revoked host key",
     "do not connect; ask who runs the machine for its new key"),
    (r"administratively prohibited", Trouble.FORBIDDEN, "may not be reached through the bastion",
     "allow it in the bastion's sshd_config: AllowTcpForwarding, PermitOpen, DisableForwarding"),
    (r"Host key verification failed|host key is known", Trouble.HOSTKEY_UNKNOWN,
     "presented an unknown host key", "compare its fingerprint in {look}"),
    (r"Permission denied|Too many authentication failures|No more authentication methods", Trouble.AUTH,
     "refused the login", "{look}; ssh prompts only in a terminal"),
    (r"Could not resolve hostname", "resolve", "could not be resolved", "{look}"),
    (r"Connection refused", Trouble.REFUSED, "refused the connection", "start sshd there; {look}"),
    (r"timed out", Trouble.TIMEOUT, "did not answer in time", "{look}"),
    (r"No route to host|Network is unreachable", Trouble.NO_ROUTE, "cannot be reached", "{look}"),
    (r"no matching \S+ .*found|no mutual", "algorithms",
     "has no SSH algorithm in common with this machine", "{look}"),
    (r"(exec|shell) request failed", "command", "did not start a command",
     "{look}; it has too many processes (`ulimit -u`), or forbids commands"),
    (r"kex_exchange_identification|Connection (closed|reset)|banner", Trouble.HUNG_UP,
     "closes every connection at once", "check its log (MaxStartups? PerSourcePenalties?): {look}"),
)  # fmt: skip

_BROKEN = re.compile("kex_exchange_identification|UNKNOWN port")  # what ssh prints when a proxy has ended


def command(host: Host, *options: str, masters: Path | None = None) -> list[str]:
    """Return an ssh command that forwards nothing; the host is its last argument. Raise HostError."""
    words = [word for name, value in _OPTIONS.items() for word in ("-o", f"{name}={value}")]
    if resolve(host).accept_new:  # `no` would connect although the key was changed or revoked
        words += ["-o", "StrictHostKeyChecking=accept-new"]
    if masters and (options[:1] == ("-f",) or (masters / host.name).exists()):
        words += ["-o", f"ControlPath={masters / host.name}"]
    return client_words(host, "-T", *words, *options)


def client(host: Host, masters: Path | None = None) -> list[str]:
    """Return the ssh command to which a command line is appended; it never prompts. Raise HostError."""
    options = ("BatchMode=yes", "ControlMaster=no", *resolve(host).overridden)
    return command(host, *(word for option in options for word in ("-o", option)), masters=masters)


def error(host: Host, status: int | None, stderr: bytes) -> HostError | None:
    """Return the error of a client that did not connect; None if it did."""
    if status != _NOT_CONNECTED:
        return None
    text = stderr.decode("utf-8", "replace")
    lines = [plain(line.strip()) for line in text.splitlines() if line.strip(" @")]
    login = f"`{host.by_hand()}`"
    for pattern, kind, what, hint in _ERRORS:
        if re.search(pattern, text):
            why = next((line for line in reversed(lines) if re.search(pattern, line)), lines[-1])
            printed = [line for line in lines if not _BROKEN.search(line)]
            if kind == Trouble.HUNG_UP:  # PAM's reason comes first, such as an expired account
                why = " / ".join(lines[-2:])
            if kind == Trouble.HUNG_UP and "UNKNOWN port" in text and printed:
                ended, why = "cannot be reached: its ProxyCommand ended", f"ssh: {printed[-1]}"
                return HostError(host.name, ended, kind=kind, why=why, hint=login)
            return HostError(host.name, what, kind=kind, why=f"ssh: {why}", hint=hint.format(look=login))
    why = f"ssh: {lines[-1]}" if lines else "ssh ended without a message"
    return HostError(host.name, "could not be reached", kind="ssh", why=why, hint=login)


def open_masters(hosts: Sequence[Host], tell: Callable[[str], None]) -> Path | None:
    """Connect to hosts that ask something, each on the terminal; return the folder of connections, if any."""
    pool = ThreadPoolExecutor(8)
    try:
        answers = {host.name: pool.submit(_asks, host) for host in hosts}
        silent = wait(answers.values(), _SLOW).not_done
        if slow := [name for name, answer in answers.items() if answer in silent]:
            tell(f"waiting for the login of {fold(slow)}")
        asking = [host for host in hosts if answers[host.name].result()]
    finally:
        pool.shutdown(wait=False, cancel_futures=True)  # after Ctrl-C their logins are abandoned
    if not asking:
        return None
    folder = Path(tempfile.mkdtemp(prefix="orchestrate-"))
    for host in asking:
        tell(f"{host.name}: logging in with ssh")
        argv = command(host, "-f", "-N", "-M", "-o", f"ControlPersist={_IDLE}", masters=folder)
        subprocess.run(argv, check=False)
    return folder


def _asks(host: Host) -> bool:
    """Return True for a host whose login succeeds only when the user answers."""
    done = processes.run([*client(host), "true"], _LOGIN)
    problem = error(host, done.status, done.err)
    return problem is not None and problem.kind in (Trouble.AUTH, Trouble.HOSTKEY_UNKNOWN)


def close_masters(folder: Path) -> None:
    """End the connections in a folder of `open_masters`, and remove it."""
    for socket in folder.glob("*"):
        with contextlib.suppress(OSError):
            processes.run(["ssh", "-F", "/dev/null", "-O", "exit", "-o", f"ControlPath={socket}", "x"], 5)
    shutil.rmtree(folder, ignore_errors=True)
