"""The step from a machine into the container of a run: found or started there, then entered.

It is the first half of an agent's start where a host has `container`. The process that did it becomes the
engine's `exec`, so that our command line runs again, inside, over the same stdin and stdout. What else an
engine does for us (pulling, saving and loading an image) is another step of the same kind.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from typing import Any, Container, Dict, Iterator, List, Tuple

from ..base import lenient, trust
from ..base.fault import NodeError, unwritable
from ..base.machine import lingers
from ..base.paths import absolute, open_root
from ..base.program import Said, listen
from . import frames

ENGINES = ("podman", "docker", "apptainer", "singularity")
LABEL, OWNER = "orchestrate.run", "orchestrate.uid"
_SHORT, _LONG = 60.0, 900.0  # seconds; rootless podman copies an image when it is used first
_TRIES, _PAUSE = 50, 0.2  # while another controller starts the same one, or the engine still removes it
_GONE = r"no such (image|object|container)|image not known|does not exist|no container with name"

# The first process in a container ends it, and with it whatever is inside, when nothing else has been alive
# there for half a second (at first 30 s): neither an agent of a controller nor the guard of a task.
WARDEN = """
import os, signal, time
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
left = 300
while left:
    time.sleep(0.1)
    left -= 1
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass
    try:
        os.kill(-1, 0)
        left = 5
    except ProcessLookupError:
        pass
    except PermissionError:
        left = 5
