"""TensorBoard on this machine: the one that is here, else one that uv fetches once and keeps in its cache."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from orchestrator.envs import uv
from orchestrator.errors import ClusterError
from orchestrator.node.base import prctl
from orchestrator.node.stock.uv import environment

# setuptools 81 is the last that brings pkg_resources, which TensorBoard imports and does not ask for.
_FETCHED = ("tool", "run", "--from", "tensorboard>=2.16", "--with", "setuptools<82", "tensorboard")
_URL = re.compile(r"(http://\S+)\s")
_LOG = ".tensorboard.log"
_LAST = 1000  # characters of its words that an error has
_UP = 180.0  # seconds; an environment with TensorFlow is imported as a whole
_LOOK = 0.1
_END = 5.0


def program() -> list[str]:
    """Find it beside the Python that runs us or on the PATH, else have uv fetch it. Raise ClusterError."""
    beside = Path(sys.executable).with_name("tensorboard")
    path = str(beside) if os.access(beside, os.X_OK) else shutil.which("tensorboard")
    if path:
        return [path]
    uv.run("fetch TensorBoard", [*_FETCHED, "--version"])
    return [str(uv.binary()), *_FETCHED]


class TensorBoard:
    """TensorBoard at work on a folder, for this machine alone."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self._process, self._log = process, log

    def url(self) -> str:
        """Return where it answers, once it does. Raise ClusterError when it does not come up."""
        deadline = time.monotonic() + _UP
        while not (match := _URL.search(self._log.read_text(errors="replace"))):
            if not self.alive or time.monotonic() > deadline:
                raise ClusterError("TensorBoard did not start", why=self.last_words())
            time.sleep(_LOOK)
        return match[1]

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def last_words(self) -> str:
        return self._log.read_text(errors="replace")[-_LAST:].strip()


@contextlib.contextmanager
def show(argv: Sequence[str], folder: Path, port: int, every: float) -> Iterator[TensorBoard]:
    """Have it at work while the block runs; it ends with us, however we end. `port` 0 is any that is free."""
    command = [*argv, "--logdir", str(folder), "--host", "127.0.0.1", "--port", str(port)]
    command += ["--reload_interval", str(max(1, round(every))), "--reload_multifile", "true"]
    linux = sys.platform == "linux"
    if linux:
        prctl.load()
    log = folder / _LOG
    try:
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**environment(os.environ), "PYTHONUNBUFFERED": "1", "TF_CPP_MIN_LOG_LEVEL": "3"},
                start_new_session=True,
                preexec_fn=_die_with_us if linux else None,  # noqa: PLW1509 - no thread of ours runs yet
            )
    except OSError as error:
        raise ClusterError("cannot start TensorBoard", why=f"{command[0]}: {error.strerror}") from error
    try:
        yield TensorBoard(process, log)
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_END)
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _die_with_us() -> None:
    prctl.die_with_parent(signal.SIGTERM)
