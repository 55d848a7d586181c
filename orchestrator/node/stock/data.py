"""Data sets on a node: immutable, named by their digest, complete when they have their name.

    <workdir>/data/<digest>                  what [data] names, as one folder
    <workdir>/data/.incoming-<digest>        one that is being filled; the next transfer resumes it
    <workdir>/data/.incoming-<digest>.pieces which pieces of it are there
    <workdir>/data/.lock-<digest>            held by whoever fills it; machines that share the folder wait;
                                             it stays, empty, until `clean` finds that nobody needs it

A child receives: pieces from the controller through a pipe, and from peers. `data_begin` starts it, and it
ends with `data_seal`, with `data_drop`, or with the agent.
"""

from __future__ import annotations

import json
import os
import signal
import stat
import threading

from ..base import locks, trust
from ..base.fault import NodeError
from ..base.paths import digest_name
from ..disk.removing import remove
from ..look import ports
from ..serve import frames
from ..serve.jobs import Feed
from ..serve.loop import READ
from . import reuse
from .pieces import Pieces, map_of
from .trees import _sha256, age, unwritable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterator, List, Optional, Set, Tuple

    from ..serve.agent import Agent, Request

    Manifest = List[Dict[str, Any]]

INCOMING = ".incoming-"
_SECONDS = 24 * 3600.0  # a large set on a slow line takes hours
_WAIT = 3600.0  # seconds for another transfer of the same data into the same folder
_STALE = 7 * 24 * 3600.0  # an interrupted transfer that nobody resumed
_SPARE = 64 << 20  # bytes that stay free on the disk
_SHOWN = 5


def look(agent: Agent, request: Request) -> Dict[str, Any]:
    """Whether the data is here: "whole", "damaged", "absent", or "unsure" where we have not verified it.

    By size and time of each file; with `thorough` every byte is read. What is in use is touched.
    """
    path = _path(request)
    data = os.path.dirname(path)
    trust.check_way(*os.path.split(data))
    free = _free(data)
    if not trust.is_ours(path):
        return {"path": path, "state": "absent", "wrong": [], "free": free}
    noted = _noted(_notes(agent), path)
    if noted is None:
        return {"path": path, "state": "unsure", "wrong": [], "free": free}
    wrong = [
        name
        for name, digest, known in noted
        if not _is_same(os.path.join(path, name), known, digest if request["thorough"] else None)
    ]
    if wrong:
        _forget(_notes(agent), path)  # the next transfer reads all of it
    else:
        os.utime(path)
    return {"path": path, "state": "damaged" if wrong else "whole", "wrong": wrong[:_SHOWN], "free": free}


def begin(agent: Agent, request: Request) -> None:
    """Make the folder that is to be filled, from what is here already; the reply names the rest."""
    digest = digest_name(request["digest"])
    running = agent.rooms.setdefault("data", {})
    if digest in running and running[digest].outcome is None:
        raise NodeError("busy", "is receiving this data already, over this connection")
    running[digest] = _Transfer(agent, request, digest)


def piece(agent: Agent, request: Request) -> None:
    """One piece from the controller; answered when the child's pipe has taken it."""
    _running(agent, request).tell(request, {"piece": int(request["piece"])})


def peers(agent: Agent, request: Request) -> None:
    """Take pieces from these peers; a later request replaces an earlier one."""
    transfer = _running(agent, request)
    transfer.idle = -1
    transfer.tell(request, {"peers": request["sources"], "plan": int(request["plan"])})


def have(agent: Agent, request: Request) -> Dict[str, Any]:
    """What has come so far, which plan is at its end, and what was wrong with peers since the last look."""
    transfer = _running(agent, request)
    trouble, transfer.trouble = transfer.trouble, []
    return {
        "bits": f"{transfer.bits:x}",
        "idle": transfer.idle,
        "trouble": trouble,
        "waits": transfer.waits,
    }


def seal(agent: Agent, request: Request) -> None:
    """Give what is complete its name; the reply is the child's last word."""
    transfer = _running(agent, request)
    transfer.waiting = request
    transfer.feed.put(frames.encode({"seal": True}), lambda: None)


