"""A tar stream into an incoming tree, for hosts without rsync; unpacked in a child, chunk by chunk.

Every `tree_tar` request carries one chunk. It is answered when the child has taken it; the last
(`more` false) when all is on disk. So the controller's window of open requests bounds our memory.
"""

from __future__ import annotations

import os

from .fault import NodeError
from .jobs import Feed
from .trees import incoming_of, remove, unwritable

TYPE_CHECKING = False
if TYPE_CHECKING:
    import tarfile
    from typing import Any, Dict, List, Optional, Set, Tuple

    from .agent import Agent, Request

_SECONDS = 3600.0


def receive(agent: Agent, request: Request) -> None:
    incoming = incoming_of(agent, request)
    streams = agent.rooms.setdefault("untar", {})
    if incoming not in streams:
        streams[incoming] = Stream(agent, incoming)
    stream = streams[incoming]
    if not request.get("more", False):
        del streams[incoming]
    stream.take(request)


class Stream:
    """One tar stream and the child that unpacks it."""

    def __init__(self, agent: Agent, incoming: str) -> None:
        self._agent = agent
        self._open: Dict[int, Request] = {}  # requests that have no answer yet
        self._last: Optional[Request] = None
        self._outcome: Any = None
        reader, writer = os.pipe()
        self._feed = Feed(agent.loop, writer)
        try:
            agent.jobs.run(
                "tree_tar", lambda: _unpack(reader, incoming), self._ended, seconds=_SECONDS, keep=(reader,)
            )
        except NodeError:
            self._feed.close()
            raise
        finally:
            os.close(reader)

    def take(self, request: Request) -> None:
        if self._outcome is not None:
            self._answer(request)
            return
        self._open[id(request)] = request
        if not request.get("more", False):
            self._last = request
        self._feed.put(request.payload, lambda: self._taken(request))

    def _taken(self, request: Request) -> None:
        if request is self._last:
            self._feed.close()  # its answer comes from the child
        else:
            del self._open[id(request)]
            self._agent.reply(request, {"received": len(request.payload)})

    def _ended(self, outcome: Tuple[Dict[str, Any], bytes]) -> None:
        self._outcome = outcome[0]
        self._feed.close()
        for request in self._open.values():
            self._answer(request)
        self._open.clear()

    def _answer(self, request: Request) -> None:
        self._agent.send({"id": request.id, **self._outcome})


def _unpack(reader: int, incoming: str) -> Tuple[Dict[str, Any], bytes]:
    import tarfile

    count = size = 0
    folders = {incoming}
    try:
        remove(incoming)  # what an earlier stream left
        os.makedirs(incoming)
        with os.fdopen(reader, "rb") as stream:
            with tarfile.open(fileobj=stream, mode="r|", encoding="utf-8", errors="surrogateescape") as tar:
                for member in tar:
                    _place(tar, member, incoming, folders)
                    count += 1
                    size += member.size
            while stream.read(1 << 20):
                pass  # padding behind the end mark
    except tarfile.TarError as error:
        raise NodeError("tree", "the tar stream is damaged", str(error), "sync again") from None
    except OSError as error:
        raise unwritable(os.path.dirname(incoming), error) from None
    return {"ok": True, "result": {"files": count, "bytes": size}}, b""


def _place(tar: tarfile.TarFile, member: tarfile.TarInfo, incoming: str, folders: Set[str]) -> None:
    """One member, never outside of `incoming`, never through a link, never over something."""
    parts = [part for part in member.name.split("/") if part not in ("", ".")]
    if member.name.startswith("/") or ".." in parts:
        raise _refuse(member, "it points out of the tree")
    if not parts:
        return  # the tree's own folder
    if member.isdir():
        _make_folders(incoming, parts, folders)
        return
    path = os.path.join(_make_folders(incoming, parts[:-1], folders), parts[-1])
    if member.issym():
        os.symlink(member.linkname, path)
        return
    source = tar.extractfile(member) if member.isreg() else None
    if source is None:
        raise _refuse(member, "only files, folders and symbolic links are taken")
    _copy(source, path, 0o755 if member.mode & 0o100 else 0o644)
    os.utime(path, (member.mtime, member.mtime))  # by size and time rsync tells what has not changed


def _make_folders(incoming: str, parts: List[str], folders: Set[str]) -> str:
    """The folder of these parts; each is one that we made, so none of them is a link."""
    path = incoming
    for part in parts:
        path = os.path.join(path, part)
        if path not in folders:
            os.mkdir(path)
            folders.add(path)
    return path


def _copy(source: Any, path: str, mode: int) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    with os.fdopen(fd, "wb") as target:
        os.fchmod(fd, mode)
        while True:
            data = source.read(1 << 20)
            if not data:
                return
            target.write(data)


def _refuse(member: tarfile.TarInfo, why: str) -> NodeError:
    return NodeError("tree", f"the tar stream holds {member.name!r}", why, "sync again")
