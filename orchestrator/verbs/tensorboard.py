"""`tensorboard`: what a run's tasks write for TensorBoard, live in a local browser."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NoReturn

from orchestrator import processes
from orchestrator.envs import uv
from orchestrator.errors import ClusterError, SeveralErrors
from orchestrator.fleet import Fleet
from orchestrator.model import Host, RunPlan
from orchestrator.node.base import procs
from orchestrator.node.stock.uv import environment
from orchestrator.requests import TensorboardRequest
from orchestrator.store import RunFolder
from orchestrator.sync.files import EventMirror, work_folder
from orchestrator.verbs import Caller
from orchestrator.verbs.asking import unconnected
from orchestrator.verbs.finding import source_of

_EVERY = 3.0  # seconds between two checks
_AGAIN = 15.0  # seconds until a lost host is retried
# setuptools 81 is the last with pkg_resources, which TensorBoard imports without declaring it.
_FETCHED = ("tool", "run", "--from", "tensorboard>=2.16", "--with", "setuptools<82", "tensorboard")
_LAST = 1000  # characters of its output in an error
_UP = 180.0  # seconds; in an environment with TensorFlow it imports all of that
_LOOK = 0.1
_END = 5.0


def follow(
    folder: RunFolder, request: TensorboardRequest, caller: Caller, ready: Callable[[str, int], None]
) -> NoReturn:
    """Mirror event files for a TensorBoard until it ends; `ready` gets its URL and the number of files."""
    plan = folder.read_plan()
    names = [source_of(plan, request.source)] if request.source else [host.name for host in plan.hosts]
    hosts = [plan.host(name) for name in names]
    program = _program()
    with (
        tempfile.TemporaryDirectory(prefix="orchestrate-tensorboard-") as made,
        _tensorboard(program, Path(made), request.port) as (process, log),
        unconnected(hosts, caller) as fleet,
    ):
        mirrors = {
            host.name: EventMirror(Path(made) / host.name, _root(plan, host, request.logdir))
            for host in hosts
        }
        tried = time.monotonic()
        _catch_up(fleet, mirrors, hosts, caller)
        ready(_url(process, log), sum(len(mirror.sizes) for mirror in mirrors.values()))
        while process.poll() is None:
            time.sleep(_EVERY)
            missing = [host for host in hosts if host.name not in fleet.sessions]
            if missing and time.monotonic() - tried > _AGAIN:
                tried = time.monotonic()
            else:
                missing = []
            _catch_up(fleet, mirrors, missing, caller)
        raise ClusterError("TensorBoard has ended", why=_last_words(log))


def _program() -> list[str]:
    """Find TensorBoard next to the current Python or on the PATH; otherwise have uv fetch it."""
    search = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    if path := shutil.which("tensorboard", path=search):
        return [path]
    uv.run("fetch TensorBoard", [*_FETCHED, "--version"])
    return [str(uv.binary()), *_FETCHED]


@contextlib.contextmanager
def _tensorboard(
    argv: Sequence[str], folder: Path, port: int
) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """Run TensorBoard on a folder, for this machine only; it ends with the block, or with us.

    Its output goes to the log that is yielded.
    """
    procs.load()
    dies = partial(procs.die_with_parent, signal.SIGTERM)
    log = folder / ".tensorboard.log"
    options = ["--logdir", str(folder), "--host", "127.0.0.1", "--port", str(port)]
    options += ["--reload_interval", str(round(_EVERY)), "--reload_multifile", "true"]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*argv, *options],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**environment(os.environ), "PYTHONUNBUFFERED": "1", "TF_CPP_MIN_LOG_LEVEL": "3"},
            start_new_session=True,
            preexec_fn=dies if sys.platform == "linux" else None,  # noqa: PLW1509 - no threads yet
        )
    try:
        yield process, log
    finally:
        processes.kill(process, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_END)
        processes.kill(process)
        process.wait()


def _url(process: subprocess.Popen[bytes], log: Path) -> str:
    """Return its URL once it responds. Raise ClusterError if it does not start."""
    deadline = time.monotonic() + _UP
    while not (match := re.search(r"(http://\S+)\s", log.read_text(errors="replace"))):
        if process.poll() is not None or time.monotonic() > deadline:
            raise ClusterError("TensorBoard did not start", why=_last_words(log))
        time.sleep(_LOOK)
    return match[1]


def _last_words(log: Path) -> str:
    return log.read_text(errors="replace")[-_LAST:].strip()


def _catch_up(
    fleet: Fleet, mirrors: Mapping[str, EventMirror], hosts: Sequence[Host], caller: Caller
) -> None:
    """Connect to `hosts`, and fetch new data from every connected host; raise if none can be reached."""
    bad = fleet.connect(hosts)
    if len(bad) == len(mirrors):
        raise SeveralErrors(bad.values())
    taken = fleet.each(fleet.sessions, lambda session: mirrors[session.host.name].catch_up(session))
    for name, error in {**bad, **taken.bad}.items():
        fleet.let_go(name)
        caller.tell(f"warning: {name} {error.in_one_line}; tried again every {_AGAIN:g} s")


def _root(plan: RunPlan, host: Host, logdir: str | None) -> str:
    """Return the folder to search on a host: the run's work folder, or one as its tasks would name it."""
    if logdir is None or logdir.startswith(("/", "~")):
        return logdir or work_folder(host.workdir, plan.folder)
    return f"{work_folder(host.workdir, plan.folder, plan.cwd)}/{logdir}"
