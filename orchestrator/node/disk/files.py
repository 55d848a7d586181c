"""Folders and files of a host for the controller: what is there, out as a tar stream, and back in.

Out: `files_open` starts a child that packs, every `files_more` takes one piece; nothing is read ahead
of what was asked for. In: `files_begin`, pieces by `files_put`, then `files_swap` gives it its name.
"""

from __future__ import annotations

import json
import os
from collections import deque

from ..base import lenient
from ..base.annotations import Any
from ..base.fault import NodeError, reason
from ..base.paths import absolute, nearest
from ..serve.agent import Agent, Request
from ..serve.frames import MAX_PAYLOAD
from ..serve.jobs import failure
from ..serve.loop import READ
from . import archive, replace
from . import incoming as receiving
from .archive import Wanted
from .removing import remove
from .tarstream import CHUNK, FILE, FOLDER
from .untar import Stream

_SECONDS = 24 * 3600.0  # a large checkpoint on a slow line takes hours
_SHOWN = 8  # names


def listing(_agent: Agent, request: Request) -> tuple[dict[str, Any], bytes]:
    """What a path is, and the entries of a folder. A link that is named itself is followed."""
    path = absolute(request["path"])
    real = os.path.realpath(path)
    try:
        if os.path.isdir(real):
            kind, root, found = FOLDER, real, archive.entries(real)
        elif os.path.lexists(real):
            root, name = os.path.split(real)
            found = [archive.entry(real, name)]
            kind = found[0].kind
            if kind != FILE:
                raise NodeError("files", f"cannot read {path}", "it is neither a folder nor a file")
        else:
            return {"kind": "", "root": real, "near": _near(real)}, b"[]"
    except OSError as error:
        raise _unreadable(path, error) from None
    told = json.dumps(found, separators=(",", ":")).encode()
    if len(told) > MAX_PAYLOAD:
        why = f"the list of {len(found):,} files has {len(told):,} bytes, and may have {MAX_PAYLOAD:,}"
        raise NodeError("files", f"has more in {path} than one list can name", why, "name a part")
    return {"kind": kind, "root": root}, told


def open_stream(agent: Agent, request: Request) -> dict[str, Any]:
    """Start to pack what the payload names (a JSON list of names and sizes) below `root`.

    What is not as large any more is left out and told at the end; `growing` files are cut at that size.
    """
    wanted = [(str(name), int(size)) for name, size in json.loads(request.payload)]
    growing = bool(request.get("growing", False))
    stream = _Outgoing(agent, str(request["root"]), wanted, growing=growing)
    agent.rooms.setdefault("files", {})[request.id] = stream
    return {"stream": request.id}


def more(agent: Agent, request: Request) -> None:
    """The next piece, as soon as it is there; `end` behind the last one."""
    stream = agent.rooms.get("files", {}).get(request["stream"])
    if stream is None:
        raise NodeError("protocol", f"no stream {request['stream']}")
    stream.ask(request)


def close(agent: Agent, request: Request) -> dict[str, Any]:
    stream = agent.rooms.get("files", {}).pop(request["stream"], None)
    if stream is not None:
        stream.close()
    return {}


def begin(agent: Agent, request: Request) -> dict[str, Any]:
    """Make the hidden folder that is to become `target`; a target that is a link stays one."""
    if agent.state_error is None:
        receiving.remove_dead(agent.paths)
    target = os.path.realpath(absolute(request["target"]))
    try:
        return {"target": target, "incoming": replace.beside(target)}
    except OSError as error:
        raise _unwritable(target, error) from None


def put(agent: Agent, request: Request) -> None:
    """One piece of the tar stream into an incoming folder; see `untar`."""
    incoming = str(request["incoming"])
    if replace.INCOMING not in os.path.basename(incoming):
        raise NodeError("protocol", f"not an incoming folder: {incoming}")
    streams = agent.rooms.setdefault("puts", {})
    if incoming not in streams:
        receiving.hold(agent, incoming)
        streams[incoming] = Stream(agent, incoming, "files_put")
    stream = streams[incoming]
    if not request.get("more", False):
        del streams[incoming]
    stream.take(request)


