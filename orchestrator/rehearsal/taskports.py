"""Ports for the tasks of a cluster, which no other cluster of this machine is given while it stands."""

from __future__ import annotations

import os
import random
import socket

from orchestrator.errors import ClusterError
from orchestrator.node.base import turnstile

ROOM = 8  # ports of a host: it may have as many tasks, and its neighbour is another one
_BASES = range(15000, 32000, ROOM)  # below the ephemeral range of Linux
_KIND = "rehearsal"


class TaskPorts:
    """The first port of each host; they are held until `close`, by this process and nobody else."""

    def __init__(self, count: int) -> None:
        self.first: list[int] = []
        self._held: list[int] = []
        # In random order: where nothing can be held (macOS), parallel clusters differ all the same.
        for port in random.sample(_BASES, len(_BASES)):
            if len(self.first) == count:
                return
            if _is_free(port) and self._hold(port):
                self.first.append(port)
        if len(self.first) < count:
            self.close()
            raise ClusterError(
                f"there are no ports for the tasks of {count} hosts",
                why=f"of those from {_BASES.start} to {_BASES.stop - 1} all others are taken",
                hint="use fewer hosts",
            )

    def close(self) -> None:
        for one in self._held:
            os.close(one)
        self._held.clear()

    def _hold(self, port: int) -> bool:
        """False when another cluster has it, whose tasks may bind it at any time."""
        try:
            self._held.append(turnstile.pass_through(_KIND, port))
        except turnstile.Taken:
            return False
        except OSError:  # no names that a kernel keeps: not Linux
            return True
        return True


def _is_free(port: int) -> bool:
    """On every address."""
    with socket.socket() as sock:
        try:
            sock.bind(("", port))
        except OSError:
            return False
        return True
