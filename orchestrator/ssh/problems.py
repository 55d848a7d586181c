"""Errors of paramiko and sockets, in words: one table, the most specific first."""

from __future__ import annotations

import errno
import shlex
import socket
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias, TypeVar

import paramiko
from paramiko.ssh_exception import (
    ConfigParseError,
    CouldNotCanonicalize,
    IncompatiblePeer,
    NoValidConnectionsError,
)

from orchestrator.errors import HereError, HostError, Trouble
from orchestrator.ssh import hostkeys
from orchestrator.ssh.hostkeys import HostKeyRefused, Trust
from orchestrator.ssh.keys import LoginRefused
from orchestrator.ssh.link import NoCommand
from orchestrator.ssh.openssh import OnlyOpenSSHError
from orchestrator.ssh.resolve import Target, reason

E = TypeVar("E", bound=BaseException)


class ConnectTimeout(TimeoutError):  # noqa: N818 - as the library it stands beside
    """Time ran out; `doing` says in what."""

    def __init__(self, doing: str, seconds: float) -> None:
        super().__init__(f"{doing} took more than {seconds:.0f} s")


class NoBanner(paramiko.SSHException):
    """The far end answers, and does not speak SSH."""


class HungUp(NoBanner):
    """A server that closed the connection before its banner, as sshd does beyond MaxStartups."""


class LargePackets(TimeoutError):  # noqa: N818 - as the library it stands beside
    """The key exchange began and never ended, as it does where only small packets pass."""


class NoWayOn(TimeoutError):  # noqa: N818
    """A bastion got no answer from the host behind it."""

    def __init__(self, bastion: Target, seconds: float) -> None:
        super().__init__(f"{bastion.alias} got no answer from it in {seconds:.0f} s")
        self.bastion = bastion


class NothingAllowed(paramiko.SSHException):
    """ssh_config leaves none of the algorithms that paramiko has."""

    def __init__(self, keyword: str) -> None:
        super().__init__(f"{keyword} of ssh_config leaves nothing that our client has")
        self.needs = f"{keyword} in ssh_config"


class Problem(NamedTuple):
    kind: str
    what: str
    why: str
    hint: str


Wording: TypeAlias = Callable[[E, Target], Problem]

# What the host itself has answered, whatever leads to it.
_ITS_OWN = {Trouble.AUTH, Trouble.HOSTKEY_UNKNOWN, Trouble.HOSTKEY_CHANGED, Trouble.HOSTKEY_REVOKED}
_HERE = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS}


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
    worded = HostError(host, problem.what, kind=problem.kind, why=why, hint=problem.hint)
    needs = "algorithms of its server" if isinstance(error, IncompatiblePeer) else getattr(error, "needs", "")
    return OnlyOpenSSHError(needs, worded) if needs else worded


def _word(error: BaseException, target: Target) -> Problem:
    """Word an error without names and addresses where that can be, so that hosts which fail alike fold."""
    for kind, wording in TABLE:
        if isinstance(error, kind):
            return wording(error, target)
    return Problem("internal", "could not be connected to", f"{type(error).__name__}: {error}", _look(target))


def _look(target: Target, flag: str = "-v") -> str:
    return f"`{target.command(flag)}`"


# --- one wording each ---


def _plain(kind: str, what: str, *, at_port: bool = False) -> Wording[BaseException]:
    """Return a wording of which the error says why."""

    def wording(error: BaseException, target: Target) -> Problem:
        why = f"port {target.port}: {reason(error)}" if at_port else reason(error)
        return Problem(kind, what, why, _look(target))

    return wording


_timeout = _plain("timeout", "did not answer in time", at_port=True)
_lost = _plain("lost", "closed the connection")


def _host_key(error: HostKeyRefused, target: Target) -> Problem:
    kind, where = hostkeys.key_type(error.blob), error.verdict.where
    shown = f"{kind} key {hostkeys.fingerprint(error.blob)}"
    match error.verdict.trust:
        case Trust.REVOKED:
            what, why = "shows a host key that was revoked", f"{where} revokes its {shown}"
            hint = "do not connect; ask who runs the machine for its new key"
            return Problem(Trouble.HOSTKEY_REVOKED, what, why, hint)
        case Trust.CHANGED:
            what = "shows another host key than the one we know"
            why = f"its {shown} is not the one in {where}: it was installed anew, or somebody is in between"
            forget = shlex.join(["ssh-keygen", "-R", target.key_names[0], "-f", where.rpartition(":")[0]])
            hint = f"find out which; then: {forget}, and {target.command()}"
            return Problem(Trouble.HOSTKEY_CHANGED, what, why, hint)
        case Trust.KNOWN:
            return Problem("config", "shows a host key that is too short", error.needs, _look(target))
        case Trust.UNKNOWN:
            # The fingerprint is for `ssh` to show: with it no two hosts would be told of together.
            trust = target.command("-o", "StrictHostKeyChecking=accept-new")
            hint = (
                f"compare the fingerprint in `{target.command()}`; or trust who answers now: `{trust} true`"
            )
            why = f"its {kind} key is in no known_hosts file"
            return Problem(Trouble.HOSTKEY_UNKNOWN, "shows a host key that we do not know", why, hint)


