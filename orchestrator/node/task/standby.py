"""Standbys: tasks that are started ahead, so that their framework is imported before their attempt begins.

A standby (slot.py) holds no port, lease, or device. It ends with the agent that prepared it. Kept warm,
it ends when its time is over, or earlier if memory is short or another user's run needs the machine.

Its key covers everything that an import may depend on. If the key matches, `start` passes the task's
environment, folder, and locks to it. A standby that fails at this point is ended, and its supervisor starts
the task without it. A validation gets a fork of a task's standby, which has no device or server yet.
"""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import socket
import time
import zlib
from contextlib import suppress
from typing import Any, Callable, Container, Iterator, Mapping, Sequence

from ..base import lenient, locks, procs, trust
from ..base.descriptors import close_all, replace_file
from ..base.paths import Paths, make_private
from ..disk.removing import remove
from ..serve.agent import Agent, Request
from ..serve.frames import Json
from ..serve.loop import READ
from . import environ
from .environ import Launch
from .slot import CWD, MOMENT, Slot, free, guard, memory, near, send

# No import reads a task's rank and peers. JAX's must be set during the import if the task has them.
_OF_PLACE = re.compile(
    rb"ORCHESTRATE_(?!KERAS|AUTO_SHARD)|(TF_CONFIG|XDG_SESSION_\w+|KRB5CCNAME|PWD|MASTER_ADDR|MASTER_PORT"
    rb"|(LOCAL_|NODE_|GROUP_)?RANK|(LOCAL_)?WORLD_SIZE|COORDINATOR_(ADDRESS|PORT)|NUM_PROCESSES|PROCESS_ID"
    rb"|(KERASTUNER|PET|DTENSOR|KERAS_DISTRIBUTION)_\w+)$"
)
_OF_JAX = re.compile(rb"JAX_(COORDINATOR_ADDRESS|NUM_PROCESSES|PROCESS_ID)$")
_READ_BY_IMPORTS = re.compile(
    rb"(PYTHON|LD_|LC_|LANG|OMP_|MKL_|KMP_|OPENBLAS|GOTO|MALLOC|TF_|XLA|CUDA|NVIDIA|KERAS|TORCH|PYTORCH|JAX|GRPC|HDF5|PATH$"
    rb"|HOME$)"
)
# A guest (a validation in a fork) sets these itself.
_OF_GUEST = frozenset(("PYTHONDONTWRITEBYTECODE", "TF_CPP_MIN_LOG_LEVEL", "grpc_proxy"))
_COVERAGE = re.compile(rb"COV(ERAGE)?_")  # read by a .pth file, with paths below the working folder
_OPTIONS = frozenset((b"-u", b"-B", b"-O", b"-OO", b"-s", b"-q"))  # with which Python runs `sitecustomize`
_NEEDED = 600 << 20  # bytes of memory that a standby may use
_SPARE = 0.2  # of all memory: must stay free beside a new standby


# --- what has to match ---


def refusal(spec: Mapping[str, Any], argv: Sequence[bytes], env: Mapping[bytes, bytes]) -> str:
    """Return why no standby can be prepared for a task; "" if one can."""
    if not spec.get("imports"):
        return "no import is known"
    if spec.get("setup") or spec.get("terminal"):
        return "it has a setup or a terminal"
    python = shutil.which(os.fsdecode(argv[0]), path=os.fsdecode(env.get(b"PATH", b"")))
    try:
        with open(python or "", "rb") as file:
            if file.read(4) != b"\x7fELF":
                return "its Python is a script"
    except OSError:
        return "its Python was not found"
    if not os.path.isabs(python or ""):
        return "its Python has a relative path"
    if not _program(argv):
        return "its command is not a script or module of the code, or has unusual Python options"
    if any(part and not os.path.isabs(part) for part in env.get(b"PYTHONPATH", b"").split(b":")):
        return "PYTHONPATH has relative paths"
    if any(map(_COVERAGE.match, env)) or b"PYTHONINSPECT" in env:
        return "its environment has COVERAGE_* or PYTHONINSPECT"
    return ""


