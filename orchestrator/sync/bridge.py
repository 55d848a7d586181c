"""The program that rsync runs as its remote shell: hands its pipes to the holder of the connection.

    rsync --rsh="python -S -E bridge.py FD" ... host:path
      -> bridge.py FD host rsync --server ...
      -> FD, a socket that is inherited: a line with the command in hex, then its bytes both ways

Standard library only, and few of its modules: it is started once per host and transfer.
"""

import os
import socket
import sys
from select import POLLERR, POLLHUP, POLLIN, POLLOUT, poll

_SIZE = 262144


def main() -> int:
    sock = socket.socket(fileno=int(sys.argv[1]))
    words = [word.encode("utf-8", "surrogateescape").hex() for word in _command(sys.argv[2:])]
    sock.sendall((" ".join(words) + "\n").encode())
    pump(sock)
    return 0


def _command(words: "list[str]") -> "list[str]":
    """Return what is to run there: behind the host, which rsync names after options of its own (-l user)."""
    while words and words[0] == "-l":
        words = words[2:]
    return words[1:]


def pump(sock: socket.socket) -> None:
    """Stdin to the socket and the socket to stdout, until the socket ends.

    rsync's pipes are non-blocking, and blocking on one side while the other is full is a deadlock.
    """
    for fd in (0, 1, sock.fileno()):
        os.set_blocking(fd, False)
    up = _Flow(0, sock.fileno())
    down = _Flow(sock.fileno(), 1)
    while not down.over:
        if up.over and not up.closed:
            up.closed = True
            sock.shutdown(socket.SHUT_WR)
        events = poll()
        interest: dict[int, int] = {}
        for flow in (up, down):
            if flow.data:
                interest[flow.target] = interest.get(flow.target, 0) | POLLOUT
            elif not flow.ended:
                interest[flow.source] = interest.get(flow.source, 0) | POLLIN
        for fd, mask in interest.items():
            events.register(fd, mask)
        for fd, mask in events.poll():
            for flow in (up, down):
                if flow.data and fd == flow.target and mask & (POLLOUT | POLLERR | POLLHUP):
                    flow.write()
                elif (
                    not flow.data
                    and not flow.ended
                    and fd == flow.source
                    and mask & (POLLIN | POLLERR | POLLHUP)
                ):
                    flow.read()


class _Flow:
    """One direction, with what was read and not yet written."""

    def __init__(self, source: int, target: int) -> None:
        self.source, self.target = source, target
        self.data = memoryview(b"")
        self.ended = False
        self.closed = False

    @property
    def over(self) -> bool:
        return self.ended and not self.data

    def read(self) -> None:
        try:
            data = os.read(self.source, _SIZE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self.data, self.ended = memoryview(data), not data

    def write(self) -> None:
        try:
            self.data = self.data[os.write(self.target, self.data) :]
        except BlockingIOError:
            return
        except OSError:  # nobody reads any more
            self.data, self.ended = memoryview(b""), True


if __name__ == "__main__":
    sys.exit(main())
