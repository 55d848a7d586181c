"""TensorBoard on this machine: the one that is here, else one that uv fetches once and keeps in its cache."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from orchestrator.envs import uv
from orchestrator.errors import ClusterError
from orchestrator.node.base import prctl
from orchestrator.node.stock.uv import environment

# setuptools 81 is the last that brings pkg_resources, which TensorBoard imports and does not ask for.
_FETCHED = ("tool", "run", "--from", "tensorboard>=2.16", "--with", "setuptools<82", "tensorboard")
_URL = re.compile(rb"(http://\S+)")
_LINES = 8
_UP = 180.0  # seconds; an environment with TensorFlow is imported as a whole
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
    """TensorBoard at work on a folder, for this machine alone; ends with us, however we end."""

    def __init__(self, argv: Sequence[str], folder: Path, port: int, every: float) -> None:
        """Start it; `port` 0 is any that is free. Raise ClusterError."""
        command = [*argv, "--logdir", str(folder), "--host", "127.0.0.1", "--port", str(port)]
        command += ["--reload_interval", str(max(1, round(every))), "--reload_multifile", "true"]
        linux = sys.platform == "linux"
        if linux:
            prctl.load()
        self._lines: deque[bytes] = deque(maxlen=_LINES)
        self._url = ""
        self._decided = threading.Event()
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={**environment(os.environ), "PYTHONUNBUFFERED": "1", "TF_CPP_MIN_LOG_LEVEL": "3"},
                start_new_session=True,
                preexec_fn=_die_with_us if linux else None,  # noqa: PLW1509 - no thread of ours runs yet
            )
        except OSError as error:
            raise ClusterError("cannot start TensorBoard", why=f"{command[0]}: {error.strerror}") from error
        threading.Thread(target=self._read, name="tensorboard", daemon=True).start()

    def url(self) -> str:
        """Return where it answers, once it does. Raise ClusterError when it does not come up."""
        self._decided.wait(_UP)
        if not self._url:
            raise ClusterError("TensorBoard did not start", why=self.last_words() or f"nothing in {_UP:g} s")
        return self._url

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def last_words(self) -> str:
        return "\n".join(line.decode(errors="replace").strip() for line in self._lines)

    def close(self) -> None:
        """End it and whatever it has started. Idempotent."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_END)
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as output:
            for line in output:
                self._lines.append(line)
                if not self._url and (match := _URL.search(line)):
                    self._url = match[1].decode(errors="replace")
                    self._decided.set()
        self._decided.set()


def _die_with_us() -> None:
    prctl.die_with_parent(signal.SIGTERM)