def _program(argv: Sequence[bytes]) -> bytes:
    """Return the script or module that a Python runs; b"" if it is not in the code."""
    rest = iter(argv[1:])
    for item in rest:
        if item in (b"-W", b"-X"):
            next(rest, None)
        elif item == b"-m":
            return next(rest, b"")
        elif not item.startswith(b"-"):
            return item if item.endswith(b".py") and not item.startswith(b"/") else b""
        elif item not in _OPTIONS:
            return b""
    return b""


def about(spec: Mapping[str, Any], argv: Sequence[bytes], env: Mapping[bytes, bytes]) -> Json:
    """Return everything that an import may depend on, with checksums instead of values."""
    free = {environ.encode(name) for name in spec.get("free") or ()}
    free -= {name for name in free if _READ_BY_IMPORTS.match(name)}
    if not any(name.startswith("tensorflow_datasets") for name in spec.get("imports") or ()):
        free.add(b"TFDS_DATA_DIR")  # read when that package is imported, and by nothing else
    kept = {
        name: b"" if _OF_JAX.match(name) else value
        for name, value in _with_presets(spec, env).items()
        if name not in free and not _OF_PLACE.match(name)
    }
    python = shutil.which(os.fsdecode(argv[0]), path=os.fsdecode(env.get(b"PATH", b""))) or ""
    entry = os.stat(python) if python else None
    names = [name for name in sorted(dir(resource)) if name[:7] == "RLIMIT_"]
    limits = [(name, resource.getrlimit(getattr(resource, name))) for name in names]
    return {
        "argv": [word.decode("latin-1") for word in argv],
        "imports": list(spec.get("imports") or ()),
        "python": [python, entry.st_ino, entry.st_mtime_ns] if entry else [],
        "limits": zlib.crc32(
            repr((limits, trust.user_mask(), os.nice(0), sorted(os.sched_getaffinity(0)))).encode()
        ),
        "env": {name.decode("latin-1"): zlib.crc32(value) for name, value in sorted(kept.items())},
    }


