"""Errors of a conversation with an agent: no agent, lost, silent, not our protocol."""

import re

from orchestrator.errors import FOREIGN, HostError, Trouble
from orchestrator.model import Host
from orchestrator.wire import Failure, printable

# The kinds that a node may give its own errors; no decision depends on any other one.
_OF_NODES = {
    "agent", "bug", "busy", "changed", "data", "env", "files", "machine", "orphan", "piece",
    "port", "start", "state", "stopped", "task", "timeout", "usage", "workdir", Trouble.INCOMPLETE,
    Trouble.NO_INDEX, Trouble.NO_PYTHON,
}  # fmt: skip

# The output of nologin, rbash, git-shell, and sftp-server as a ForceCommand.
_NO_COMMANDS = (
    r"account is (?:currently )?not available|: restricted|unrecognized command|allows sftp connections only"
)


def lost(host: Host, why: str, what: str = "was lost") -> HostError:
    hint = f"`{host.by_hand()}` shows whether the machine still answers"
    return HostError(host.name, what, kind=Trouble.LOST, why=why, hint=hint)


def foreign(host: Host, why: str) -> HostError:
    """Return the error for a host that sends something our agent never sends."""
    hint = "check who else is root there: something replaces orchestrate's agent, or changes what it sends"
    return HostError(host.name, FOREIGN, kind=Trouble.PROTOCOL, why=printable(why, 300), hint=hint)


def refused(host: Host, failure: Failure) -> HostError:
    """Return a node's failure in its own words; its suggestion is not our hint."""
    kind = failure.kind if failure.kind in _OF_NODES else "agent"
    return HostError(host.name, failure.summary, kind=kind, why=failure.details)


def silent(host: Host, op: str, timeout: float) -> HostError:
    return HostError(
        host.name,
        f"gave no reply to `{op}` within {timeout:.0f} s",
        kind=Trouble.TIMEOUT,
        why="the machine, its disk or the network hangs",
        hint=f"`{host.by_hand()}`, then check its load and `dmesg`",
    )


def noise(stdout: bytes, stderr: bytes) -> str:
    """Return what the login printed, as one short text."""
    text = b" / ".join(part.strip() for part in (stderr, stdout) if part.strip())
    lines = [line.strip() for line in text.decode("utf-8", "replace").splitlines() if line.strip()]
    shown = "".join(char if char.isprintable() else "?" for char in " / ".join(lines[-4:]))
    return f'the login printed "{shown[-400:]}"' if shown else ""


def no_agent(host: Host, output: str, status: int | None, *, begun: bool) -> HostError:
    """Return the error for a missing agent, by the login's output and status, and if our command began."""
    python, why = host.agent_python, output or f"the login ended with status {status} and printed nothing"
    named = not output or python.rpartition("/")[2] in output  # a startup file may lack something else
    absent = named and (status == 127 or re.search(r"not found|No such file", output))
    if absent or re.search(r"SyntaxError|unknown option:? -I|agent needs Python", output, re.IGNORECASE):
        what, hint = f"has no {python} of 3.8 or newer", "install one, or set `agent_python` in hosts.toml"
        return HostError(host.name, what, kind=Trouble.NO_PYTHON, why=why, hint=hint)
    by_hand = f"`{host.by_hand(python, '-V')}` has to respond at once"
    hint = (
        f"{by_hand}: look for a ForceCommand there, a startup file (.bashrc) that is slow or asks something,"
        " or a network path that drops large packets (MTU)"
    )
    if not begun:
        hint = (
            "put `case $- in *i*) ;; *) return ;; esac` at the top of that file (.bashrc, .zshenv); in"
            " config.fish `status is-interactive; and` before each command, in .cshrc `if ($?prompt)`;"
            f" {by_hand}"
        )
        if status is not None:
            replaced = "a startup file (or a ForceCommand) replaces or ends the login's shell"
            why = f"{replaced}; {output or f'it ended with status {status}'}"
        if "Password change required" in output:
            why, hint = f"its password has expired; {output}", f"`{host.by_hand()}` asks for a new one"
        other = "have root give that account another shell (`chsh -s /bin/bash`), or set another `user`"
        if re.search(_NO_COMMANDS, output):
            why, hint = f"the account's shell does not allow this command; {output}", other
        elif status == 1 and not output:
            hint = f"check the account's shell: if it is /bin/false, {other}; otherwise {hint}"
    what = "did not start orchestrate's agent after the login"
    return HostError(host.name, what, kind="no-agent", why=why, hint=hint)