"""
_WATCH = ["python3", "-I", "-S", "-c", WARDEN]

Spec = Dict[str, Any]


def main(config: Spec) -> int:
    """Do one step, and report it; then become the program that goes on, if there is one."""
    trust.tighten_umask()
    os.set_blocking(0, True)  # our loader has not left it so, and the next program may expect it
    spec = config["container"]
    try:
        facts, argv = _step(spec, config.get("state"))
    except NodeError as error:
        facts, argv = {"trouble": error.kind, "engine": error.what, "why": error.why}, []
    try:
        os.write(1, frames.MARKER + json.dumps(facts).encode() + b"\n")
    except OSError:  # the controller is gone
        if "started" in facts:
            end(facts["engine"], spec["name"])
        return 1
    if facts.get("trouble"):
        return 1
    if spec["step"] == "load":
        return _load(facts["engine"], spec)
    if argv:
        os.execvp(argv[0], argv)  # noqa: S606 - that is what it is for
    return 0


def _step(spec: Spec, state: "str | None") -> "Tuple[Dict[str, str], List[str]]":
    """Return the facts for the controller, and what to execute."""
    step, engines = spec["step"], [name for name in ENGINES if shutil.which(name)]
    engines = [
        name for name in engines if spec["engine"] in ("", name) or (spec["engine"], name) == ENGINES[2:]
    ]
    if step == "enter":
        name = next((name for name in engines if _is_running(name, spec["name"])), None)
        if name is None and not spec["start"]:
            return {}, [os.path.expanduser(spec["outside"][0]), *spec["outside"][1:]]
        if name is not None:
            return {"engine": name}, [*_exec(name, spec), *spec["inside"]]
    if step == "leave":
        for name in engines:
            end(name, spec["name"])
        return {}, []
    if not engines:
        raise NodeError("no-engine", spec["engine"] or "podman", "")
    images = {name: _image(name, spec, careful=len(engines) == 1) for name in engines}
    name = next((name for name in engines if images[name]), engines[0])
    facts = {"engine": name, "image": images[name], "machine": os.uname().machine}
    if step == "enter":
        if not images[name]:
            raise NodeError("no-image", name)
        facts.update(_start(name, spec, state))
        return facts, [*_exec(name, spec), *spec["inside"]]
    if step == "pull":
        return facts, _pull(name, spec)
    if step == "save":
        return facts, ["cat", _file(spec)] if is_sif(name) else [name, "save", spec["image"]]
    return facts, []


def is_sif(engine: str) -> bool:
    """Return True for engines whose image is a file: apptainer, formerly singularity."""
    return engine in ENGINES[2:]


def _file(spec: Spec) -> str:
    """The file of an image: apptainer has no store of its own."""
    image = spec["image"]
    if image.startswith(("/", "~")) or image.endswith(".sif"):
        return absolute(image)
    return os.path.join(absolute(spec["workdir"]), "images", re.sub(r"[^\w.-]+", "_", image) + ".sif")


def _run(argv: "List[str]", seconds: float = _SHORT) -> Said:
    try:
        return listen([os.fsencode(word) for word in argv], dict(os.environb), seconds)
    except OSError as error:
        return Said(b"", os.fsencode(error.strerror or str(error)), 127, "")


def _words(output: Said) -> str:
    lines = [line.strip() for line in output.err.decode("utf-8", "replace").splitlines() if line.strip()]
    lines = [line for line in lines if not re.match(r"(Usage|See|Run) ?[':]", line)]
    return output.why or "\n".join(lines[-4:]) or f"it ended with {output.status}"


def _image(engine: str, spec: Spec, *, careful: bool) -> str:
    """Return its id and processor, "" where it is missing; `careful`: raise NodeError for other failures."""
    if is_sif(engine):
        return "sif any [file]" if os.path.exists(_file(spec)) else ""
    output = _run(
        [engine, "image", "inspect", "--format", "{{.Id}} {{.Architecture}} {{.RepoDigests}}", spec["image"]]
    )
    if output.status == 0:
        return output.text.strip().replace("sha256:", "")
    if careful and not re.search(_GONE, _words(output), re.IGNORECASE):
        raise NodeError("failed", engine, _words(output))
    return ""


def _is_running(engine: str, name: str) -> bool:
    if is_sif(engine):
        return name in _run([engine, "instance", "list", name]).text.split()
    return _state(engine, name) == "running"


def _state(engine: str, name: str) -> str:
    output = _run([engine, "container", "inspect", "--format", "{{.State.Status}}", name])
    return output.text.strip() if output.status == 0 else ""


def leftover(
    runs: "Container[str]", alive: "Container[str]"
) -> "Iterator[Tuple[str, str, Dict[str, object]]]":
    """Yield engine, name, and facts of this user's containers that no run needs any more.

    A container that runs holds something alive: it is left over if its run is known here and over.
    """
    form = '{{.Name}} {{.State.Status}} {{.State.Pid}} {{index .Config.Labels "%s"}}' % LABEL
    for engine in (name for name in ENGINES[:2] if shutil.which(name)):
        names = _run(
            [engine, "ps", "--all", "--quiet", "--filter", f"label={OWNER}={os.getuid()}"]
        ).text.split()
        rows = _run([engine, "container", "inspect", "--format", form, *names]).text if names else ""
        for path, status, pid, run in (line.split() for line in rows.splitlines() if line.count(" ") == 3):
            if run not in alive and (status != "running" or run in runs):
                name = path.lstrip("/")
                yield engine, name, {"pid": int(pid), "argv0": name, "run": run, "task": ""}


def end(engine: str, name: str) -> None:
    """End a container with its processes; a missing one is not an error."""
    if is_sif(engine):
        _run([engine, "instance", "stop", "--force", name])
    else:
        _run([engine, "rm", "--force", name])


def _exec(engine: str, spec: Spec) -> "List[str]":
    if is_sif(engine):
        return [engine, "exec", "--cleanenv", "--pwd", "/", f"instance://{spec['name']}"]
    return [engine, "exec", "--interactive", spec["name"]]


def _start(engine: str, spec: Spec, state: "str | None") -> "Dict[str, str]":
    kind = "podman" if "podman" in _run([engine, "--version"]).text else engine  # a `docker` may be podman
    argv = [engine, *(_instance if is_sif(kind) else _container)(kind, spec, state)]
    for _ in range(_TRIES):
        output = _run(argv, _LONG)
        if output.status == 0:
            break
        if not re.search(r"already (in use|exists)|removal of container", _words(output)):
            raise NodeError("failed", engine, _words(output))
        if _state(engine, spec["name"]) in ("exited", "dead", "stopped"):  # of a machine that lost power
            end(engine, spec["name"])
        if _is_running(engine, spec["name"]):
            break
        time.sleep(_PAUSE)
    if is_sif(kind):
        _watch(engine, spec["name"])
    return {"started": "", "ends": "yes" if kind == "podman" and not lingers() else ""}


def _mounts(spec: Spec, state: "str | None", uid: int) -> "List[Tuple[str, str]]":
    """Return what to mount, (outside, inside): workdir, state; unless as root, a home in the workdir."""
    root, workdir, home = open_root(state).root, absolute(spec["workdir"]), os.path.expanduser("~")
    mounts = [(workdir, workdir), (root, absolute(state or f"/var/tmp/orchestrate-{uid}"))]
    try:
        os.makedirs(workdir, exist_ok=True)
        if uid and home != "/":
            mounts.insert(0, (os.path.join(workdir, "home"), home))
            for _, inside in mounts:  # the engine would make what is missing below it as root
                below = os.path.relpath(inside, home)
                os.makedirs(
                    os.path.join(workdir, "home", "" if below.startswith("..") else below), exist_ok=True
                )
    except OSError as error:
        raise unwritable(workdir, error) from None
    return mounts


def _gpus(spec: Spec, words: "List[str]") -> "List[str]":
    """The engine's option for all GPUs, where the machine has any and the user has not given another."""
    own = any("gpu" in word or "nvidia" in word for word in spec["args"])
    return words if os.path.exists("/dev/nvidiactl") and not own else []