def drop(agent: Agent, request: Request) -> Dict[str, Any]:
    """End a transfer; what has come stays for the next one."""
    transfer = agent.rooms.setdefault("data", {}).pop(digest_name(request["digest"]), None)
    if transfer is not None:
        transfer.feed.close()
    return {}


def _running(agent: Agent, request: Request) -> _Transfer:
    found = agent.rooms.setdefault("data", {}).get(digest_name(request["digest"]))
    if found is None:
        raise NodeError("data", "does not receive this data")
    if found.outcome is not None:
        raise found.outcome
    transfer: _Transfer = found
    return transfer


class _Transfer:
    """The agent's side of a child that receives."""

    def __init__(self, agent: Agent, request: Request, digest: str) -> None:
        self.bits = 0
        self.idle = -1  # the plan that is at its end
        self.waits = False  # for another transfer of the same data
        self.trouble: List[Dict[str, str]] = []
        self.waiting: Optional[Request] = request  # for the child's next word
        self.outcome: Optional[NodeError] = None
        self._agent = agent
        self._digest = digest
        self._untold: Dict[int, Request] = {}  # that the child has not taken yet
        self._decoder = frames.Decoder()
        order = _Order(agent, request)
        reader, writer = os.pipe()
        self._told, tell = os.pipe()
        self.feed = Feed(agent.loop, writer)
        try:
            agent.jobs.run(
                "data",
                lambda: _receive(order, reader, tell),
                self._ended,
                seconds=_SECONDS,
                keep=(reader, tell),
            )
        except NodeError:
            self.feed.close()
            os.close(self._told)
            raise
        finally:
            os.close(reader)
            os.close(tell)
        os.set_blocking(self._told, False)
        agent.loop.watch(self._told, READ, self._hear)

    def tell(self, request: Request, header: Dict[str, Any]) -> None:
        """Hand a request on to the child; answered when that has taken it, or is gone."""
        self._untold[id(request)] = request

        def taken() -> None:
            del self._untold[id(request)]
            self._agent.reply(request, {})

        self.feed.put(frames.encode(header, request.payload), taken)

    def _hear(self) -> None:
        try:
            data = os.read(self._told, 1 << 18)
        except BlockingIOError:
            return
        if not data:
            self._agent.loop.unwatch(self._told)
            os.close(self._told)
            return
        for word, _ in self._decoder.feed(data):
            self._take(word)

    def _take(self, word: Dict[str, Any]) -> None:
        if "piece" in word:
            self.bits |= 1 << int(word["piece"])
        elif "idle" in word:
            self.idle = int(word["idle"])
        elif "trouble" in word:
            self.trouble.append(word["trouble"])
        elif "waits" in word:
            self.waits = True
        elif self.waiting is not None:
            self.waits = False
            self.bits = int(word["bits"], 16)
            request, self.waiting = self.waiting, None
            self._agent.reply(request, word)

    def _ended(self, outcome: Tuple[Dict[str, Any], bytes]) -> None:
        """The child has sealed, found the data whole at the start, or failed."""
        self.feed.close()
        reply = outcome[0]
        request, self.waiting = self.waiting, None
        if not reply.get("ok"):
            self.outcome = NodeError(**reply["error"])
        for untold in self._untold.values():
            self._agent.fail(untold, self.outcome or NodeError("data", "the transfer has ended"))
        self._untold.clear()
        running = self._agent.rooms["data"]
        if request is not None:
            if running.get(self._digest) is self:
                del running[self._digest]
            self._agent.send({"id": request.id, **reply})


class _Order:
    """What a child needs of a request and of the agent."""

    def __init__(self, agent: Agent, request: Request) -> None:
        self.path = _path(request)
        self.notes = _notes(agent)
        self.manifest: Manifest = request["manifest"]
        self.size = int(request["size"])
        self.digests = request.payload
        self.pem = str(request["key"])
        self.serve = bool(request["serve"])
        paths = None if agent.state_error else agent.paths
        wanted = [int(port) for port in request["ports"]]
        self.ports = [one for one in wanted if ports.leased(one, paths, str(request["run"])) is None]


