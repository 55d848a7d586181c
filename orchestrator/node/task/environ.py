"""The environment and the command line of a task, as bytes that no shell interprets.

Bytes, because values must arrive unchanged, whatever the agent's locale is.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import termios
import zlib
from contextlib import suppress
from typing import Any, Dict, Mapping, NamedTuple

from ..base import network, procs
from ..base.descriptors import replace_file
from ..base.paths import Paths, TaskFolder, make_private

Environ = Dict[bytes, bytes]

# Variables of the login, or of the agent's Slurm step, that are wrong for a task. With them JAX, Lightning,
# mpi4py and TensorFlow's SlurmClusterResolver would start as process 0 of 1.
_OF_AGENT = tuple(
    b"SSH_ PMI_ PMI2_ PMIX_ SRUN_ SLURM_STEP SLURM_SRUN_ SLURM_PROCID SLURM_LOCALID SLURM_NODEID SLURM_GTIDS"
    b" SLURM_NTASKS SLURM_NPROCS SLURM_NNODES SLURM_TASK SLURM_DISTRIBUTION SLURM_MEM_BIND SLURM_LAUNCH_NODE"
    b" SLURM_CPU_BIND SLURM_MPI_TYPE SLURM_PMI SLURM_PRIO_PROCESS SLURM_UMASK SLURM_WORKING_CLUSTER".split()
)

# A newline first: the setup may end in a comment. PATH again: a login shell's profile may reset it.
_RUN_AFTER_SETUP = '\nPATH="$1${1:+:}$PATH"; shift; exec "$@"'


def encode(text: str) -> bytes:
    """Return the bytes of a value from JSON."""
    return text.encode("utf-8", "surrogateescape")


def build(
    base: Mapping[bytes, bytes], interpreter: str | None, env: Mapping[str, str], marks: Mapping[str, str]
) -> Environ:
    """Return the task's environment: the login's, our defaults, the job's, and marks, which identify it."""
    made = {name: value for name, value in base.items() if not name.startswith(_OF_AGENT)}
    _set_utf8(made)
    made[b"PYTHONUNBUFFERED"] = b"1"
    if interpreter is not None:
        _put_first(made, interpreter)
    made.update((encode(name), encode(value)) for name, value in env.items())
    made.update((encode(name), encode(value)) for name, value in marks.items())
    return made


def command(argv: list[str], setup: str | None, interpreter: str | None) -> list[bytes]:
    """Return the argv to exec; with a setup, a login bash runs that text before the command."""
    made = [encode(os.path.expanduser(argv[0])), *(encode(argument) for argument in argv[1:])]
    if not setup:
        return made
    folder = os.path.dirname(interpreter) if interpreter else ""
    return [b"bash", b"-lc", encode(setup + _RUN_AFTER_SETUP), b"bash", os.fsencode(folder), *made]


def of_task(spec: Mapping[str, Any], marked: Mapping[str, str]) -> tuple[list[bytes], Environ]:
    """Return the command line and the environment for a task's spec on this machine."""
    import shutil  # slow to import because of its compression modules

    setup, python, program = spec.get("setup"), spec.get("python"), None
    # After a setup, a bare name is resolved by the shell: `conda activate` changes what `python` is.
    if python and ("/" in python or not setup):
        program = shutil.which(os.path.expanduser(python), path=os.environ.get("PATH", os.defpath))
    interpreter = program and os.path.abspath(program)  # the link of a venv is not resolved
    made = build(os.environb, interpreter, {**_interfaces(spec), **(spec.get("env") or {})}, marked)
    return command(spec["argv"], setup, interpreter), made


def _interfaces(spec: Mapping[str, Any]) -> dict[str, str]:
    """Return variables that select the network of the task's address, unless the login has them."""
    names = [name for name in spec.get("interfaces") or () if encode(name) not in os.environb]
    carrier = network.carrier(spec["address"]) if names else None
    if carrier is None:
        return {}
    longer = any(name.startswith(carrier) and name != carrier for _, name in socket.if_nameindex())
    # NCCL treats a name as a prefix by default.
    return {name: "=" * (longer and name.startswith("NCCL_")) + carrier for name in names}


def _put_first(env: Environ, interpreter: str) -> None:
    folder = os.path.dirname(interpreter)
    rest = env.get(b"PATH", os.defpath.encode())
    env[b"PATH"] = os.fsencode(folder) + b":" + rest
    home = os.path.dirname(folder)
    is_venv = os.path.isfile(os.path.join(home, "pyvenv.cfg"))
    if is_venv:
        env[b"VIRTUAL_ENV"] = os.fsencode(home)
    if is_venv or os.path.isdir(os.path.join(home, "conda-meta")):
        env.pop(b"PYTHONHOME", None)  # of another Python; a venv's `activate` removes it, too


def _set_utf8(env: Environ) -> None:
    """Set a UTF-8 locale in the deciding variable, unless there is one."""
    deciding = next((name for name in (b"LC_ALL", b"LC_CTYPE", b"LANG") if env.get(name)), b"LANG")
    if b"utf-8" not in env.get(deciding, b"").lower().replace(b"utf8", b"utf-8"):
        env[deciding] = b"C.UTF-8"


