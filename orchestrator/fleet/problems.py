"""Errors of a conversation, worded: no agent, lost, silent, not our protocol."""

from __future__ import annotations

import re

from orchestrator.errors import FOREIGN, HostError, Trouble
from orchestrator.model import Host
from orchestrator.wire import Failure, printable

# What a node may call its own trouble; any other word of it is not ours, and nothing is chosen by it.
_OF_NODES = {
    "agent", "bug", "busy", "changed", "data", "env", "files", "machine", "orphan", "piece",
    "port", "start", "state", "stopped", "task", "timeout", "usage", "workdir", Trouble.INCOMPLETE,
    Trouble.NO_INDEX, Trouble.NO_PYTHON,
}  # fmt: skip


def lost(host: Host, why: str, what: str = "was lost") -> HostError:
    return HostError(
        host.name,
        what,
        kind=Trouble.LOST,
        why=why,
        hint=f"`{host.by_hand()}` shows whether the machine still answers",
    )


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


def no_agent(host: Host, words: str, status: int | None, *, begun: bool) -> HostError:
    """Word that no agent answers, by the login's output and status, and whether our command had begun."""
    python = host.agent_python
    named = not words or python.rpartition("/")[2] in words  # a start-up file may miss something else
    kind: str
    absent = named and (status == 127 or re.search(r"not found|No such file", words))
    if absent or re.search(r"SyntaxError|unknown option:? -I", words, re.IGNORECASE):
        kind, what = Trouble.NO_PYTHON, f"has no {python} of 3.8 or newer"
        hint = "install one, or set `agent_python` in hosts.toml"
    elif not begun:
        kind, what = "no-agent", "logs in, but does not run our agent"
        hint = (
            "put `case $- in *i*) ;; *) return ;; esac` at the top of that file (.bashrc, .zshenv); in"
            " config.fish `status is-interactive; and` before each command, in .cshrc `if ($?prompt)`;"
            f" `{host.by_hand(python, '-V')}` has to answer at once"
        )
        if status is not None:
            replaced = "a start-up file (or a ForceCommand) replaces or ends the login's shell"
            words = "; ".join(filter(None, (replaced, words or f"it ended with status {status}")))
    else:
        kind, what = "no-agent", "logs in, but does not run our agent"
        hint = (
            f"`{host.by_hand(python, '-V')}` has to answer at once: look for a ForceCommand there, a start-up"
            " file (.bashrc) that is slow or asks something, or a way that loses large packets (MTU)"
        )
    why = words or f"the login ended with status {status} and printed nothing"
    return HostError(host.name, what, kind=kind, why=why, hint=hint)