def _with_presets(spec: Mapping[str, Any], env: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """Return the environment in which the program imports."""
    made = dict(env)
    for item in spec.get("preset") or ():
        name, value = environ.encode(item["name"]), environ.encode(item["value"])
        made[name] = made.get(name, value) if item["default"] else value
    return made


def _key(described: Mapping[str, Any]) -> str:
    return f"{zlib.crc32(json.dumps(described, sort_keys=True).encode()):08x}"


def difference(mine: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """Return the difference between a task and a standby, as text."""
    names = sorted(mine["env"].items() ^ other["env"].items()) if mine["env"] != other["env"] else []
    if names:
        return f"the environment differs: {', '.join(dict.fromkeys(name for name, _ in names[:6]))}"
    parts = {"argv": "the command", "python": "the interpreter", "limits": "a limit of the login"}
    changed = [words for part, words in parts.items() if mine[part] != other[part]]
    return f"{changed[0]} differs" if changed else "the imports differ"


def _can_lend(other: Mapping[str, Any], mine: Mapping[str, Any]) -> bool:
    """Return True if a fork of this standby can run a guest: one of our own modules."""
    free = {*_OF_GUEST, "ORCHESTRATE_KERAS", "ORCHESTRATE_KERAS_OF", "ORCHESTRATE_AUTO_SHARD"}
    if not any("keras" in name for name in other["imports"]):
        free.add("TF_USE_LEGACY_KERAS")  # read when tf.keras is
    differ = {name for name, _ in mine["env"].items() ^ other["env"].items()}
    same = all(mine[part] == other[part] for part in ("python", "limits"))
    return same and mine["imports"][0] in other["imports"] and differ <= free


# --- the agent's side ---


def prepare(agent: Agent, request: Request) -> Json:
    """Start a standby for each task without one; `spare` ones only if there is enough memory."""
    paths, made, reasons = agent.paths, 0, []
    _tidy(paths)
    waiting = list(_standbys(paths))
    there = [name.partition("-")[0] for name, _ in waiting]
    programs = agent.rooms["standby programs"] = {}  # by key
    for spec in request["specs"]:
        site = environ.install_site(paths, spec) if spec.get("stacks", True) else None
        marks = {"ORCHESTRATE_REPORT": "", "ORCHESTRATE_STACKS": ""}
        argv, env = environ.make(spec, site, marks)
        why = refusal(spec, argv, env) or ("" if site else "our `sitecustomize` is off or cannot be written")
        if not why and request["spare"] and free() < _SPARE + (made + 1) * _NEEDED / memory()[0]:
            why = "memory is short"
        if why:
            reasons.append(why)
            continue
        described = about(spec, argv, env)
        programs[_key(described)] = _program(argv)
        if spec.get("guest") and any(_can_lend(other, described) for _, other in waiting):
            continue
        if _key(described) in there:
            there.remove(_key(described))
        else:
            _begin(agent, described, spec, env)
            made += 1
    return {"made": made, "why": sorted(set(reasons))}


def keep(agent: Agent, request: Request) -> Json:
    """Let this agent's standbys outlive it for some time; return those that its tasks can use.

    Earlier standbys of the same programs, for other arguments or another environment, are ended.
    """
    named = {name: str(request[name]) for name in ("owner", "machine")}
    order = json.dumps({"seconds": float(request["seconds"]), **named}).encode() + b"\n"
    for fd in agent.rooms.pop("standby", []):
        with suppress(OSError):  # it has ended
            os.write(fd, order)
        os.close(fd)
    programs = agent.rooms.get("standby programs", {})
    for name, described in _standbys(agent.paths):
        program = _program([word.encode("latin-1") for word in described["argv"]])
        if program in programs.values() and name.partition("-")[0] not in programs:
            _end(agent.paths, name)
    return {"waiting": look(agent.paths, programs)}


def look(paths: Paths, keys: Container[str] | None = None) -> list[Json]:
    """Return the waiting standbys, or those with these keys, and their memory (shared pages in part)."""
    waiting = []
    for name, described in _standbys(paths):
        if keys is not None and name.partition("-")[0] not in keys:
            continue
        pid = int(procs.text(f"{paths.standby}/{name}/leader") or 0)
        ready = os.path.exists(f"{paths.standby}/{name}/ready")
        shares = procs.facts(pid, "smaps_rollup").get(b"Pss", b"0 kB").split() if ready else [b"0"]
        argv = " ".join(described["argv"])[:200]
        waiting.append({"command": argv, "memory": int(shares[0]) << 10})
    return waiting


def end_all(paths: Paths) -> int:
    """End the waiting standbys; return their number."""
    ended = sum(_end(paths, name) for name, _ in _standbys(paths))
    _tidy(paths)
    return ended


def _end(paths: Paths, name: str) -> bool:
    try:
        with _connect(paths, name) as sock:
            sock.settimeout(MOMENT)
            sock.sendall(b'{"want": "end"}\n')
            while sock.recv(64):
                pass
        return True
    except OSError:
        return False  # it has just ended, or was taken


def reserve(agent: Agent, spec: Mapping[str, Any], then: Callable[[socket.socket | None, str], None]) -> None:
    """Call `then` with the socket of a standby reserved for a task, or with the reason there is none."""
    paths = agent.paths
    argv, env = environ.make(spec, environ.install_site(paths, spec), {})
    why = refusal(spec, argv, env)
    if why:
        then(None, why)
        return
    mine = about(spec, argv, env)
    key = _key(mine)
    there = list(_standbys(paths))
    names = [name for name, _ in there if name.startswith(key)]
    want = b'{"want": "take"}\n'
    if spec.get("guest") and not names:
        names, want = [name for name, other in there if _can_lend(other, mine)], b'{"want": "lend"}\n'
    alike = [described for _, described in there if described["argv"] == mine["argv"]] or [
        item for _, item in there
    ]
    why = difference(mine, alike[0]) if alike and not names else "none was ready"

    def attempt() -> None:
        while names:
            try:
                sock = _connect(paths, names.pop(0))
                sock.sendall(want)
            except OSError:
                continue
            open_ = [True]

            def on_reply(sock: socket.socket = sock, open_: list[bool] = open_) -> None:
                if not open_:
                    return
                open_.clear()
                agent.loop.unwatch(sock.fileno())
                try:
                    is_reserved = sock.recv(64, socket.MSG_DONTWAIT).endswith(b"\n")
                except OSError:
                    is_reserved = False
                if is_reserved:
                    then(sock, "")
                else:
                    sock.close()
                    attempt()

            agent.loop.watch(sock.fileno(), READ, on_reply)
            agent.loop.after(MOMENT, on_reply)
            return
        then(None, why)

    attempt()


def give(sock: socket.socket, launch: Launch, claim: Sequence[int], leases: Sequence[int]) -> int | None:
    """Turn a reserved standby into a task; return the pipe for its reply, or None if it has ended."""
    reply, answer = os.pipe()
    fields = launch._replace(
        paths=launch.paths.root,  # type: ignore[arg-type]
        folder=list(launch.folder),  # type: ignore[arg-type]
        argv=[word.decode("latin-1") for word in launch.argv],  # type: ignore[misc]
        env={name.decode("latin-1"): value.decode("latin-1") for name, value in launch.env.items()},  # type: ignore[misc]
    )
    data = json.dumps(fields._asdict()).encode() + b"\n"
    try:
        sock.settimeout(MOMENT)
        send(sock, data, [*claim, answer, *leases])
        return reply
    except OSError:
        os.close(reply)
        return None
    finally:
        os.close(answer)
        sock.close()


def _begin(
    agent: Agent, described: Mapping[str, Any], spec: Mapping[str, Any], env: dict[bytes, bytes]
) -> None:
    procs.load()
    paths = agent.paths
    folder = f"{paths.standby}/{_key(described)}-{os.urandom(4).hex()}"
    make_private(f"{folder}/{CWD}")
    lock = os.open(f"{folder}/lock", os.O_RDWR | os.O_CREAT, 0o600)
    locks.take(lock)
    listener = socket.socket(socket.AF_UNIX)
    owner, ours = os.pipe()
    log = os.pipe()
    report = {b"ORCHESTRATE_REPORT": os.fsencode(f"{folder}/report")}
    slot = Slot(
        paths,
        folder,
        [word.encode("latin-1") for word in described["argv"]],
        {**_with_presets(spec, env), **report},
        ",".join(spec["imports"]),
        owner,
    )
    try:
        with near(folder) as path:
            listener.bind(path)
        listener.listen(4)
        replace_file(f"{folder}/about.json", json.dumps(described).encode())
        kept = [lock, listener.fileno(), owner, *log]
        procs.detach(lambda: guard(slot, listener, log), kept)
        agent.rooms.setdefault("standby", []).append(ours)
        ours = -1
    finally:
        listener.close()
        close_all(lock, owner, *log, *([ours] if ours >= 0 else []))


def _connect(paths: Paths, name: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.setblocking(False)
        with near(f"{paths.standby}/{name}") as path:
            sock.connect(path)
    except OSError:
        sock.close()
        raise
    return sock


def _standbys(paths: Paths) -> Iterator[tuple[str, Json]]:
    """Yield the name and description of each standby that waits for a task."""
    for name in sorted(lenient.listed(paths.standby)):
        folder = f"{paths.standby}/{name}"
        try:
            described = json.loads(procs.text(f"{folder}/about.json") or "null")
            if described and locks.is_taken(f"{folder}/lock"):
                yield name, described
        except (OSError, ValueError):
            continue


def _tidy(paths: Paths) -> None:
    for name in lenient.listed(paths.standby):
        folder = f"{paths.standby}/{name}"
        old = time.time() - lenient.changed(folder, time.time()) > 10.0
        try:
            if old and not locks.is_taken(f"{folder}/lock"):
                remove(folder)
        except OSError:
            continue