def _container(kind: str, spec: Spec, state: "str | None") -> "List[str]":
    uid, user, memory = os.getuid(), lenient.user(os.getuid()), os.statvfs("/dev/shm")
    words = ["run", "--detach", "--rm", "--name", spec["name"], "--label", f"{LABEL}={spec['run']}"]
    words += ["--label", f"{OWNER}={os.getuid()}"]
    words += ["--network", "host", "--workdir", "/", "--security-opt", "label=disable"]
    words += ["--shm-size", f"{memory.f_blocks * memory.f_frsize}b"]
    if kind == "podman":  # which limits a container to 2048 processes and threads
        words += ["--pids-limit=-1", "--annotation", "run.oci.keep_original_groups=1"]
        words += ["--userns=keep-id"] if uid else []
        words += _gpus(spec, ["--device", "nvidia.com/gpu=all"])
    else:
        options = _run([kind, "info", "--format", "{{.SecurityOptions}}"]).text
        uid = 0 if "name=rootless" in options else uid  # it is the user, outside
        words += ["--userns=host"] if "name=userns" in options else []
        words += ["--user", f"{uid}:{os.getgid() if uid else 0}", *_gpus(spec, ["--gpus", "all"])]
        words += [word for group in os.getgroups() if uid for word in ("--group-add", str(group))]
    for name, value in (("HOME", os.path.expanduser("~")), ("USER", user), ("LOGNAME", user)):
        words += ["--env", f"{name}={value}"]
    for outside, inside in _mounts(spec, state, uid):
        words += ["--mount", f"type=bind,source={outside},target={inside}"]
    return [*words, *spec["args"], "--entrypoint", _WATCH[0], spec["image"], *_WATCH[1:]]


def _instance(_kind: str, spec: Spec, state: "str | None") -> "List[str]":
    words = ["instance", "start", "--cleanenv", "--writable-tmpfs", "--no-home", *_gpus(spec, ["--nv"])]
    for outside, inside in _mounts(spec, state, os.getuid()):
        words += ["--bind", f"{outside}:{inside}"]
    return [*words, *spec["args"], _file(spec), spec["name"]]


def _watch(engine: str, name: str) -> None:
    """Have an instance stopped once nothing is alive in it: no process of ours is its first one."""
    text = '"$0" exec "instance://$1" "${@:2}"; "$0" instance stop --force "$1"'
    subprocess.Popen(
        ["bash", "-c", text, engine, name, *_WATCH],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _pull(engine: str, spec: Spec) -> "List[str]":
    if not is_sif(engine):
        return [engine, "pull", spec["image"]]
    os.makedirs(os.path.dirname(_file(spec)), exist_ok=True)
    source = spec["image"] if "://" in spec["image"] else f"docker://{spec['image']}"
    text = '"$0" pull --force "$1.$$" "$2" && mv "$1.$$" "$1"'  # hosts may share the folder
    return ["sh", "-c", text, engine, _file(spec), source]


def _load(engine: str, spec: Spec) -> int:
    """Take an image from stdin; give it its name where the engine chose another one."""
    if is_sif(engine):
        path = _file(spec)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        part = f"{path}.{os.getpid()}"
        with open(part, "wb") as file:
            shutil.copyfileobj(os.fdopen(0, "rb", closefd=False), file)
        os.replace(part, path)
        return 0
    done = subprocess.run([engine, "load"], stdout=subprocess.PIPE, check=False)
    loaded = re.findall(rb"Loaded image(?:\(s\))?: (\S+)", done.stdout)
    if done.returncode == 0 and loaded and not _image(engine, spec, careful=False):
        done = subprocess.run([engine, "tag", loaded[-1], spec["image"]], check=False)
        _run([engine, "rmi", os.fsdecode(loaded[-1])])  # which only takes the other name away
    return done.returncode
