"""What fabric, paramiko and sockets raise, in words: one table, the most specific first."""

from __future__ import annotations

import errno
import shlex
import socket
from collections.abc import Callable
from typing import NamedTuple, TypeAlias, TypeVar

import paramiko
from paramiko.ssh_exception import (
    ConfigParseError,
    CouldNotCanonicalize,
    IncompatiblePeer,
    NoValidConnectionsError,
)

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
    """Without names and addresses where that can be, so that hosts which fail alike can be folded."""
    for kind, wording in TABLE:
        if isinstance(error, kind):
            return wording(error, target)
    return Problem("internal", "could not be connected to", f"{type(error).__name__}: {error}", _look(target))


def _look(target: Target, flags: str = "-v ") -> str:
    return target.command.replace("ssh ", f"ssh {flags}", 1)


# --- one wording each ---


def _host_key(error: HostKeyRefused, target: Target) -> Problem:
    kind = knownhosts.key_type(error.blob)
    shown = f"{kind} key {knownhosts.fingerprint(error.blob)}"
    match error.verdict.trust:
        case Trust.REVOKED:
            what, why = "shows a host key that was revoked", f"{error.verdict.where} revokes its {shown}"
            hint = "do not connect; ask who runs the machine for its new key"
            return Problem("hostkey-revoked", what, why, hint)
        case Trust.CHANGED:
            what = "shows another host key than the one we know"
            why = (
                f"its {shown} is not the one in {error.verdict.where}: "
                "the machine was installed anew, or somebody is in between"
            )
            file = error.verdict.where.rpartition(":")[0]
            forget = shlex.join(["ssh-keygen", "-R", target.key_names[0], "-f", file])
            return Problem(
                "hostkey-changed", what, why, f"find out which; then: {forget}, and {target.command}"
            )
        case Trust.UNKNOWN | Trust.KNOWN:
            note = " (a certificate authority is trusted for it, which only the ssh program can check)"
            why = f"its {kind} key is in no known_hosts file{note if error.verdict.authority else ''}"
            # The fingerprint is for `ssh` to show: with it no two hosts would be told of together.
            trust = _look(target, "-o StrictHostKeyChecking=accept-new ")
            hint = f"compare the fingerprint in: {target.command}; or trust whoever answers now: {trust} true"
            return Problem("hostkey-unknown", "shows a host key that we do not know", why, hint)


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
    hint = f"{target.command}, or set `user` and `identity` under [defaults]"
    return Problem("auth", "refused the login", why, hint)


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
    return Problem("timeout", "did not answer in time", f"port {target.port}: {reason(error)}", _look(target))


def _several(error: NoValidConnectionsError, target: Target) -> Problem:
    return _word(next(iter(error.errors.values())), target)


def _refused(error: ConnectionRefusedError, target: Target) -> Problem:
    del error
    why = f"nothing listens on port {target.port} there"
    return Problem(
        "refused", "refused the connection", why, f"start sshd there, or set `port`; {_look(target)}"
    )


def _lost(error: BaseException, target: Target) -> Problem:
    return Problem("lost", "closed the connection", reason(error), _look(target))


def _banner(error: NoBanner, target: Target) -> Problem:
    why = f"port {target.port}: {error}"
    return Problem("banner", "did not answer as an SSH server", why, _look(target))


def _hung_up(error: HungUp, target: Target) -> Problem:
    hint = f"look into its log (MaxStartups? PerSourcePenalties? hosts.deny?): {_look(target)}"
    return Problem("banner", "hung up at once, every time", f"port {target.port}: {error}", hint)


def _incompatible(error: paramiko.SSHException, target: Target) -> Problem:
    why = f"{reason(error)}; this client has no older algorithms"
    return Problem("algorithms", "has no algorithm in common with us", why, _look(target))


def _proxy(error: paramiko.ProxyCommandFailure, target: Target) -> Problem:
    why = f"ProxyCommand `{error.command}`: {str(error.error).strip() or 'it ended'}"
    return Problem("proxy", "cannot be reached through its ProxyCommand", why, _look(target))


_CHANNEL_CODES = {
    1: ("forbidden", "may not be reached through its bastion", "the bastion forbids forwarding"),
    2: ("refused", "cannot be reached from its bastion", "the bastion could not connect"),
}


def _channel(error: paramiko.ChannelException, target: Target) -> Problem:
    default = ("command", "did not open a channel", "it has too many sessions (MaxSessions) or forbids them")
    kind, what, why = _CHANNEL_CODES.get(error.code, default) if target.jumps else default
    return Problem(kind, what, f"{why}: {error.text}", _look(target))


def _protocol(error: paramiko.SSHException, target: Target) -> Problem:
    return Problem("protocol", "broke the SSH protocol", reason(error), _look(target))


def _config(error: paramiko.SSHException, target: Target) -> Problem:
    return Problem("config", "cannot be resolved from ssh_config", reason(error), _look(target, "-G "))


_NO_ROUTE = {errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN, errno.EADDRNOTAVAIL}
_TIMED_OUT = {errno.ETIMEDOUT}


def _system(error: OSError, target: Target) -> Problem:
    if error.errno in _NO_ROUTE:
        return Problem("no-route", "cannot be reached", reason(error), _look(target))
    if error.errno in _TIMED_OUT:
        return _timeout(TimeoutError(*error.args), target)
    if error.errno in {errno.ECONNRESET, errno.EPIPE, errno.ECONNABORTED, errno.ENOTCONN}:
        return _lost(error, target)
    return Problem("system", "could not be connected to", reason(error), _look(target))


TABLE: tuple[tuple[type[BaseException], Wording[BaseException]], ...] = (
    (HostKeyRefused, _host_key),
    (paramiko.BadHostKeyException, _protocol),
    (LoginRefused, _login),
    (paramiko.AuthenticationException, _authentication),
    (HungUp, _hung_up),
    (NoBanner, _banner),
    (paramiko.ProxyCommandFailure, _proxy),
    (paramiko.ChannelException, _channel),
    (IncompatiblePeer, _incompatible),
    (ConfigParseError, _config),
    (CouldNotCanonicalize, _config),
    (paramiko.SSHException, _protocol),
    (socket.gaierror, _resolve),
    (NoValidConnectionsError, _several),
    (TimeoutError, _timeout),
    (ConnectionRefusedError, _refused),
    (ConnectionError, _lost),
    (OSError, _system),
    (EOFError, _lost),
)  # type: ignore[assignment]  # each wording takes the class beside it
