"""Pieces from node to node: TLS with a key that is made for one transfer and known to its nodes alone.

The controller makes the key and sends it over SSH; here it is kept in memory. Both ends have to show it,
so a stranger learns nothing and gets nothing. What a peer sends is compared with the controller's digest.

A client says how many pieces it wants, and which; the server answers with the length and content of each, as
soon as it has it, and meanwhile every few seconds with a word that it is alive.
"""

from __future__ import annotations

import os
import socket
import ssl
import struct
import threading
from typing import Any, Callable, Sequence

from ..base import descriptors
from ..base.fault import NodeError
from .manifest import BLOB
from .pieces import Pieces

_NUMBER = struct.Struct(">Q")
_WAIT = (1 << 64) - 1  # in the place of a length: not yet
_ALIVE = 2.0  # seconds between two such words
_PATIENCE = 15.0  # seconds without a word
_CONNECT = 5.0
_MOST = 256  # connections at once


def context(pem: str, *, server: bool) -> ssl.SSLContext:
    """Nobody but who has this key is spoken to; raise OSError where this machine cannot do it."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    made.check_hostname = False  # the key says who it is: its certificate is the only one that is trusted
    made.verify_mode = ssl.CERT_REQUIRED
    fd = os.memfd_create("key")  # the library reads files alone, and no disk is to see it
    try:
        os.write(fd, pem.encode())
        path = f"/proc/self/fd/{fd}"
        made.load_cert_chain(path)
        made.load_verify_locations(path)
    finally:
        os.close(fd)
    return made


class Server:
    """Gives pieces to whoever has the key."""

    def __init__(self, pieces: Pieces, pem: str, ports: Sequence[int]) -> None:
        self._pieces = pieces
        self._context = context(pem, server=True)
        self._listener = _listen(ports)
        self.port: int = self._listener.getsockname()[1]
        self._seats = threading.Semaphore(_MOST)
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            if self._seats.acquire(blocking=False):  # whoever reaches the port can connect
                threading.Thread(target=self._serve, args=(peer,), daemon=True).start()
            else:
                peer.close()

    def _serve(self, peer: socket.socket) -> None:
        try:
            # Closed without a lingering state: the port may be a task's in a moment.
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            peer.settimeout(_PATIENCE)
            with self._context.wrap_socket(peer, server_side=True) as stream:
                total = len(self._pieces.manifest.pieces)
                count = min(_number(stream), total)
                for number in struct.unpack(f">{count}Q", _exactly(stream, count * _NUMBER.size)):
                    while number < total and not self._pieces.wait(number, _ALIVE):
                        stream.sendall(_NUMBER.pack(_WAIT))
                    data = self._pieces.read(number)
                    stream.sendall(_NUMBER.pack(len(data)) + data)
                stream.recv(1)  # until it has all of it: what is under way is lost when we close
        except (OSError, EOFError, IndexError):
            pass  # a stranger, or one that has what it wants
        finally:
            peer.close()
            self._seats.release()


def pull(
    pieces: Pieces,
    pem: str,
    source: dict[str, Any],
    stopped: threading.Event,
    on_end: Callable[[str], None],
) -> None:
    """Take pieces from one peer, in their order, in a thread of its own; `on_end` is told what was wrong.

    Once it is stopped it takes no more; its thread ends with the peer's next word.
    """

    def run() -> None:
        why = ""
        try:
            _pull(pieces, pem, source, stopped)
        except (EOFError, OSError) as error:  # TLS's own errors too
            why = str(error) or type(error).__name__
        except NodeError as error:
            why = error.what
        if not stopped.is_set():
            on_end(why)

    threading.Thread(target=run, daemon=True).start()


def _pull(pieces: Pieces, pem: str, source: dict[str, Any], stopped: threading.Event) -> None:
    lacking = [piece for piece in source["pieces"] if not pieces.has(piece)]
    if not lacking:
        return
    with socket.create_connection((source["address"], source["port"]), _CONNECT) as plain:
        plain.settimeout(_PATIENCE)
        with context(pem, server=False).wrap_socket(plain) as stream:
            stream.sendall(struct.pack(f">{len(lacking) + 1}Q", len(lacking), *lacking))
            for piece in lacking:
                while (length := _number(stream)) == _WAIT and not stopped.is_set():
                    pass
                if stopped.is_set():
                    return
                if length > BLOB:
                    raise NodeError("piece", f"a piece of {length} bytes was sent")
                pieces.write(piece, _exactly(stream, length))


def _listen(ports: Sequence[int]) -> socket.socket:
    """Listen on the first port that is free: one that tasks will use passes the firewalls that they pass."""
    for port in ports:
        try:
            return descriptors.listen(port, _MOST)
        except OSError:
            continue
    return descriptors.listen(0, _MOST)


def _number(stream: ssl.SSLSocket) -> int:
    return int(_NUMBER.unpack(_exactly(stream, _NUMBER.size))[0])


def _exactly(stream: ssl.SSLSocket, size: int) -> bytes:
    data = bytearray(size)
    view = memoryview(data)
    while view:
        count = stream.recv_into(view)
        if not count:
            raise EOFError("the peer has closed the connection")
        view = view[count:]
    return bytes(data)
