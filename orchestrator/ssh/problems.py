"""What fabric, paramiko and sockets raise, in words: one table, the most specific first."""

from __future__ import annotations

import errno
import shlex
import socket
from collections.abc import Callable
from typing import NamedTuple, TypeAlias, TypeVar

import paramiko

from orchestrator.errors import HostError
from orchestrator.ssh import knownhosts
from orchestrator.ssh.hostkeys import HostKeyRefused
from orchestrator.ssh.keyfile import reason
from orchestrator.ssh.knownhosts import Trust
from orchestrator.ssh.login import LoginRefused
from orchestrator.ssh.target import Target


class ConnectTimeout(TimeoutError):  # noqa: N818 - as the library it stands beside
    """Time ran out; `doing` says in what."""

    def __init__(self, doing: str, seconds: float) -> None:
        super().__init__(f"{doing} took more than {seconds:.0f} s")


class NoBanner(paramiko.SSHException):
    """What answered does not speak SSH."""


class HungUp(NoBanner):
    """It closed the connection before its banner, as sshd does beyond MaxStartups."""


class ProxyFailed(paramiko.ProxyCommandFailure):
    """The ProxyCommand ended before the host spoke."""


class Problem(NamedTuple):
    kind: str
    what: str
    why: str
    hint: str


E = TypeVar("E", bound=BaseException)
Wording: TypeAlias = Callable[[E, Target], Problem]


def explain(error: BaseException, host: str, target: Target) -> HostError:
    """The error a person reads; `error` may be anything that connecting raised."""
    if isinstance(error, HostError):
        return error
    problem = _word(error, target)
    why = problem.why
    if target.jumps and problem.kind not in {"auth", "hostkey-unknown", "hostkey-changed", "hostkey-revoked"}:
        why = f"{why} (through {' -> '.join(jump.alias for jump in target.jumps)})"
    return HostError(host, problem.what, kind=problem.kind, why=why, hint=problem.hint)


def _word(error: BaseException, target: Target) -> Problem:
    for kind, wording in TABLE:
        if isinstance(error, kind):
            return wording(error, target)
    return Problem("internal", "could not be connected to", f"{type(error).__name__}: {error}", _look(target))


def _at(target: Target) -> str:
    return f"{target.hostname} port {target.port}"


def _look(target: Target, flags: str = "-v ") -> str:
    return target.command.replace("ssh ", f"ssh {flags}", 1)


# --- one wording each ---


def _host_key(error: HostKeyRefused, target: Target) -> Problem:
    shown = f"{knownhosts.key_type(error.blob)} key {knownhosts.fingerprint(error.blob)}"
    file = target.user_known_hosts[0] if target.user_known_hosts else "known_hosts"
    name = target.key_names[0]
    match error.verdict.trust:
        case Trust.REVOKED:
            return Problem(
                "hostkey-revoked", "shows a host key that was revoked",
                f"{error.verdict.where} revokes its {shown}",
                "do not connect; ask who runs the machine for its new key",
            )  # fmt: skip
        case Trust.CHANGED:
            return Problem(
                "hostkey-changed", "shows another host key than the one we know",
                f"its {shown} is not the one in {error.verdict.where}: "
                "the machine was installed anew, or somebody is in between",
                f"find out which; then: ssh-keygen -R {shlex.quote(name)} -f {shlex.quote(str(file))}, "
                f"and {target.command}",
            )  # fmt: skip
        case Trust.UNKNOWN | Trust.KNOWN:
            note = " (a certificate authority is trusted for it, which only the ssh program can check)"
            return Problem(
                "hostkey-unknown", "shows a host key that we do not know",
                f"its {shown} is in no known_hosts file{note if error.verdict.authority else ''}",
                f"compare the fingerprint and answer yes in: {target.command}{_scan(target, file)}",
            )  # fmt: skip


def _scan(target: Target, file: object) -> str:
    if target.jumps or target.proxy_command or target.known_as:
        return ""
    port = "" if target.port == 22 else f"-p {target.port} "
    return f"; or, for a network you trust: ssh-keyscan {port}{target.hostname} >> {shlex.quote(str(file))}"


def _login(error: LoginRefused, target: Target) -> Problem:
    user = f'user "{target.user}"'
    if error.password:
        why = f"neither a key nor the password was accepted for {user}"
    elif error.offered:
        why = f"no key was accepted for {user} (tried {_listed(error.offered)})"
    else:
        why = f"there was no key to offer for {user}"
    if error.unusable:
        why += f"; {_listed(error.unusable)}"
    if error.allowed and "publickey" not in error.allowed:
        why += f"; it takes only {' or '.join(error.allowed)}"
    if any("is encrypted" in problem for problem in error.unusable):
        return Problem("auth", "refused the login", why, "ssh-add the key, then try again")
    return Problem(
        "auth", "refused the login", why, f"{target.command}, or set `user` and `identity` under [defaults]"
    )


def _listed(items: list[str], most: int = 4) -> str:
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return ", ".join(items[:most]) + more