def swap(_agent: Agent, request: Request) -> dict[str, Any]:
    """Add what is `kept` (the payload, a JSON list) from the old one, and replace it.

    With `single` the incoming folder holds one file of that name, which becomes the target.
    """
    incoming, target, single = str(request["incoming"]), str(request["target"]), request.get("single")
    try:
        replace.keep(target, incoming, json.loads(request.payload))
        if single is None:
            replace.swap(incoming, target)
        else:
            replace.swap_file(incoming, str(single), target)
    except OSError as error:
        remove(incoming)
        raise _unwritable(target, error) from None
    return {}


def take_away(_agent: Agent, request: Request) -> dict[str, Any]:
    """Remove a folder or file; a link that is named itself is followed, and stays."""
    target = os.path.realpath(absolute(request["target"]))
    try:
        replace.take_away(target)
    except OSError as error:
        raise _unwritable(target, error) from None
    return {}


class _Outgoing:
    """One tar stream out of a child, read only when a piece of it was asked for."""

    def __init__(self, agent: Agent, root: str, wanted: Wanted, *, growing: bool) -> None:
        self._agent = agent
        self._waiting: deque[Request] = deque()
        self._outcome: Any = None
        self._reader, writer = os.pipe()
        os.set_blocking(self._reader, False)
        lenient.enlarge(writer, CHUNK)
        try:
            agent.jobs.run(
                "files_open",
                lambda: _pack(writer, root, wanted, growing=growing),
                self._ended,
                seconds=_SECONDS,
                keep=(writer,),
            )
        except NodeError:
            self.close()
            raise
        finally:
            os.close(writer)

    def ask(self, request: Request) -> None:
        self._waiting.append(request)
        if self._reader >= 0:
            self._agent.loop.watch(self._reader, READ, self._read)
        else:
            self._answer_end()

    def close(self) -> None:
        """The child, if it still writes, ends with its pipe."""
        if self._reader >= 0:
            self._agent.loop.unwatch(self._reader)
            os.close(self._reader)
            self._reader = -1

    def _read(self) -> None:
        while self._waiting:
            try:
                data = os.read(self._reader, CHUNK)
            except BlockingIOError:
                return
            if not data:
                self.close()
                self._answer_end()
                return
            self._agent.reply(self._waiting.popleft(), {"end": False}, data)
        self._agent.loop.unwatch(self._reader)

    def _ended(self, outcome: tuple[dict[str, Any], bytes]) -> None:
        self._outcome = outcome[0]
        self._answer_end()

    def _answer_end(self) -> None:
        """When both the last byte and the child's word are here."""
        if self._reader >= 0 or self._outcome is None:
            return
        while self._waiting:
            self._agent.send({"id": self._waiting.popleft().id, **self._outcome})


def _pack(writer: int, root: str, wanted: Wanted, *, growing: bool) -> tuple[dict[str, Any], bytes]:
    with os.fdopen(writer, "wb", buffering=CHUNK) as out:
        try:
            gone = archive.pack(out, root, wanted, growing=growing)
        except OSError as error:
            if isinstance(error, BrokenPipeError):
                raise
            return failure(_unreadable(str(error.filename or root), error))
    return {"ok": True, "result": {"end": True, "gone": gone}}, b""


def _near(path: str) -> dict[str, Any]:
    """The nearest folder that is there, and some of what it holds."""
    above = nearest(os.path.dirname(path))
    names = sorted(name for name in lenient.listed(above) if not name.startswith("."))
    return {"folder": above, "names": names[:_SHOWN], "more": max(0, len(names) - _SHOWN)}


def _unreadable(path: str, error: OSError) -> NodeError:
    return NodeError("files", f"cannot read {path}", reason(error))


def _unwritable(path: str, error: OSError) -> NodeError:
    why = reason(error)
    return NodeError("files", f"cannot write {path}", why, "make room there, or look at who may write")
