"""Wordings where somebody said no: host keys, logins, algorithms, KnownHostsCommand."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

import paramiko

from orchestrator.errors import Trouble
from orchestrator.ssh import knowncommand, knownhosts
from orchestrator.ssh.failures import NothingInCommon, Problem, look, with_flags
from orchestrator.ssh.hostkeys import HostKeyRefused
from orchestrator.ssh.knowncommand import CommandFailedError
from orchestrator.ssh.knownhosts import Trust
from orchestrator.ssh.login import LoginRefused
from orchestrator.ssh.target import Method, Target


def host_key(error: HostKeyRefused, target: Target) -> Problem:
    kind = knownhosts.key_type(error.blob)
    shown = f"{kind} key {knownhosts.fingerprint(error.blob)}"
    match error.verdict.trust:
        case Trust.REVOKED:
            what, why = "shows a host key that was revoked", f"{error.verdict.where} revokes its {shown}"
            hint = "do not connect; ask who runs the machine for its new key"
            return Problem(Trouble.HOSTKEY_REVOKED, what, why, hint)
        case Trust.CHANGED:
            what = "shows another host key than the one we know"
            why = (
                f"its {shown} is not the one in {error.verdict.where}: "
                "the machine was installed anew, or somebody is in between"
            )
            file = error.verdict.where.rpartition(":")[0]
            if file == knowncommand.SOURCE:
                hint = f"find out which; then correct what KnownHostsCommand prints; {look(target)}"
                return Problem(Trouble.HOSTKEY_CHANGED, what, why, hint)
            forget = shlex.join(["ssh-keygen", "-R", target.key_names[0], "-f", file])
            return Problem(
                Trouble.HOSTKEY_CHANGED, what, why, f"find out which; then: {forget}, and {target.command}"
            )
        case Trust.SHORT:
            why = f"its {shown} has {error.verdict.where}"
            hint = "give the machine a longer key, or a key of type ed25519: ssh-keygen -A there"
            return Problem("hostkey-short", "shows a host key that is too short", why, hint)
        case Trust.UNTOLD:
            why = f"RevokedHostKeys: {error.verdict.where}; ssh then trusts no key either"
            hint = "mend that file, or take RevokedHostKeys out of ssh_config"
            return Problem(Trouble.HOSTKEY_REVOKED, "shows a host key that may be revoked", why, hint)
        case Trust.UNKNOWN | Trust.KNOWN:
            note = " (a certificate authority is trusted for it, which only the ssh program can check)"
            note = note if error.verdict.authority else ""
            if target.dns_asked:
                note += " (VerifyHostKeyDNS: only the ssh program can ask the DNS)"
            why = f"its {kind} key is in no known_hosts file{note}"
            # The fingerprint is for `ssh` to show: with it no two hosts would be told of together.
            trust = with_flags(target, "-o StrictHostKeyChecking=accept-new ")
            hint = f"compare the fingerprint in `{target.command}`; or trust who answers now: `{trust} true`"
            return Problem(Trouble.HOSTKEY_UNKNOWN, "shows a host key that we do not know", why, hint)


def login(error: LoginRefused, target: Target) -> Problem:
    user = f'user "{target.user}"'
    if error.ended is not None:
        return _login_ended(error, target, error.ended)
    if error.password:
        why = f"neither a key nor the password was accepted for {user}"
    elif error.offered:
        why = f"no key was accepted for {user} (tried {_listed(error.offered)})"
    else:
        why = f"there was no key to offer for {user}"
    if error.unusable.lines:
        why += f"; {_listed(error.unusable.lines)}"
    named = [name[:100] for name in error.allowed if name]
    if error.allowed and not named:
        why += "; it takes no way to log in at all: PubkeyAuthentication or AuthenticationMethods there"
    elif named and "publickey" not in named:
        why += f"; it takes only {' or '.join(named[:8])}"
        if not set(Method) & set(named):
            why += ", which our client does not have"
    if error.unusable.locked:
        add = shlex.join(["ssh-add", str(error.unusable.locked)])
        return Problem(Trouble.AUTH, "refused the login", why, f"`{add}`, then try again")
    hint = f"`{target.command}`, or set `user` and `identity` under [defaults]"
    return Problem(Trouble.AUTH, "refused the login", why, hint)


def _login_ended(error: LoginRefused, target: Target, words: str) -> Problem:
    """A host that says no goes on listening; one that hangs up has a rule about the account."""
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


def nothing(error: NothingInCommon, target: Target) -> Problem:
    """Which side lacks what: the client, the server, or what ssh_config leaves of them."""
    nothing, client = error.nothing, f"our client (paramiko {paramiko.__version__})"
    noun, keyword = nothing.family.noun, nothing.family.keyword
    ours = ", ".join(nothing.ours)
    if nothing.theirs is None:
        why = f"{keyword} of ssh_config leaves none of what {client} has: {ours}"
        hint = f"add one of them to {keyword} for this host"
        return Problem("config", "cannot be connected to as ssh_config asks", why, hint)
    theirs = _listed(list(nothing.theirs), 20)[:1000] or "nothing"
    if nothing.excluded:
        why = f"as {noun} it offers {theirs}; {keyword} of ssh_config rules out {', '.join(nothing.excluded)}"
        hint = f"add {nothing.excluded[0]} to {keyword} for this host; {look(target)}"
    else:
        why = f"as {noun} it offers only {theirs}, which {client} does not have"
        mend = "give it a host key of type ed25519" if noun == "host key" else f"allow {nothing.allowed[0]}"
        hint = f"{mend} there ({keyword} in its sshd_config)"
    return Problem("algorithms", "has no algorithm in common with us", why, hint)


def command(error: CommandFailedError, target: Target) -> Problem:
    why = f"{error}; ssh then does not connect either"
    hint = f"mend the command, or take it out of ssh_config; {look(target)}"
    return Problem("config", "cannot be verified as ssh_config asks", why, hint)
