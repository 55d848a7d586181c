"""Errors of fabric, paramiko and sockets, in words: one table, the most specific first."""

from __future__ import annotations

import errno
import shlex
import socket
from collections.abc import Callable
from typing import NamedTuple, TypeAlias, TypeVar

import paramiko
from paramiko.ssh_exception import IncompatiblePeer

from orchestrator.errors import HereError, HostError, Trouble
from orchestrator.ssh import hostkeys
from orchestrator.ssh.hostkeys import Beyond, HostKeyRefused, Trust
from orchestrator.ssh.keys import LoginRefused
from orchestrator.ssh.link import NoCommand
from orchestrator.ssh.openssh import OnlyOpenSSHError
from orchestrator.ssh.resolve import Target, reason

E = TypeVar("E", bound=BaseException)


class NoBanner(paramiko.SSHException):
    """The far end answers, and does not speak SSH."""


class HungUp(NoBanner):
    """A server that closed the connection before its banner, as sshd does beyond MaxStartups."""


class Problem(NamedTuple):
    """The parts of an error; a `hint` of "" means to log in by hand and look."""

    kind: str
    what: str
    why: str
    hint: str = ""


Wording: TypeAlias = Callable[[E, Target], Problem]

# What the host itself has answered, whatever leads to it.
_ITS_OWN = {Trouble.AUTH, Trouble.HOSTKEY_UNKNOWN, Trouble.HOSTKEY_CHANGED, Trouble.HOSTKEY_REVOKED}
_HERE = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS}
_LARGE = "if it stops in the middle, larger packets get lost on the way: lower the MTU (VPN, tunnel)"


def explain(error: BaseException, host: str, target: Target) -> HostError:
    """Return the error a person reads; `error` may be anything that connecting raised."""
    if isinstance(error, HostError):
        return error
    if isinstance(error, OSError) and error.errno in _HERE:
        return HereError(host, reason(error))
    problem = _word(error, target)
    why = problem.why
    if target.jumps and problem.kind not in _ITS_OWN:
        why = f"{why} (through {' -> '.join(jump.alias for jump in target.jumps)})"
    hint = problem.hint or f"`{target.by_hand}`"
    worded = HostError(host, problem.what, kind=problem.kind, why=why, hint=hint)
    needs = "algorithms of its server" if isinstance(error, IncompatiblePeer) else getattr(error, "needs", "")
    return OnlyOpenSSHError(needs, worded) if needs else worded


def _word(error: BaseException, target: Target) -> Problem:
    """Word an error without names and addresses where that can be, so that hosts which fail alike fold."""
    for kind, wording in TABLE:
        if isinstance(error, kind):
            return wording(error, target)
    return Problem("internal", "could not be connected to", f"{type(error).__name__}: {error}")


def _plain(kind: str, what: str, hint: str = "") -> Wording[BaseException]:
    """Return a wording of which the error says why."""
    return lambda error, _: Problem(kind, what, reason(error), hint)


def _at_port(kind: str, what: str, more: str) -> Wording[BaseException]:
    """Return a wording with the port, and more than to log in by hand."""
    return lambda error, target: Problem(
        kind, what, f"port {target.port}: {reason(error)}", f"`{target.by_hand}`; {more}"
    )


def _host_key(error: HostKeyRefused, target: Target) -> Problem:
    kind = hostkeys.key_type(error.blob)
    if error.trust is Trust.CHANGED:
        shown = f"{kind} key {hostkeys.fingerprint(error.blob)}"
        why = f"its {shown} is not the one in {error.where}: it was installed anew, or somebody is in between"
        known_hosts = error.where.rpartition(":")[0]
        forget = shlex.join(["ssh-keygen", "-R", target.key_names[0], "-f", known_hosts])
        hint = f"find out which; then: {forget}, and {target.by_hand}"
        return Problem(Trouble.HOSTKEY_CHANGED, "shows another host key than the one we know", why, hint)
    # The fingerprint is for `ssh` to show: with it no two hosts would be told of together.
    trust = target.by_hand.replace("ssh ", "ssh -o StrictHostKeyChecking=accept-new ", 1)
    hint = f"compare the fingerprint in `{target.by_hand}`; or trust who answers now: `{trust} true`"
    why = f"its {kind} key is in no known_hosts file"
    return Problem(Trouble.HOSTKEY_UNKNOWN, "shows a host key that we do not know", why, hint)


