"""What fabric, paramiko and sockets raise, in words: one table, the most specific first."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable
from typing import TypeAlias, TypeVar

import paramiko
from paramiko.ssh_exception import (
    ConfigParseError,
    CouldNotCanonicalize,
    IncompatiblePeer,
    NoValidConnectionsError,
)

from orchestrator.errors import HostError, Trouble
from orchestrator.ssh import refusals
from orchestrator.ssh.failures import (
    HungUp,
    LargePackets,
    NoBanner,
    NoCommand,
    NothingInCommon,
    NoWayOn,
    Problem,
    look,
)
from orchestrator.ssh.hostkeys import HostKeyRefused
from orchestrator.ssh.keyfile import reason
from orchestrator.ssh.knowncommand import CommandFailedError
from orchestrator.ssh.login import LoginRefused
from orchestrator.ssh.target import Target

E = TypeVar("E", bound=BaseException)
Wording: TypeAlias = Callable[[E, Target], Problem]

# What the host itself has answered, whatever leads to it.
_ITS_OWN = {Trouble.AUTH, Trouble.HOSTKEY_UNKNOWN, Trouble.HOSTKEY_CHANGED, Trouble.HOSTKEY_REVOKED}


def explain(error: BaseException, host: str, target: Target) -> HostError:
    """The error a person reads; `error` may be anything that connecting raised."""
    if isinstance(error, HostError):
        return error
    problem = _word(error, target)
    why = problem.why
    if target.jumps and problem.kind not in _ITS_OWN:
        why = f"{why} (through {' -> '.join(jump.alias for jump in target.jumps)})"
    return HostError(host, problem.what, kind=problem.kind, why=why, hint=problem.hint)


def _word(error: BaseException, target: Target) -> Problem:
    """Without names and addresses where that can be, so that hosts which fail alike can be folded."""
    for kind, wording in TABLE:
        if isinstance(error, kind):
            return wording(error, target)
    return Problem("internal", "could not be connected to", f"{type(error).__name__}: {error}", look(target))


# --- one wording each ---


def _said(kind: str, what: str, *, at_port: bool = False) -> Wording[BaseException]:
    """A wording of which the error says why."""

    def wording(error: BaseException, target: Target) -> Problem:
        why = f"port {target.port}: {reason(error)}" if at_port else reason(error)
        return Problem(kind, what, why, look(target))

    return wording


_timeout = _said("timeout", "did not answer in time", at_port=True)
_lost = _said("lost", "closed the connection")
_no_route = _said("no-route", "cannot be reached")
_other = _said("system", "could not be connected to")
_protocol = _said("protocol", "broke the SSH protocol")


def _authentication(error: paramiko.AuthenticationException, target: Target) -> Problem:
    why = f'it ended the login of user "{target.user}": {reason(error)}'
    return Problem(Trouble.AUTH, "refused the login", why, look(target))


def _resolve(error: socket.gaierror, target: Target) -> Problem:
    why = f"{target.hostname}: {reason(error)}"
    return Problem("resolve", "has a name that does not resolve", why, f"`getent hosts {target.hostname}`")


def _several(error: NoValidConnectionsError, target: Target) -> Problem:
    return _word(next(iter(error.errors.values())), target)


def _refused(error: ConnectionRefusedError, target: Target) -> Problem:
    del error
    why = f"nothing listens on port {target.port} there"
    return Problem(
        "refused", "refused the connection", why, f"start sshd there, or set `port`; {look(target)}"
    )


def _hung_up(error: HungUp, target: Target) -> Problem:
    hint = f"look into its log (MaxStartups? PerSourcePenalties? hosts.deny?): {look(target)}"
    return Problem("banner", "hung up at once, every time", f"port {target.port}: {error}", hint)


def _proxy(error: paramiko.ProxyCommandFailure, target: Target) -> Problem:
    why = f"ProxyCommand `{error.command}`: {str(error.error).strip() or 'it ended'}"
    if "administratively prohibited" in why:
        kind, what, _ = _FORBIDDEN
        return Problem(kind, what, why, _NO_FORWARDING)
    return Problem("proxy", "cannot be reached through its ProxyCommand", why, look(target))


def _no_command(error: NoCommand, target: Target) -> Problem:
    del error
    why = (
        f'user "{target.user}" logs in, but sshd closes the channel when a command is to run: '
        "no process is left for that user, no memory, or no open files"
    )
    hint = "compare `ulimit -u` with `ps -u` of that user there, and look into /etc/security/limits.conf"
    return Problem("no-process", "cannot start a process for us", why, hint)


def _large(error: LargePackets, target: Target) -> Problem:
    hint = f"`ping -M do -s 1400 {target.hostname}`: if that gets no answer, lower the MTU (VPN, tunnel)"
    return Problem("timeout", "answers, but only in small packets", f"port {target.port}: {error}", hint)


def _no_way_on(error: NoWayOn, target: Target) -> Problem:
    bastion = error.bastion
    why = f"port {target.port}: {error}"
    ask = f"{bastion.command} nc -vz {target.hostname} {target.port}"
    hint = f"check its power and the firewall between {bastion.alias} and it: {ask}"
    return Problem("timeout", "does not answer its bastion", why, hint)


_NO_FORWARDING = "allow it in the bastion's sshd_config: AllowTcpForwarding, PermitOpen, DisableForwarding"
_FORBIDDEN = (Trouble.FORBIDDEN, "may not be reached through its bastion", "the bastion forbids forwarding")
_CHANNEL_CODES = {
    1: _FORBIDDEN,
    2: ("refused", "cannot be reached from its bastion", "the bastion could not connect"),
}


def _channel(error: paramiko.ChannelException, target: Target) -> Problem:
    default = ("command", "did not open a channel", "it has too many sessions (MaxSessions) or forbids them")
    kind, what, why = _CHANNEL_CODES.get(error.code, default) if target.jumps else default
    hint = _NO_FORWARDING if kind is Trouble.FORBIDDEN else look(target)
    return Problem(kind, what, f"{why}: {error.text}", hint)


def _config(error: paramiko.SSHException, target: Target) -> Problem:
    return Problem("config", "cannot be resolved from ssh_config", reason(error), look(target, "-G "))


_NO_ROUTE = {errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN, errno.EADDRNOTAVAIL}
_TIMED_OUT = {errno.ETIMEDOUT}


def _system(error: OSError, target: Target) -> Problem:
    if error.errno in _NO_ROUTE:
        return _no_route(error, target)
    if error.errno in _TIMED_OUT:
        return _timeout(TimeoutError(*error.args), target)
    if error.errno in {errno.ECONNRESET, errno.EPIPE, errno.ECONNABORTED, errno.ENOTCONN}:
        return _lost(error, target)
    return _other(error, target)


TABLE: tuple[tuple[type[BaseException], Wording[BaseException]], ...] = (
    (HostKeyRefused, refusals.host_key),
    (paramiko.BadHostKeyException, _protocol),
    (LoginRefused, refusals.login),
    (paramiko.AuthenticationException, _authentication),
    (HungUp, _hung_up),
    (NoBanner, _said("banner", "did not answer as an SSH server", at_port=True)),
    (paramiko.ProxyCommandFailure, _proxy),
    (paramiko.ChannelException, _channel),
    (NothingInCommon, refusals.nothing),
    (IncompatiblePeer, _said("algorithms", "has no algorithm in common with us")),
    (CommandFailedError, refusals.command),
    (NoCommand, _no_command),
    (LargePackets, _large),
    (NoWayOn, _no_way_on),
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