class Launch(NamedTuple):
    """A task's parameters. They contain secrets: they are inherited through fork, never written to disk."""

    paths: Paths
    folder: TaskFolder
    argv: list[bytes]
    env: dict[bytes, bytes]
    cwd: str
    grace: float
    endless: bool  # runs until a keeper ends it, or, without a keeper, its lifeline is over
    lifeline: float | None  # seconds that it may run without a keeper; None: no limit
    log_cap: int | None
    fence: float | None  # seconds without output or a keeper, after which it ends; None: no limit
    terminal: list[int] | None  # rows and columns, for a task with a terminal


class Handles(NamedTuple):
    """Open descriptors, none of which the task inherits."""

    lock: int  # locked while the task lives: one open file, shared by guard and supervisor
    control: int  # the FIFO, opened read-write so that it never ends
    log_read: int  # a pipe, or the two ends of a terminal
    log_write: int
    answer: int  # where `start` waits for the result


def type_in(terminal: int, request: Mapping[str, Any]) -> None:
    """Send input to a terminal and set its size; invalid requests, and those without room, are dropped."""
    with suppress(OSError, ValueError, TypeError, KeyError, struct.error):
        if request["terminal"]:
            resize(terminal, request["terminal"])
        os.write(terminal, bytes.fromhex(request["typed"]))


def resize(terminal: int, size: list[int]) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", size[0], size[1], 0, 0))


# --- the Pythons of a task: our `sitecustomize` and its parts come first on their PYTHONPATH ---

# SIGRTMIN+15 of glibc. Programs use USR1, USR2 and ALRM, as do R, Java and Slurm scripts; no known program
# uses the middle of the real-time signals.
SIGNAL = 49
# Written in this order: if the last one exists, all do.
_PARTS = ("site_frameworks.py", "site_meeting.py", "site_standby.py", "sitecustomize.py")
_HOOK = os.path.join(os.path.dirname(os.path.dirname(__file__)), "hook")


def install_site(paths: Paths, spec: Mapping[str, Any]) -> str | None:
    """Create the folder with our `sitecustomize`, named by its version; None if none is requested.

    Also None if it cannot be created: a task can run without stacks.
    """
    env = spec.get("env") or {}
    if not (spec.get("stacks", True) or "ORCHESTRATE_KERAS" in env or "ORCHESTRATE_AUTO_SHARD" in env):
        return None
    try:  # as this package contains them, on disk or in memory
        read = __spec__.loader.get_data  # type: ignore[union-attr]
        sources = {name: read(os.path.join(_HOOK, name)) for name in _PARTS}
        # hashlib's libcrypto would add 4 ms to each start
        folder = paths.site(f"{zlib.crc32(b''.join(sources.values())):08x}")
        if not os.path.exists(os.path.join(folder, _PARTS[-1])):
            make_private(folder)
            for name, source in sources.items():
                replace_file(os.path.join(folder, name), source)
    except OSError:  # no room, or our package is no longer readable
        return None
    return folder


def make(spec: Mapping[str, Any], site: str | None, marks: Mapping[str, str]) -> tuple[list[bytes], Environ]:
    """Return the command line and the whole environment of a task, with these marks and our hook."""
    argv, env = of_task(spec, marks)
    if not spec.get("terminal") and "PYTHONBREAKPOINT" not in (spec.get("env") or {}):
        env[b"PYTHONBREAKPOINT"] = b"0"  # a prompt would read the end of /dev/null, and end the task
    if site is not None:
        rest = env.get(b"PYTHONPATH")  # an empty part would be the working folder
        env[b"PYTHONPATH"] = os.fsencode(site) + (b":" + rest if rest else b"")
    return argv, env


def launch(paths: Paths, folder: TaskFolder, spec: Mapping[str, Any], site: str | None) -> Launch:
    """Return the parameters of a task, with a new cookie."""
    marks = {
        procs.COOKIE: f"{folder.run}/{folder.attempt}/{folder.task}/{os.urandom(8).hex()}",
        "ORCHESTRATE_RUN": folder.run,
        "ORCHESTRATE_ATTEMPT": folder.attempt,
        "ORCHESTRATE_REPORT": folder.report,
    }
    if site is not None and spec.get("stacks", True):
        marks["ORCHESTRATE_STACKS"] = f"{SIGNAL}:{folder.stacks}"
    argv, env = make(spec, site, marks)
    cwd = os.path.join(os.path.expanduser("~"), os.path.expanduser(spec.get("cwd") or "~"))
    env[b"PWD"] = os.fsencode(cwd)  # as after `cd`
    return Launch(
        paths=paths,
        folder=folder,
        argv=argv,
        env=env,
        cwd=cwd,
        grace=float(spec.get("grace") or 0.0),
        endless=bool(spec.get("endless")),
        lifeline=spec.get("lifeline") or None,
        fence=spec.get("fence") or None,
        log_cap=spec.get("log_cap") or None,
        terminal=spec.get("terminal"),
    )