def _receive(order: _Order, reader: int, tell: int) -> Tuple[Dict[str, Any], bytes]:
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # of a peer that hangs up
    data, name = os.path.split(order.path)
    try:
        os.makedirs(data, exist_ok=True)
        trust.check_way(*os.path.split(data))
        if order.serve and trust.is_ours(order.path):  # whoever asks compares what we give
            pieces = Pieces(order.path, order.manifest, order.size, order.digests, whole=True)
            return _Receiver(order, pieces, tell).serve(reader)
        waits = frames.encode({"waits": True})
        lock = os.path.join(data, f".lock-{name}")
        with locks.Held(lock, _WAIT, "busy", "data that somebody else sends", lambda: os.write(tell, waits)):
            if _is_whole(order):
                return {"ok": True, "result": {"present": True, "path": order.path}}, b""
            incoming = incoming_of(order.path)
            held = _prepare(order, incoming)
            missing = sum(one["size"] for one in order.manifest if one["path"] not in held)
            _check_room(data, missing, incoming)
            pieces = Pieces(incoming, order.manifest, order.size, order.digests, held)
            return _Receiver(order, pieces, tell).serve(reader)
    except OSError as error:
        raise unwritable(data, error) from None


class _Receiver:
    """The child: its main thread reads what the controller sends, others take from peers and give to them."""

    def __init__(self, order: _Order, pieces: Pieces, tell: int) -> None:
        self._order = order
        self._pieces = pieces
        self._tell = tell
        self._lock = threading.Lock()
        pieces.on_piece = lambda number: self._say({"piece": number})

    def serve(self, reader: int) -> Tuple[Dict[str, Any], bytes]:
        from . import peers

        port, pullers = 0, None
        try:
            if self._order.pem:
                port = peers.Server(self._pieces, self._order.pem, self._order.ports).port
                pullers = peers.Pullers(self._pieces, self._order.pem, self._trouble, self._idle)
        except (OSError, AttributeError, ImportError):
            pass  # no TLS, or no port: the controller sends everything
        ready = {"present": False, "path": self._order.path, "port": port, "bits": self._pieces.bits()}
        self._say(ready)
        for word, payload in _words(reader):
            if "piece" in word:
                self._pieces.write(int(word["piece"]), payload)
            elif "peers" in word and pullers is not None:
                pullers.follow(int(word["plan"]), word["peers"])
            elif "peers" in word:
                self._idle(int(word["plan"]))
            else:
                return self._seal()
        raise NodeError("data", "the transfer was given up")

    def _seal(self) -> Tuple[Dict[str, Any], bytes]:
        missing = self._pieces.count - self._pieces.here
        if missing:
            raise NodeError("data", f"{missing} of {self._pieces.count} pieces are missing")
        path, incoming = self._order.path, incoming_of(self._order.path)
        if os.path.lexists(path):
            raise NodeError("data", f"something else has appeared at {path}", "", f"rm -r {path}")
        os.utime(incoming)
        os.rename(incoming, path)
        _unlink(map_of(incoming))
        reuse.note(self._order.notes, path, self._order.manifest)
        return {"ok": True, "result": {"present": True, "path": path}}, b""

    def _trouble(self, peer: str, why: str) -> None:
        self._say({"trouble": {"host": peer, "why": why[:300]}})

    def _idle(self, plan: int) -> None:
        self._say({"idle": plan})

    def _say(self, word: Dict[str, Any]) -> None:
        view = memoryview(frames.encode(word))
        with self._lock:
            while view:
                view = view[os.write(self._tell, view) :]


def incoming_of(path: str) -> str:
    data, name = os.path.split(path)
    return os.path.join(data, f"{INCOMING}{name}")


def _is_whole(order: _Order) -> bool:
    """Whether it is here and right; read as a whole unless we noted that it is."""
    if not trust.is_ours(order.path):
        return False
    noted = _noted(order.notes, order.path)
    if noted is not None:
        return all(_is_same(os.path.join(order.path, name), known, None) for name, _, known in noted)
    if _wrong(order.path, order.manifest):
        return False
    reuse.note(order.notes, order.path, order.manifest)
    return True