def _authentication(error: paramiko.AuthenticationException, target: Target) -> Problem:
    why = f'it ended the login of user "{target.user}": {reason(error)}'
    return Problem("auth", "refused the login", why, _look(target))


def _resolve(error: socket.gaierror, target: Target) -> Problem:
    why = f"{target.hostname}: {reason(error)}"
    return Problem("resolve", "has a name that does not resolve", why, f"getent hosts {target.hostname}")


def _timeout(error: TimeoutError, target: Target) -> Problem:
    why = str(error) if isinstance(error, ConnectTimeout) else f"{_at(target)}: {reason(error)}"
    return Problem("timeout", "did not answer in time", why, _look(target))


def _several(error: paramiko.ssh_exception.NoValidConnectionsError, target: Target) -> Problem:
    return _word(next(iter(error.errors.values())), target)


def _refused(error: ConnectionRefusedError, target: Target) -> Problem:
    del error
    hint = f"is sshd running there, and on this port? nc -vz {target.hostname} {target.port}"
    return Problem("refused", "refused the connection", f"nothing listens on {_at(target)}", hint)


def _lost(error: BaseException, target: Target) -> Problem:
    return Problem("lost", "closed the connection", f"{_at(target)}: {reason(error)}", _look(target))


def _banner(error: NoBanner, target: Target) -> Problem:
    return Problem("banner", "did not answer as an SSH server", f"{_at(target)}: {error}", _look(target))


def _hung_up(error: HungUp, target: Target) -> Problem:
    hint = f"look into its log (MaxStartups? PerSourcePenalties? hosts.deny?): {_look(target)}"
    return Problem("banner", "hung up at once, every time", f"{_at(target)}: {error}", hint)


def _incompatible(error: paramiko.SSHException, target: Target) -> Problem:
    why = f"{reason(error)}; this client has no older algorithms"
    return Problem("algorithms", "has no algorithm in common with us", why, _look(target))


def _proxy(error: paramiko.ProxyCommandFailure, target: Target) -> Problem:
    why = f"ProxyCommand `{error.command}`: {str(error.error).strip() or 'it ended'}"
    return Problem("proxy", "cannot be reached through its ProxyCommand", why, _look(target))


_CHANNEL_CODES = {
    1: ("no-route", "may not be reached through its bastion", "the bastion forbids forwarding"),
    2: ("refused", "cannot be reached from its bastion", "the bastion could not connect"),
}


def _channel(error: paramiko.ChannelException, target: Target) -> Problem:
    default = ("command", "did not open a channel", "it has too many sessions (MaxSessions) or forbids them")
    kind, what, why = _CHANNEL_CODES.get(error.code, default) if target.jumps else default
    return Problem(kind, what, f"{why} to {_at(target)}: {error.text}", _look(target))


def _protocol(error: paramiko.SSHException, target: Target) -> Problem:
    return Problem("protocol", "broke the SSH protocol", f"{_at(target)}: {reason(error)}", _look(target))


def _config(error: paramiko.SSHException, target: Target) -> Problem:
    return Problem("config", "cannot be resolved from ssh_config", reason(error), _look(target, "-G "))


_NO_ROUTE = {errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN, errno.EADDRNOTAVAIL}
_TIMED_OUT = {errno.ETIMEDOUT}


def _system(error: OSError, target: Target) -> Problem:
    if error.errno in _NO_ROUTE:
        why = f"{_at(target)}: {reason(error)}"
        return Problem("no-route", "cannot be reached", why, f"ip route get {target.hostname}")
    if error.errno in _TIMED_OUT:
        return _timeout(TimeoutError(*error.args), target)
    if error.errno in {errno.ECONNRESET, errno.EPIPE, errno.ECONNABORTED, errno.ENOTCONN}:
        return _lost(error, target)
    return Problem("system", "could not be connected to", f"{_at(target)}: {reason(error)}", _look(target))


TABLE: tuple[tuple[type[BaseException], Wording[BaseException]], ...] = (
    (HostKeyRefused, _host_key),
    (paramiko.BadHostKeyException, _protocol),
    (LoginRefused, _login),
    (paramiko.AuthenticationException, _authentication),
    (HungUp, _hung_up),
    (NoBanner, _banner),
    (paramiko.ProxyCommandFailure, _proxy),
    (paramiko.ChannelException, _channel),
    (paramiko.ssh_exception.IncompatiblePeer, _incompatible),
    (paramiko.ssh_exception.ConfigParseError, _config),
    (paramiko.ssh_exception.CouldNotCanonicalize, _config),
    (paramiko.SSHException, _protocol),
    (socket.gaierror, _resolve),
    (paramiko.ssh_exception.NoValidConnectionsError, _several),
    (TimeoutError, _timeout),
    (ConnectionRefusedError, _refused),
    (ConnectionError, _lost),
    (OSError, _system),
    (EOFError, _lost),
)  # type: ignore[assignment]  # each wording takes the class beside it
