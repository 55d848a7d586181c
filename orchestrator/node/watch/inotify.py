"""Being told by the kernel that a folder changed; where it cannot, a look every second has to do."""

from __future__ import annotations

import os
import struct

from ..base.annotations import Any, Callable
from ..serve.loop import READ, Loop

LOOK_EVERY = 1.0

_MODIFY, _CLOSE_WRITE, _MOVED_TO, _CREATE = 0x2, 0x8, 0x80, 0x100
_NONBLOCK_CLOEXEC = os.O_NONBLOCK | os.O_CLOEXEC
_EVENT = struct.Struct("iIII")


class Watcher:
    """Calls back for each watched folder when something in it changed."""

    def __init__(self, loop: Loop) -> None:
        self._calls: dict[int, list[Callable[[], None]]] = {}
        self._fd = -1
        try:
            import ctypes

            self._libc: Any = ctypes.CDLL(None, use_errno=True)
            self._fd = self._libc.inotify_init1(_NONBLOCK_CLOEXEC)
        except (ImportError, OSError, AttributeError):
            pass
        if self._fd >= 0:
            loop.watch(self._fd, READ, self._hear)

    def add(self, folder: str, call: Callable[[], None]) -> int:
        """A handle for `remove`; -1 where the kernel has no watch left. A folder may be watched twice."""
        if self._fd < 0:
            return -1
        mask = _MODIFY | _CLOSE_WRITE | _MOVED_TO | _CREATE
        handle: int = self._libc.inotify_add_watch(self._fd, os.fsencode(folder), mask)
        if handle >= 0:
            self._calls.setdefault(handle, []).append(call)
        return handle

    def remove(self, handle: int, call: Callable[[], None]) -> None:
        calls = self._calls.get(handle, [])
        if call in calls:
            calls.remove(call)
            if not calls:
                del self._calls[handle]
                self._libc.inotify_rm_watch(self._fd, handle)

    def _hear(self) -> None:
        try:
            data = os.read(self._fd, 65536)
        except BlockingIOError:
            return
        at = 0
        told = set()
        while at < len(data):
            handle, _, _, length = _EVENT.unpack_from(data, at)
            at += _EVENT.size + length
            told.add(handle)
        for handle in told if -1 not in told else list(self._calls):  # -1: the kernel dropped some
            for call in list(self._calls.get(handle, ())):
                call()
