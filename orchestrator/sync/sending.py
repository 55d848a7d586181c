"""One folder on its way to one host: started from what the host has, filled, and renamed."""

import contextlib
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence

from msgspec import Struct

from orchestrator import wire
from orchestrator.errors import HostError, Trouble
from orchestrator.sync import rsync
from orchestrator.sync.contents import ChangedError, Contents
from orchestrator.sync.conversation import Conversation, ahead, batches
from orchestrator.value import Value

# Up to this size a stream of pieces is faster even for one changed file: rsync needs another login shell.
RSYNC_FROM = 2_000_000  # bytes
_MESSAGE = 1 << 18  # bytes: a host passes them on when it has a whole message
_AHEAD = 64  # messages in flight to one host: 1 Gbit/s over 100 ms,
_FLYING = threading.Semaphore(512)  # and to all hosts
_LIMIT = 2 * 3600.0  # seconds; allows for a slow line


class Delivery(Value):
    bytes: int  # of the transfer
    seconds: float
    reused: bool  # it already existed


class Sending(Struct, eq=False):
    """The folder `path` of one host, which is to contain `contents`."""

    session: Conversation
    contents: Contents
    path: str
    mutable: bool = False
    lacks: set[int] = set()
    sent: int = 0  # bytes

    def begin(
        self, *, run: str = "push", key: str = "", ports: Sequence[int] = (), serve: bool = False
    ) -> wire.StoreBegun:
        """Have the host check what it already has; it waits for another transfer of the same folder."""
        request = wire.StoreBegin(
            path=self.path,
            mutable=self.mutable,
            pieces=len(self.contents.manifest.pieces),
            run=run,
            key=key,
            ports=ports,
            serve=serve,
        )
        begun = self.session.request(request, self.contents.encoded, timeout=_LIMIT)
        self.lacks = set() if begun.present else self.absent(begun.bits)
        return begun

    def absent(self, bits: str) -> set[int]:
        """Return the pieces whose bit is not set."""
        number = int(bits, 16)
        return {piece for piece in range(len(self.contents.manifest.pieces)) if not number >> piece & 1}

    def have(self, source: wire.StoreSource | None = None) -> wire.StoreHeld:
        """Query what has arrived; with a `source`, have pieces fetched from that peer."""
        count = len(self.contents.manifest.pieces)
        question = wire.StoreHave(path=self.path, count=count, source=source)
        return self.session.request(question, timeout=_LIMIT)

    def put(self, pieces: Collection[int], before: Callable[[int], object] = lambda _: None) -> None:
        """Send pieces; `before` is called with the size of each message."""
        length = self.contents.manifest.length

        def messages() -> Iterator[tuple[wire.StorePut, bytes]]:
            for together in batches(sorted(pieces), length, _MESSAGE, len(pieces)):
                data = b"".join(map(self.contents.read, together))
                for start in range(0, len(data), _MESSAGE):
                    part = data[start : start + _MESSAGE]
                    before(len(part))
                    _FLYING.acquire()
                    self.sent += len(part)
                    yield wire.StorePut(path=self.path, pieces=together, start=start), part

        for _ in ahead(self.session, messages(), _LIMIT, _AHEAD, _FLYING.release):
            pass

    def rsync(self, begun: wire.StoreBegun) -> None:
        """Send by rsync the large files of which the host has earlier versions, if both have rsync."""
        contents, pieces = self.contents, self.contents.manifest.pieces
        files = contents.manifest.files
        if begun.base is None or begun.incoming is None or contents.root is None or rsync.here() is None:
            return
        missing = {blob.file for piece in self.lacks for blob in pieces[piece]}
        large = {file for file in missing if files[file].size > RSYNC_FROM and file not in contents.kept}
        if not large:
            return
        with contextlib.suppress(rsync.NoRsyncError):
            self.sent += rsync.send(
                self.session.host.name,
                self.session.link,
                contents.root,
                [files[number].path for number in sorted(large)],
                incoming=begun.incoming,
                base=begun.base,
            )
            self.lacks = {part for part in self.lacks if any(blob.file not in large for blob in pieces[part])}

    def seal(self) -> None:
        """Have the folder renamed to its final name."""
        self.session.request(wire.StoreSeal(path=self.path), timeout=_LIMIT)

    def drop(self) -> None:
        """Abort the transfer on the host; an agent that loses us does so by itself."""
        with contextlib.suppress(Exception):
            self.session.submit(wire.StoreDrop(path=self.path))


def push(session: Conversation, contents: Contents, path: str, *, mutable: bool = False) -> Delivery:
    """Make `path` on a host equal to `contents`; raise HostError, or ChangedError for all hosts.

    Only what no other folder of the host has is transferred: in pieces, or for large files with an earlier
    version by rsync.
    """
    began = time.monotonic()
    sending = Sending(session, contents, path, mutable=mutable)
    try:
        begun = sending.begin()
        if not begun.present:
            sending.rsync(begun)
            sending.put(sending.lacks)
            sending.seal()
    except BaseException as error:
        sending.drop()
        # If files changed here meanwhile, that is the error, and the same for every host.
        blames_us = isinstance(error, HostError) and error.kind in (Trouble.RSYNC, Trouble.INCOMPLETE)
        if blames_us and (changed := contents.changed()):
            raise ChangedError(changed) from error
        raise
    return Delivery(sending.sent, time.monotonic() - began, reused=begun.present)
