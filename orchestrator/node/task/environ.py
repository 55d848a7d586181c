"""The environment and the command line of a task, as bytes: nothing of them passes through a shell.

Bytes, because the agent's locale may be anything while the values must arrive exactly.
"""

from __future__ import annotations

import fcntl
import os
import re
import socket
import struct
import termios
import zlib
from typing import Any, Dict, Mapping, NamedTuple

from ..base import network
from ..base.descriptors import replace_file
from ..base.paths import Paths, TaskFolder, make_private

Environ = Dict[bytes, bytes]

# Of the login, or of the step of a Slurm job, that our agent is: of a task it would not be true. JAX,
# Lightning, mpi4py and TensorFlow's SlurmClusterResolver would take themselves for process 0 of 1.
_OF_AGENT = re.compile(
    rb"SSH_|PMIX?\d?_|SRUN_|SLURM_(STEP|SRUN_|PROCID$|LOCALID$|NODEID$|GTIDS$|NTASKS|NPROCS$|NNODES$|TASK"
    rb"|CPU_BIND|MEM_BIND|LAUNCH_NODE|DISTRIBUTION$|MPI_TYPE$|PMI|PRIO_PROCESS$|UMASK$|WORKING_CLUSTER$)"
)

# A newline first: the setup may end in a comment. PATH again: a login shell's profile may reset it.
_RUN_AFTER_SETUP = '\nPATH="$1${1:+:}$PATH"; shift; exec "$@"'


def encode(text: str) -> bytes:
    """The bytes of a value that came as JSON."""
    return text.encode("utf-8", "surrogateescape")


def build(
    base: Mapping[bytes, bytes], interpreter: str | None, env: Mapping[str, str], marks: Mapping[str, str]
) -> Environ:
    """The task's environment: the login's, our defaults, the job's own (wins), and the marks (always)."""
    made = {name: value for name, value in base.items() if not _OF_AGENT.match(name)}
    _set_utf8(made)
    made[b"PYTHONUNBUFFERED"] = b"1"
    if interpreter is not None:
        _put_first(made, interpreter)
    made.update((encode(name), encode(value)) for name, value in env.items())
    made.update((encode(name), encode(value)) for name, value in marks.items())
    return made


def command(argv: list[str], setup: str | None, interpreter: str | None) -> list[bytes]:
    """Return what to exec; the user's setup text is one argument of a login bash, the command its others."""
    made = [encode(os.path.expanduser(argv[0])), *(encode(argument) for argument in argv[1:])]
    if not setup:
        return made
    folder = os.path.dirname(interpreter) if interpreter else ""
    return [b"bash", b"-lc", encode(setup + _RUN_AFTER_SETUP), b"bash", os.fsencode(folder), *made]


def of_task(spec: Mapping[str, Any], marked: Mapping[str, str]) -> tuple[list[bytes], Environ]:
    """The command line and the environment for a task's spec on this machine."""
    import shutil  # its compressions take a while to load

    setup, python, found = spec.get("setup"), spec.get("python"), None
    # A bare name is the setup's to find: `conda activate` decides what `python` means after it.
    if python and ("/" in python or not setup):
        found = shutil.which(os.path.expanduser(python), path=os.environ.get("PATH", os.defpath))
    interpreter = found and os.path.abspath(found)  # a venv's link is not resolved
    made = build(os.environb, interpreter, {**_interfaces(spec), **(spec.get("env") or {})}, marked)
    return command(spec["argv"], setup, interpreter), made


def _interfaces(spec: Mapping[str, Any]) -> dict[str, str]:
    """The variables that lead libraries to the network of the task's address, where the login has none."""
    names = [name for name in spec.get("interfaces") or () if encode(name) not in os.environb]
    carrier = network.carrier(spec["address"]) if names else None
    if carrier is None:
        return {}
    longer = any(name.startswith(carrier) and name != carrier for _, name in socket.if_nameindex())
    # NCCL takes a name for the beginning of names, unless it is told not to.
    return {name: "=" * (longer and name.startswith("NCCL_")) + carrier for name in names}


