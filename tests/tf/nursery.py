"""Training processes forked from one that has imported TensorFlow; see zygote.py."""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from queue import SimpleQueue

from tests.training import training_python

HERE = Path(__file__).parent


class Forked:
    """A training process, with what the tests use of `subprocess.Popen`."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._ended = threading.Event()

    def poll(self) -> int | None:
        return self.returncode

    def wait(self) -> int:
        self._ended.wait()
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):  # it has just ended, and we do not know yet
                os.kill(self.pid, number)

    def end(self, status: int) -> None:
        self.returncode = status
        self._ended.set()


class Nursery:
    def __init__(self) -> None:
        self._zygote = subprocess.Popen(
            [training_python(), str(HERE / "zygote.py")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._forked: SimpleQueue[Forked] = SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()
        atexit.register(self.close)

    def start(self, module: str, args: Sequence[str], env: Mapping[str, str], cwd: Path, log: Path) -> Forked:
        request = {"module": module, "args": list(args), "env": dict(env), "cwd": str(cwd), "log": str(log)}
        assert self._zygote.stdin is not None
        self._zygote.stdin.write(json.dumps(request).encode() + b"\n")
        self._zygote.stdin.flush()
        return self._forked.get()

    def close(self) -> None:
        assert self._zygote.stdin is not None
        self._zygote.stdin.close()
        self._zygote.wait()

    def _read(self) -> None:
        """Whoever asked for a process may wake up after its end: it is known here from its beginning on."""
        assert self._zygote.stdout is not None
        alive: dict[int, Forked] = {}
        for line in self._zygote.stdout:
            news = json.loads(line)
            if "pid" in news:
                forked = alive[news["pid"]] = Forked(news["pid"])
                self._forked.put(forked)
            elif "ended" in news:
                alive.pop(news["ended"]).end(news["status"])


@functools.cache
def nursery() -> Nursery:
    """The one of this process: a zygote has 400 MB, and it is made when the first task is asked for."""
    return Nursery()
