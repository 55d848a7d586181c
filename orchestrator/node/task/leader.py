"""Starts the task's first process, and hears from it over a pipe whether exec worked."""

from __future__ import annotations

import errno
import json
import os
import signal
from typing import Any, NoReturn

from ..base import prctl, trust
from ..base.fault import reason
from .environ import Launch


def spawn(launch: Launch, output: int) -> tuple[int, int]:
    """Fork the leader; return its pid and a pipe: it ends empty when exec worked, else with an error."""
    heard, said = os.pipe()
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            error = _become(launch, output, parent)
            os.write(said, json.dumps(error).encode())
        except BaseException as bug:
            os.write(said, json.dumps(_error("the task could not be prepared", repr(bug), "")).encode())
        finally:
            os._exit(127)
    os.close(said)
    return pid, heard


def hear(pipe: int) -> dict[str, str]:
    """Why exec failed, {} when it worked; called when the pipe has something or has ended."""
    with open(pipe, "rb") as stream:
        said = stream.read()
    error: dict[str, str] = json.loads(said) if said else {}
    return error


def cannot_fork(error: OSError) -> dict[str, str]:
    """The refusal when no process could be made."""
    return _error(
        "no process could be made for it",
        reason(error),
        "the machine is short of memory, or this user has too many processes (ulimit -u)",
    )


def in_one_line(refusal: dict[str, str]) -> str:
    return ": ".join(part for part in (refusal["what"], refusal["why"]) if part)


def answer(fd: int, said: dict[str, Any]) -> None:
    """Tell the waiting `start` how it went, and hang up."""
    try:
        os.write(fd, json.dumps(said).encode() + b"\n")
    except OSError:
        pass
    os.close(fd)


def _become(launch: Launch, output: int, parent: int) -> dict[str, str]:
    """Become the task; returns only the reason why that failed."""
    os.setsid()
    prctl.die_with_parent(signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(127)
    os.dup2(output, 1)
    os.dup2(output, 2)
    try:
        os.chdir(launch.cwd)
    except OSError as error:
        return _error(
            f"its working folder {launch.cwd} cannot be entered",
            reason(error),
            "sync the code again, or check `workdir` of this host",
        )
    _reset_signals()
    trust.restore_umask()
    try:
        _exec(launch.argv, launch.env)
    except (OSError, ValueError) as error:
        return _explain(error, launch)


def _reset_signals() -> None:
    """Nothing blocked and nothing ignored: both would be inherited over exec."""
    for signum in signal.valid_signals():
        try:
            signal.signal(signum, signal.SIG_DFL)
        except (OSError, ValueError):
            pass  # KILL and STOP
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def _exec(argv: list[bytes], env: dict[bytes, bytes]) -> NoReturn:
    """Like execvpe, with the task's own PATH; raise the most telling error."""
    if b"/" in argv[0]:
        os.execve(argv[0], argv, env)  # noqa: S606 - no shell is the point
    denied = None
    for folder in env.get(b"PATH", os.defpath.encode()).split(b":"):
        try:
            os.execve(os.path.join(folder or b".", argv[0]), argv, env)  # noqa: S606
        except (FileNotFoundError, NotADirectoryError):
            continue
        except PermissionError as error:
            if os.path.lexists(os.path.join(folder, argv[0])):  # else it is a folder that we may not search
                denied = error
    raise denied or FileNotFoundError(errno.ENOENT, "no such program on PATH")


def _explain(error: Exception, launch: Launch) -> dict[str, str]:
    program = os.fsdecode(launch.argv[0])[:500]
    what = f"{program} could not be started"
    code = error.errno if isinstance(error, OSError) else None
    why = os.strerror(code) if code else str(error)
    if code == errno.ENOENT and "/" not in program:
        path = os.fsdecode(launch.env.get(b"PATH", b""))[:500]
        return _error(what, f"no program of that name is on PATH ({path})", "give its path, or install it")
    if code == errno.ENOENT:
        hint = "is it in the synced tree, or ignored? is another one meant, by `python` in hosts.toml?"
        there = os.path.exists(program)
        return _error(
            what,
            "what its first line names is not there" if there else f"no such file, seen from {launch.cwd}",
            hint,
        )
    if code == errno.EACCES:
        return _error(what, why, f"chmod +x {program}, unless its file system is mounted noexec")
    if code == errno.ENOEXEC:
        return _error(
            what, "it is no program and names no interpreter", "begin it with a line like #!/bin/sh"
        )
    return _error(what, why, "")


def _error(what: str, why: str, hint: str) -> dict[str, str]:
    return {"what": what, "why": why, "hint": hint}
