"""What goes wrong with a conversation, worded: no agent, lost, silent, not our protocol."""

from __future__ import annotations

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
            Trouble.NO_INDEX,
            "piece",
            "no-python",
            "state",
            "stopped",
            "tar",
            "task",
            "timeout",
            "tree",
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
    """The same, for any host."""
    return ClusterError("this machine cannot talk to any host", why=str(error), hint=THREADS)


def foreign(host: Host, why: str) -> HostError:
    """What our agent would never say was said."""
    return HostError(
        host.name,
        FOREIGN,
        kind=Trouble.PROTOCOL,
        why=printable(why, 300),
        hint="check who else is root on that machine: something there answers for our agent, or changes "
        "what it says",
    )


def refused(host: Host, failure: Failure) -> HostError:
    """What a node could not do, in its words; what it advises is no hint of ours."""
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
    """What the login printed, as one short text."""
    text = b" / ".join(part.strip() for part in (stderr, stdout) if part.strip())
    lines = [line.strip() for line in text.decode("utf-8", "replace").splitlines() if line.strip()]
    shown = "".join(char if char.isprintable() else "?" for char in " / ".join(lines[-4:]))
    return f'the login printed "{shown[-400:]}"' if shown else ""
