"""Pieces from node to node: TLS with a key that is made for one transfer and known to its nodes alone.

The controller makes the key and sends it over SSH; here it is kept in memory. Both ends have to show it,
so a stranger learns nothing and gets nothing. What a peer sends is compared with the controller's digest.

A client asks with the number of a piece; the server answers with its length and content, as soon as it has
it, and meanwhile every few seconds with a word that it is alive.
"""

from __future__ import annotations

import os
import socket
import ssl
import struct
import threading
from typing import Any, Callable, Sequence

from ..base import turnstile
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
            if not self._seats.acquire(blocking=False):
                peer.close()
                continue
            threading.Thread(target=self._serve, args=(peer,), daemon=True).start()

    def _serve(self, peer: socket.socket) -> None:
        try:
            # Closed without a lingering state: the port may be a task's in a moment.
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            peer.settimeout(_PATIENCE)
            with self._context.wrap_socket(peer, server_side=True) as stream:
                while True:
                    stream.settimeout(None)
                    (number,) = _NUMBER.unpack(_exactly(stream, _NUMBER.size))
                    stream.settimeout(_PATIENCE)
                    if number >= len(self._pieces.manifest.pieces):
                        return
                    while not self._pieces.wait(number, _ALIVE):
                        stream.sendall(_NUMBER.pack(_WAIT))
                    data = self._pieces.read(number)
                    stream.sendall(_NUMBER.pack(len(data)) + data)
        except (OSError, EOFError):
            pass  # a stranger, or one that has what it wants
        finally:
            peer.close()
            self._seats.release()


class Puller:
    """Takes pieces from one peer, in their order, in a thread of its own; `on_end` is told what was wrong."""

    def __init__(
        self, pieces: Pieces, pem: str, source: dict[str, Any], on_end: Callable[[str], None]
    ) -> None:
        self._pieces = pieces
        self._context = context(pem, server=False)
        self._address = source["address"], source["port"]
        self._wanted = [one for one in source["pieces"] if not pieces.has(one)]
        self._on_end = on_end
        self._stopped = False
        self._socket: socket.socket | None = None
        threading.Thread(target=self._run, daemon=True).start()

    def stop(self) -> None:
        self._stopped = True
        found = self._socket
        if found is not None:
            try:
                found.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def _run(self) -> None:
        why = ""
        try:
            self._pull()
        except (EOFError, OSError) as error:  # TLS's own errors too
            why = str(error) or type(error).__name__
        except NodeError as error:
            why = error.what
        if not self._stopped:
            self._on_end(why)

    def _pull(self) -> None:
        if not self._wanted:
            return
        with socket.create_connection(self._address, _CONNECT) as plain:
            self._socket = plain
            plain.settimeout(_PATIENCE)
            with self._context.wrap_socket(plain) as stream:
                self._socket = stream
                for place, piece in enumerate(self._wanted):
                    # One is asked for ahead: the line is not to wait for us.
                    ahead = self._wanted[place + (place > 0) : place + 2]
                    stream.sendall(b"".join(map(_NUMBER.pack, ahead)))
                    self._pieces.write(piece, self._one(stream))

    def _one(self, stream: ssl.SSLSocket) -> bytes:
        while True:
            (length,) = _NUMBER.unpack(_exactly(stream, _NUMBER.size))
            if self._stopped:
                raise EOFError
            if length != _WAIT:
                break
        if length > BLOB:
            raise NodeError("piece", f"a piece of {length} bytes was sent")
        return _exactly(stream, length)


def _listen(ports: Sequence[int]) -> socket.socket:
    """Listen on the first port that is free: one that tasks will use passes the firewalls that they pass."""
    for port in ports:
        try:
            return turnstile.listen(port, _MOST)
        except OSError:
            continue
    return turnstile.listen(0, _MOST)


def _exactly(stream: ssl.SSLSocket, size: int) -> bytes:
    data = bytearray(size)
    view = memoryview(data)
    while view:
        count = stream.recv_into(view)
        if not count:
            raise EOFError("the peer has closed the connection")
        view = view[count:]
    return bytes(data)