def _put_first(env: Environ, interpreter: str) -> None:
    folder = os.path.dirname(interpreter)
    rest = env.get(b"PATH", os.defpath.encode())
    env[b"PATH"] = os.fsencode(folder) + b":" + rest
    home = os.path.dirname(folder)
    if os.path.isfile(os.path.join(home, "pyvenv.cfg")):
        env[b"VIRTUAL_ENV"] = os.fsencode(home)


def _set_utf8(env: Environ) -> None:
    """A UTF-8 locale, set where it decides, unless there is one."""
    deciding = next((name for name in (b"LC_ALL", b"LC_CTYPE", b"LANG") if env.get(name)), b"LANG")
    if b"utf-8" not in env.get(deciding, b"").lower().replace(b"utf8", b"utf-8"):
        env[deciding] = b"C.UTF-8"


class Launch(NamedTuple):
    """The task as data. It holds secrets: it is inherited through fork and never written down."""

    paths: Paths
    folder: TaskFolder
    argv: list[bytes]
    env: dict[bytes, bytes]
    cwd: str
    grace: float
    endless: bool  # ends only when a keeper says so: without one, when its lifeline is over
    lifeline: float | None  # None: lives without a keeper for ever
    log_cap: int | None
    fence: float | None  # ends when neither it nor a keeper was heard for so long; None: never
    terminal: list[int] | None  # rows and columns, of a task that has one


class Handles(NamedTuple):
    """Open descriptors, none of them inherited by the task."""

    lock: int  # locked: the task is not over. One open file shared by guard and supervisor
    control: int  # the FIFO, open for both ways so that it never ends
    log_read: int  # a pipe, or the two ends of a terminal
    log_write: int
    answer: int  # where `start` waits for how it went


def type_in(terminal: int, request: Mapping[str, Any]) -> None:
    """Type into a terminal and give it its size; what is no request of ours, or finds no room, is lost."""
    try:
        if request["terminal"]:
            resize(terminal, request["terminal"])
        os.write(terminal, bytes.fromhex(request["typed"]))
    except (OSError, ValueError, TypeError, KeyError, struct.error):
        pass


def resize(terminal: int, size: list[int]) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", size[0], size[1], 0, 0))


# --- the Pythons of a task: our `sitecustomize` and its part come first on their PYTHONPATH ---

# SIGRTMIN+15 of glibc. Programs use USR1, USR2 and ALRM, and R, Java and Slurm scripts do too; in the
# middle of the real-time signals nobody has been met.
SIGNAL = 49
# Written in this order: with the last one both are there.
_PARTS = ("site_frameworks.py", "sitecustomize.py")
_HOOK = os.path.join(os.path.dirname(os.path.dirname(__file__)), "hook")


def install_site(paths: Paths, spec: Mapping[str, Any]) -> str | None:
    """Make the folder with our `sitecustomize`, named by its version; None where none is wanted.

    Nor where it cannot be made: a task that cannot show its stacks is still a task.
    """
    env = spec.get("env") or {}
    if not (spec.get("stacks", True) or "ORCHESTRATE_KERAS" in env or "ORCHESTRATE_AUTO_SHARD" in env):
        return None
    try:  # as this package brought them along, on disk or in memory
        read = __spec__.loader.get_data  # type: ignore[union-attr]
        sources = {name: read(os.path.join(_HOOK, name)) for name in _PARTS}
        # hashlib's libcrypto would take 4 ms of each start
        folder = paths.site(f"{zlib.crc32(b''.join(sources.values())):08x}")
        if not os.path.exists(os.path.join(folder, _PARTS[-1])):
            make_private(folder)
            for name, source in sources.items():
                replace_file(os.path.join(folder, name), source)
    except OSError:  # no room; no longer readable where it came from
        return None
    return folder
