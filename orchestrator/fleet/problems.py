"""Errors of a conversation, worded: no agent, lost, silent, not our protocol."""

from __future__ import annotations

import re

from orchestrator.errors import FOREIGN, ClusterError, HostError, Trouble
from orchestrator.model import Host
from orchestrator.wire import Failure, printable

# What a node may call its own trouble; any other word of it is not ours, and nothing is chosen by it.
_OF_NODES = frozenset(
    {
        *{"agent", "bug", "busy", "changed", "files", "machine", "orphan", "port", "start"},
        *{
            "data",
            "env",
            Trouble.INCOMPLETE,
            Trouble.NO_INDEX,
            "piece",
            "no-python",
            "state",
            "stopped",
            "task",
            "timeout",
            "usage",
            "workdir",
        },
    }
)


THREADS = "compare `ulimit -u` with `ps -eLf | wc -l` on this machine, or give its container more processes"


def lost(host: Host, why: str) -> HostError:
    return HostError(
        host.name,
        "was lost",
        kind=Trouble.LOST,
        why=why,
        hint=f"`{host.by_hand()}` shows whether the machine still answers",
    )


def is_no_thread(error: Exception) -> bool:
    """Return True when this machine has no thread left: Python has no type of its own for that."""
    return type(error) is RuntimeError and str(error) == "can't start new thread"


def no_threads(error: Exception) -> ClusterError:
    """Word that this machine has no thread left for any host."""
    return ClusterError("this machine cannot talk to any host", why=str(error), hint=THREADS)


def foreign(host: Host, why: str) -> HostError:
    """Word that a host says what our agent would never say."""
    return HostError(
        host.name,
        FOREIGN,
        kind=Trouble.PROTOCOL,
        why=printable(why, 300),
        hint="check who else is root on that machine: something there answers for our agent, or changes "
        "what it says",
    )


def refused(host: Host, failure: Failure) -> HostError:
    """Return what a node could not do, in its words; what it advises is no hint of ours."""
    kind = failure.kind if failure.kind in _OF_NODES else "agent"
    return HostError(host.name, failure.said, kind=kind, why=failure.told)


def silent(host: Host, op: str, timeout: float) -> HostError:
    return HostError(
        host.name,
        f"gave no answer to `{op}` within {timeout:.0f} s",
        kind=Trouble.TIMEOUT,
        why="the machine or its disk hangs, or the network does",
        hint=f"`{host.by_hand()}`, then look at its load and at `dmesg`",
    )


def noise(stdout: bytes, stderr: bytes) -> str:
    """Return what the login printed, as one short text."""
    text = b" / ".join(part.strip() for part in (stderr, stdout) if part.strip())
    lines = [line.strip() for line in text.decode("utf-8", "replace").splitlines() if line.strip()]
    shown = "".join(char if char.isprintable() else "?" for char in " / ".join(lines[-4:]))
    return f'the login printed "{shown[-400:]}"' if shown else ""


# --- a host that lets us in and does not run our agent, told by what its login printed ---

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