def _login(error: LoginRefused, target: Target) -> Problem:
    user = f'user "{target.user}"'
    if error.ended is not None:
        return _login_ended(error, target, error.ended)
    if error.offered:
        why = f"no key was accepted for {user} (tried {_listed(error.offered)})"
    else:
        why = f"there was no key to offer for {user}"
    if error.unusable:
        why += f"; {_listed([f'{file.path} {file.problem}' for file in error.unusable])}"
    methods = [name[:100] for name in error.allowed if name][:8]
    if methods and "publickey" not in methods:
        why += f"; it takes only {' or '.join(methods)}"
    locked = next((file.path for file in error.unusable if file.locked), None)
    if locked:
        return Problem(Trouble.AUTH, "refused the login", why, f"`{shlex.join(['ssh-add', str(locked)])}`")
    hint = f"`{target.command()}`, or set `user` and `identity` under [defaults]"
    return Problem(Trouble.AUTH, "refused the login", why, hint)


def _login_ended(error: LoginRefused, target: Target, words: str) -> Problem:
    """Word the end of a connection: a host that says no goes on listening, one with a rule hangs up."""
    if "Too many" in words:
        why = f"it hung up after {len(error.offered)} keys: {words}"
        hint = "set `identity` to the right key under [defaults]"
        return Problem(Trouble.AUTH, "refused the login", why, hint)
    spoke = f', and said "{words}"' if words else " without a word"
    why = f'it hung up after user "{target.user}" had shown {_listed(error.offered[-1:])}{spoke}'
    hint = f"`chage -l {target.user}` there; or look at its /etc/nologin, access.conf and sshd's log"
    return Problem(Trouble.AUTH, "accepts no login to that account", why, hint)


def _listed(items: Sequence[str], most: int = 4) -> str:
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return ", ".join(items[:most]) + more


def _authentication(error: paramiko.AuthenticationException, target: Target) -> Problem:
    why = f'it ended the login of user "{target.user}": {reason(error)}'
    return Problem(Trouble.AUTH, "refused the login", why, _look(target))


def _resolve(error: socket.gaierror, target: Target) -> Problem:
    why = f"{target.hostname}: {reason(error)}"
    return Problem("resolve", "has a name that does not resolve", why, f"`getent hosts {target.hostname}`")


def _several(error: NoValidConnectionsError, target: Target) -> Problem:
    return _word(next(iter(error.errors.values())), target)


def _refused(error: ConnectionRefusedError, target: Target) -> Problem:
    del error
    why = f"nothing listens on port {target.port} there"
    hint = f"start sshd there, or set `port`; {_look(target)}"
    return Problem("refused", "refused the connection", why, hint)


def _hung_up(error: HungUp, target: Target) -> Problem:
    hint = f"look into its log (MaxStartups? PerSourcePenalties? hosts.deny?): {_look(target)}"
    return Problem(Trouble.HUNG_UP, "hung up at once, every time", f"port {target.port}: {error}", hint)


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
    ask = f"{bastion.command()} nc -vz {target.hostname} {target.port}"
    hint = f"check its power and the firewall between {bastion.alias} and it: {ask}"
    return Problem("timeout", "does not answer its bastion", f"port {target.port}: {error}", hint)


def _channel(error: paramiko.ChannelException, target: Target) -> Problem:
    if target.jumps and error.code == 1:
        hint = "allow it in the bastion's sshd_config: AllowTcpForwarding, PermitOpen, DisableForwarding"
        what = "may not be reached through its bastion"
        return Problem(Trouble.FORBIDDEN, what, f"the bastion forbids forwarding: {error.text}", hint)
    if target.jumps and error.code == 2:
        what, why = "cannot be reached from its bastion", f"the bastion could not connect: {error.text}"
        return Problem("refused", what, why, _look(target))
    why = f"it has too many sessions (MaxSessions) or forbids them: {error.text}"
    return Problem("command", "did not open a channel", why, _look(target))


def _config(error: paramiko.SSHException, target: Target) -> Problem:
    return Problem("config", "cannot be resolved from ssh_config", reason(error), _look(target, "-G"))


_NO_ROUTE = {errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN, errno.EADDRNOTAVAIL}


def _system(error: OSError, target: Target) -> Problem:
    if error.errno in _NO_ROUTE:
        return Problem("no-route", "cannot be reached", reason(error), _look(target))
    if error.errno == errno.ETIMEDOUT:
        return _timeout(TimeoutError(*error.args), target)
    if error.errno in {errno.ECONNRESET, errno.EPIPE, errno.ECONNABORTED, errno.ENOTCONN}:
        return _lost(error, target)
    return Problem("system", "could not be connected to", reason(error), _look(target))


_protocol = _plain("protocol", "broke the SSH protocol")
TABLE: tuple[tuple[type[BaseException], Wording[BaseException]], ...] = (
    (HostKeyRefused, _host_key),
    (paramiko.BadHostKeyException, _protocol),
    (LoginRefused, _login),
    (paramiko.AuthenticationException, _authentication),
    (HungUp, _hung_up),
    (NoBanner, _plain("banner", "did not answer as an SSH server", at_port=True)),
    (paramiko.ChannelException, _channel),
    (NothingAllowed, _plain("config", "cannot be connected to as ssh_config asks")),
    (IncompatiblePeer, _plain("algorithms", "has no algorithm in common with us")),
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
