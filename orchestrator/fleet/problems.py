"""Errors of a conversation, worded: no agent, lost, silent, not our protocol."""

from __future__ import annotations

import re

from orchestrator.errors import FOREIGN, ClusterError, HostError, Trouble
from orchestrator.model import Host
from orchestrator.wire import Failure, printable

# What a node may call its own trouble; any other word of it is not ours, and nothing is chosen by it.
_OF_NODES = frozenset(
    {
        *{
            "agent",
            "bug",
            "busy",
            "changed",
            "data",
            "env",
            "files",
            "machine",
            "no-python",
            "orphan",
            "piece",
        },
        *{"port", "start", "state", "stopped", "task", "timeout", "usage", "workdir"},
        *{Trouble.INCOMPLETE, Trouble.NO_INDEX},
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

_OF_THE_LOGIN: tuple[tuple[str, str, str, str], ...] = (
    (r"password (has |is )?expired|password change required", "account",
     "wants a new password of that account first", "`{login}` in a terminal, and set a new password there"),
    (r"account is currently not available|account has expired", "account",
     "logs in, but may run no command there", "give the account a login shell there (`chsh`), or set `user`"),
    (r"too many logins", "account", "has too many logins of that account",
     "raise maxlogins in /etc/security/limits.conf there, or end other sessions of that user"),
    (r"Resource temporarily unavailable|Cannot allocate memory|fork: |can't start new thread", "no-process",
     "cannot start a process for us",
     "compare `ulimit -u` with `ps -u` of that user there; see /etc/security/limits.conf"),
    (r"SyntaxError|unknown option:? -I", "old-python", "has a {python} older than 3.8",
     "set `agent_python` in hosts.toml to a Python of 3.8 or newer"),
)  # fmt: skip


def no_agent(host: Host, words: str, status: int | None) -> HostError:
    """The error for what the login printed and ended with."""
    python, login = host.agent_python, host.by_hand()
    named = not words or python.rpartition("/")[2] in words  # a start-up file may miss something else
    if named and (status == 127 or re.search(r"not found|No such file", words)):
        why = words or f"the login shell ended with status {status}"
        hint = "install python3 (3.8 or newer), or set `agent_python` in hosts.toml"
        return HostError(host.name, f"has no {python}", kind="no-python", why=why, hint=hint)
    for pattern, kind, what, hint in _OF_THE_LOGIN:
        if re.search(pattern, words, re.IGNORECASE):
            advice = hint.format(login=login)
            return HostError(host.name, what.format(python=python), kind=kind, why=words, hint=advice)
    return HostError(
        host.name,
        "logs in, but does not run our agent",
        kind="no-agent",
        why=words or f"the login ended with status {status} and printed nothing",
        hint=f"`{host.by_hand(python, '-V')}` has to answer at once: look for a ForceCommand there, "
        "a start-up file (.bashrc) that is slow or asks something, or a way that loses large packets (MTU)",
    )