def _login(error: LoginRefused, target: Target) -> Problem:
    user, offered = f'user "{target.user}"', ", ".join(error.offered[:4])
    more = f" and {len(error.offered) - 4} more" if len(error.offered) > 4 else ""
    why = f"no key was accepted for {user} (tried {offered}{more})"
    parts = [why if offered else f"there was no key to offer for {user}"]
    parts += [f"{file.path} {file.problem}" for file in error.unusable[:4]]
    parts += [str(error)] if str(error) else []
    locked = next((file.path for file in error.unusable if file.locked), None)
    hint = f"`{target.by_hand}`, or set `user` and `identity` under [defaults]"
    hint = f"`{shlex.join(['ssh-add', str(locked)])}`" if locked else hint
    return Problem(Trouble.AUTH, "refused the login", "; ".join(parts), hint)


def _authentication(error: paramiko.AuthenticationException, target: Target) -> Problem:
    why = f'it ended the login of user "{target.user}": {reason(error)}'
    return Problem(Trouble.AUTH, "refused the login", why)


def _resolve(error: socket.gaierror, target: Target) -> Problem:
    why = f"{target.hostname}: {reason(error)}"
    return Problem("resolve", "has a name that does not resolve", why, f"`getent hosts {target.hostname}`")


def _channel(error: paramiko.ChannelException, target: Target) -> Problem:
    if target.jumps and error.code == 1:
        hint = "allow it in the bastion's sshd_config: AllowTcpForwarding, PermitOpen, DisableForwarding"
        what = "may not be reached through its bastion"
        return Problem(Trouble.FORBIDDEN, what, f"the bastion forbids forwarding: {error.text}", hint)
    if target.jumps and error.code == 2:
        why = f"the bastion could not connect: {error.text}"
        return Problem("refused", "cannot be reached from its bastion", why)
    why = f"it has too many sessions (MaxSessions) or forbids them: {error.text}"
    return Problem("command", "did not open a channel", why)


_NO_ROUTE = {errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN, errno.EADDRNOTAVAIL}


def _system(error: OSError, target: Target) -> Problem:
    if error.errno in _NO_ROUTE:
        return Problem("no-route", "cannot be reached", reason(error))
    if error.errno == errno.ETIMEDOUT:
        return _timeout(error, target)
    if error.errno in {errno.ECONNRESET, errno.EPIPE, errno.ECONNABORTED, errno.ENOTCONN}:
        return _lost(error, target)
    return Problem("system", "could not be connected to", reason(error))


_protocol = _plain("protocol", "broke the SSH protocol")
_timeout = _at_port("timeout", "did not answer in time", _LARGE)
_lost = _plain("lost", "closed the connection")
TABLE: tuple[tuple[type[BaseException], Wording[BaseException]], ...] = (
    (HostKeyRefused, _host_key),
    (LoginRefused, _login),
    (paramiko.AuthenticationException, _authentication),
    (HungUp, _at_port(Trouble.HUNG_UP, "hung up at once, every time",
                      "look into its log (MaxStartups? PerSourcePenalties? hosts.deny?)")),
    (NoBanner, _at_port("banner", "did not answer as an SSH server", "is `port` the one of its sshd?")),
    (paramiko.ChannelException, _channel),
    (NoCommand, _plain("no-process", "cannot start a process for us",
                       "compare `ulimit -u` with `ps -u` of that user; see /etc/security/limits.conf")),
    (Beyond, _plain("config", "cannot be connected to as ssh_config asks")),
    (IncompatiblePeer, _plain("algorithms", "has no algorithm in common with us")),
    (paramiko.SSHException, _protocol),
    (socket.gaierror, _resolve),
    (TimeoutError, _timeout),
    (ConnectionRefusedError, _at_port("refused", "refused the connection", "start sshd, or set `port`")),
    (ConnectionError, _lost),
    (OSError, _system),
    (EOFError, _lost),
)  # type: ignore[assignment]  # each wording takes the class beside it  # fmt: skip
