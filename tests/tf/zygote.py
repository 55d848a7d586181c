"""Imports TensorFlow once and forks a training process for each request: run by the Python that trains.

An import of TensorFlow takes three seconds of a core, and the tests start more than a hundred tasks. What is
forked is a process of its own in a session of its own, with the environment, the folder and the output that
it would have been started with. Requests are lines of JSON on stdin, answers and ends lines on stdout; when
stdin ends, so does everything that was forked.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import random
import runpy
import select
import signal
import sys
from typing import Any

ENVIRONMENT = {"TF_USE_LEGACY_KERAS": "1", "TF_CPP_MIN_LOG_LEVEL": "2", "grpc_proxy": ""}


def serve() -> dict[str, Any] | None:
    """In the zygote: None, when nobody asks any more. In a forked process: what it was asked to be."""
    answers = os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 1)
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake)
    alive: set[int] = set()
    rest = b""
    os.write(answers, b'{"ready": true}\n')
    while True:
        ready, _, _ = select.select([0, woken], [], [])
        if woken in ready:
            os.read(woken, 512)
            while alive:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    break
                alive.discard(pid)
                end = {"ended": pid, "status": os.waitstatus_to_exitcode(status)}
                os.write(answers, json.dumps(end).encode() + b"\n")
        if 0 not in ready:
            continue
        data = os.read(0, 65536)
        if not data:
            for pid in alive:
                for kill in (os.killpg, os.kill):  # one that was just forked has no group of its own yet
                    with contextlib.suppress(ProcessLookupError):
                        kill(pid, signal.SIGKILL)
            return None
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            request: dict[str, Any] = json.loads(line)
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                for fd in (answers, woken, wake):
                    os.close(fd)
                return request
            alive.add(pid)
            os.write(answers, json.dumps({"pid": pid}).encode() + b"\n")


def become(request: dict[str, Any]) -> None:
    """Be the process that `python -m MODULE ARGS` would have been."""
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    out = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115 - as long as the process
    sys.stderr = open(2, "w", buffering=1, closefd=False, errors="backslashreplace")  # noqa: SIM115
    import numpy as np

    random.seed()
    np.random.seed()  # noqa: NPY002 - the one that programs use
    sys.path[0] = request["cwd"]
    sys.argv = ["", *request["args"]]
    runpy.run_module(request["module"], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    os.environ.update(ENVIRONMENT)
    gc.disable()
    import tensorflow as tf

    tf.keras.Model  # noqa: B018 - tf_keras is loaded when first asked for
    gc.freeze()  # as in a task; and pages that no collection writes to stay shared
    gc.enable()
    asked = serve()
    if asked is not None:
        become(asked)
