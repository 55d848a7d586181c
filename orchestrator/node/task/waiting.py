"""The supervisor's side of a Python that waits to become a task (the other is hook/site_standby.py)."""

from __future__ import annotations

import json
import os
import select
import socket
import time
from contextlib import suppress
from typing import Callable

from ..disk.removing import remove
from ..serve.loop import READ
from .environ import Launch

_NOISE = 1 << 20  # bytes of the import's own output that are kept
_SOON = 1.0  # seconds from a start to its reply, while the import is still running


class Waiting:
    """A waiting Python: messages to and from it, and what it prints."""

    def __init__(self, folder: str, pid: int, sock: socket.socket, pipe: int) -> None:
        self.pid = pid
        self.ready = False  # its import has ended
        self.noise = b""  # output of the import
        self._folder = folder
        self._sock = sock
        self._pipe = pipe
        os.set_blocking(pipe, False)

    def listen(self, until: int, seconds: float | None = None, *, noise: bool = True) -> bytes:
        """Return the Python's message, b"" if `until` is readable; raise EOFError. `noise`: store output."""
        poll = select.poll()
        for fd in (until, self._sock.fileno(), *([self._pipe] if noise else ())):
            poll.register(fd, READ)
        deadline = None if seconds is None else time.monotonic() + seconds
        line = b""
        while deadline is None or time.monotonic() < deadline:
            patience = None if deadline is None else max(0, deadline - time.monotonic()) * 1000
            ready = {fd for fd, _ in poll.poll(patience)}
            if self._pipe in ready:
                try:
                    piece = os.read(self._pipe, 1 << 16)
                except BlockingIOError:
                    continue
                self.noise = (self.noise + piece)[:_NOISE]
            if self._sock.fileno() in ready:
                piece = self._sock.recv(1 << 16)
                line += piece
                if not piece:
                    raise EOFError
                if line.endswith(b"\n"):
                    return line
            elif until in ready:
                return b""
        return b""

    def become(self, launch: Launch, control: int, begun: Callable[[], None], *, lends: bool) -> int | str:
        """Turn the Python, or a fork of it, into the task; return its pid, or the reason if that fails.

        `begun` is called if its import takes longer.
        """
        pairs = [[name.decode("latin-1"), value.decode("latin-1")] for name, value in launch.env.items()]
        try:
            module = {"module": [word.decode() for word in launch.argv[2:]]} if lends else {}
            message = json.dumps({"cwd": launch.cwd, "env": pairs, **module}).encode() + b"\n"
            if self.ready or not lends:
                self._sock.sendall(message)
            patience: float | None = _SOON
            line = b""
            while not line.strip():
                # The output of a fork is its own.
                line = self.listen(control, patience, noise=not (lends and self.ready))
                if not line and patience is None:
                    return "it was stopped during its import"
                if not line:
                    begun()
                    patience = None
                elif not line.strip():  # the import has ended
                    self.ready = True
                    if lends:
                        self._sock.sendall(message)
            answer = json.loads(line)
            return answer["why"] or int(answer["pid"])
        except (OSError, ValueError, KeyError, EOFError):
            return "it has ended"

    def drop(self) -> None:
        """Discard its output so far, which belongs to no task."""
        with suppress(BlockingIOError):
            while os.read(self._pipe, 1 << 16):
                pass

    def close(self) -> None:
        self._sock.close()
        remove(self._folder)
