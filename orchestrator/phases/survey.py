"""Look at machines that are in no inventory yet: addresses, GPUs, Pythons that train, room."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import msgspec

from orchestrator import wire
from orchestrator.config.mistakes import Wrong
from orchestrator.config.values import program, workdir
from orchestrator.errors import HostError
from orchestrator.fleet import Fleet, Session
from orchestrator.hostlists.machine import Machine, Room, TensorFlowPython

_SECONDS = 60.0
_MOST = 256 << 10  # bytes of an answer
_FAR = 2**62  # bytes; more than any disk has
_LONGEST = 1000  # characters of a path
_VERSION = re.compile(r"[0-9][A-Za-z0-9.+_-]{0,40}")

# Runs in the agent's Python, which may be any from 3.8 on, and writes nothing.
_LOOK = r"""
import glob, json, os, re, sys
CONDAS = ["~/miniconda3", "~/anaconda3", "~/miniforge3", "~/mambaforge", "/opt/conda"]
PLACES = [
    "~/.venvs/*", "~/venvs/*", "~/.virtualenvs/*", "~/venv*", "~/.venv", "~/env", "~/*/.venv", "~/*/venv",
    "~/.conda/envs/*", "~/.pyenv/versions/*", "/opt/venv", "/opt/*/venv", "/opt/*", "/usr/local",
]
PLACES += [place + part for place in CONDAS for part in ("", "/envs/*")]
NAME = re.compile(r"tensorflow(?:_cpu|_intel|_macos|_rocm)?-([0-9][^-]*)\.dist-info$")
DISKS = ["~", "/scratch", "/scratch/$USER", "/data", "/data/$USER", "/local", "/work", "/mnt/*", "/var/tmp"]
def tensorflow(folders):
    for folder in folders:
        for path in glob.glob(os.path.join(folder, "tensorflow*-*.dist-info")):
            found = NAME.match(os.path.basename(path))
            if found:
                return found.group(1)
pythons, seen = [], set()
version = tensorflow(folder for folder in sys.path if folder)
if version:
    pythons.append({"path": "python3", "tensorflow": version})
for place in PLACES:
    for prefix in sorted(glob.glob(os.path.expanduser(place))):
        python = os.path.join(prefix, "bin", "python")
        python = python if os.path.exists(python) else python + "3"
        if os.access(python, os.X_OK) and prefix not in seen:
            seen.add(prefix)
            version = tensorflow(glob.glob(os.path.join(prefix, "lib", "python3*", "site-packages")))
            if version:
                home = os.path.expanduser("~") + os.sep
                short = "~/" + python[len(home):] if python.startswith(home) else python
                pythons.append({"path": short, "tensorflow": version})
rooms = []
for place in DISKS:
    for folder in sorted(glob.glob(os.path.expanduser(os.path.expandvars(place)))):
        if os.path.isdir(folder) and os.access(folder, os.W_OK | os.X_OK):
            about = os.statvfs(folder)
            rooms.append({"path": "~" if place == "~" else folder, "free": about.f_bavail * about.f_frsize})
print(json.dumps({"pythons": pythons[:20], "rooms": rooms[:20]}))
"""


class _Answer(msgspec.Struct, frozen=True):
    pythons: tuple[TensorFlowPython, ...]
    rooms: tuple[Room, ...]


def survey(fleet: Fleet, hostnames: Mapping[str, str]) -> tuple[dict[str, Machine], dict[str, HostError]]:
    """Ask all connected hosts; `hostnames` says by which name or address each is reached from here."""
    output: dict[str, bytearray] = {name: bytearray() for name in fleet.sessions}
    for name, session in fleet.sessions.items():
        session.on_output = _into(output[name])
    looked = fleet.ask(_question, timeout=_SECONDS)
    facts = fleet.ask(_facts, timeout=_SECONDS, hosts=looked.good)
    machines = {}
    for name, fact in facts.good.items():
        hello = fleet.sessions[name].hello
        answer = _read(bytes(output[name]))
        machines[name] = Machine(
            hostname=hostnames[name],
            place=f"{hello.boot_id} {hello.netns}",
            addresses=tuple(interface.ip for interface in fact.addresses),
            gpus=tuple(gpu.name for gpu in fact.gpus),
            pythons=answer.pythons,
            rooms=answer.rooms,
        )
    return machines, {**looked.bad, **facts.bad}


def _question(session: Session) -> wire.Exec:
    return wire.Exec(argv=(session.host.agent_python, "-c", _LOOK))


def _facts(session: Session) -> wire.Facts:
    return wire.Facts(python=session.host.agent_python, r=False, workdir="~", packages=(), setup=None)


def _into(kept: bytearray) -> Callable[[wire.Pipe, bytes], None]:
    """Keeps what a command prints on stdout, and not more than an answer may be."""

    def keep(stream: wire.Pipe, data: bytes) -> None:
        if stream is wire.Pipe.OUT and len(kept) < _MOST:
            kept.extend(data)

    return keep


def _read(data: bytes) -> _Answer:
    """Read what a host says of itself; nothing where that is not in our form: it helps, and is not needed."""
    try:
        answer = msgspec.json.decode(data, type=_Answer)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _Answer((), ())
    return _Answer(
        tuple(
            one for one in answer.pythons if _fits(program, one.path) and _VERSION.fullmatch(one.tensorflow)
        ),
        tuple(
            one for one in answer.rooms if _fits(workdir, f"{one.path}/orchestrate") and 0 <= one.free <= _FAR
        ),
    )


def _fits(read: Callable[[str], str], value: str) -> bool:
    """Say if hosts.toml may have such a value."""
    try:
        return len(value) <= _LONGEST and bool(read(value))
    except Wrong:
        return False