def _prepare(order: _Order, incoming: str) -> Set[str]:
    """Have the folder that is to be filled; return the files that are right, and not to be written to."""
    data = os.path.dirname(order.path)
    _remove_stale(data, incoming)
    if os.path.lexists(order.path):  # damaged: what is right of it stays
        remove(incoming)
        os.rename(order.path, incoming)
        _unlink(map_of(incoming))
        return _right(incoming, order.manifest)
    if os.path.lexists(incoming):
        if trust.is_ours(incoming):
            return _right(incoming, order.manifest, linked=True)
        remove(incoming)
    _unlink(map_of(incoming))
    os.mkdir(incoming, 0o755)
    missing = reuse.fill(order.notes, data, incoming, order.manifest)["missing"]
    return {one["path"] for one in order.manifest} - {order.manifest[place]["path"] for place in missing}


def _right(folder: str, manifest: Manifest, *, linked: bool = False) -> Set[str]:
    """The files that are as they should be; others go. With `linked` only those with several names count."""
    right = set()
    for one in manifest:
        path = os.path.join(folder, one["path"])
        try:
            found = os.lstat(path)
        except OSError:
            continue
        if linked and found.st_nlink < 2 and stat.S_ISREG(found.st_mode):
            continue  # pieces of it are there: the map says which
        if _is_file(found, one) and _sha256(path) == one["sha256"]:
            right.add(one["path"])
        else:
            remove(path)
    return right


def _wrong(folder: str, manifest: Manifest) -> List[str]:
    wrong = []
    for one in manifest:
        path = os.path.join(folder, one["path"])
        try:
            good = _is_file(os.lstat(path), one) and _sha256(path) == one["sha256"]
        except OSError:
            good = False
        if not good:
            wrong.append(one["path"])
    return wrong


def _is_file(found: os.stat_result, one: Dict[str, Any]) -> bool:
    return stat.S_ISREG(found.st_mode) and found.st_size == one["size"]


def _noted(notes: Optional[str], path: str) -> Optional[List[Tuple[str, str, Any]]]:
    """(name, digest, what tells that it is the same) of each file of what was verified here."""
    if notes is None:
        return None
    try:
        with open(_note_of(notes, path), encoding="utf-8", errors="surrogateescape") as file:
            told = json.load(file)
        if told["tree"] != path:
            return None
        return [
            (str(one["path"]), str(one["sha256"]), tuple(told["stats"][number]))
            for number, one in enumerate(told["manifest"])
        ]
    except (OSError, ValueError, LookupError, TypeError):
        return None


def _is_same(path: str, known: Any, digest: Optional[str]) -> bool:
    try:
        found = os.lstat(path)
        return reuse.stat_of(found) == known and (digest is None or _sha256(path) == digest)
    except OSError:
        return False


def _notes(agent: Agent) -> Optional[str]:
    """Where `reuse` keeps its notes of data; apart from those of code, of which many come and go."""
    return None if agent.state is None else os.path.join(agent.state, "data")


def _note_of(notes: str, path: str) -> str:
    return os.path.join(notes, "trees", os.path.basename(path))


def _forget(notes: Optional[str], path: str) -> None:
    if notes is not None:
        _unlink(_note_of(notes, path))


def _remove_stale(data: str, ours: str) -> None:
    for name in os.listdir(data):
        path = os.path.join(data, name)
        if name.startswith(INCOMING) and not path.startswith(ours) and age(path) > _STALE:
            remove(path)


def _check_room(data: str, missing: int, incoming: str) -> None:
    free = _free(data) + _stored(incoming)
    if missing + _SPARE > free:
        raise NodeError(
            "data",
            f"has no room for {missing / 1e6:,.0f} MB of data",
            f"{max(0, free) / 1e6:,.0f} MB are free at {data}, and {_SPARE / 1e6:.0f} of them stay free",
            "make room there (`orchestrate clean`), or set `workdir` to another disk",
        )


def _free(folder: str) -> int:
    while not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


def _stored(folder: str) -> int:
    """Bytes on the disk of what an interrupted transfer has left."""
    from ..tidy.prune import measure

    return measure(folder).size


def _words(reader: int) -> Iterator[Tuple[Dict[str, Any], bytes]]:
    decoder = frames.Decoder()
    while True:
        data = os.read(reader, 1 << 20)
        if not data:
            return
        yield from decoder.feed(data)


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass


def _path(request: Request) -> str:
    workdir = os.path.abspath(os.path.expanduser(str(request["workdir"])))
    return os.path.join(workdir, "data", digest_name(request["digest"]))
