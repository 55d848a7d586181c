"""Why a host that lets us in does not run our agent: read from what its login printed."""

from __future__ import annotations

import re

from orchestrator.errors import HostError
from orchestrator.model import Host

_NOT_FOUND = re.compile(r"not found|No such file")
_TOO_OLD = re.compile(r"SyntaxError|unknown option:? -I", re.IGNORECASE)
_NO_PROCESS = re.compile(
    r"Resource temporarily unavailable|Cannot allocate memory|fork: |can't start new thread"
)
_PASSWORD = re.compile(r"password has expired|password change required|password is expired", re.IGNORECASE)
_TOO_MANY = re.compile(r"too many logins", re.IGNORECASE)
_CLOSED = re.compile(r"account is currently not available|account has expired", re.IGNORECASE)


def no_agent(host: Host, words: str, status: int | None, stalled: str) -> HostError:
    """The error for what the login printed and ended with; `stalled` is the link's own complaint."""

    def error(kind: str, what: str, why: str, hint: str) -> HostError:
        return HostError(host.name, what, kind=kind, why=why, hint=hint)

    python = host.agent_python
    if stalled:
        return error(
            "timeout",
            "answers, but only in small packets",
            stalled,
            f"`ping -M do -s 1400 {host.address}`: if that gets no answer, lower the MTU (VPN, tunnel)",
        )
    if _PASSWORD.search(words):
        hint = f"`{host.by_hand()}` in a terminal, and set a new password there"
        return error("account", "wants a new password of that account first", words, hint)
    if _CLOSED.search(words):
        hint = "give the account a login shell there (`chsh`), or set `user` to another one"
        return error("account", "logs in, but may run no command there", words, hint)
    if _TOO_MANY.search(words):
        hint = "raise maxlogins in /etc/security/limits.conf there, or end other sessions of that user"
        return error("account", "has too many logins of that account", words, hint)
    if _NO_PROCESS.search(words):
        hint = "compare `ulimit -u` with `ps -u` of that user there, and look into /etc/security/limits.conf"
        return error("no-process", "cannot start a process for us", words, hint)
    named = not words or python.rpartition("/")[2] in words  # a start-up file may miss something else
    if named and (status == 127 or _NOT_FOUND.search(words)):
        hint = "install python3 (3.8 or newer), or set `agent_python` in hosts.toml"
        return error(
            "no-python", f"has no {python}", words or f"the login shell ended with status {status}", hint
        )
    if _TOO_OLD.search(words):
        hint = "set `agent_python` in hosts.toml to a Python of 3.8 or newer"
        return error("old-python", f"has a {python} older than 3.8", words, hint)
    return error(
        "no-agent",
        "logs in, but does not run our agent",
        words or f"the login ended with status {status} and printed nothing",
        f"`{host.by_hand(python, '-V')}` has to answer at once: look for a ForceCommand there, "
        "or a start-up file (.bashrc) that is slow or asks something",
    )
