"""A conversation with one agent: requests with replies, and unsolicited frames."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any, TypeVar

from orchestrator import wire
from orchestrator.clock import SYSTEM, Clock
from orchestrator.errors import HostError
from orchestrator.fleet import problems
from orchestrator.model import Host
from orchestrator.node.serve import bootstrap, frames
from orchestrator.timings import DEFAULT
from orchestrator.transport import Channel, Link
from orchestrator.value import Value
from orchestrator.wire import ProtocolError, Request

R = TypeVar("R", bound=wire.Reply)

log = logging.getLogger("orchestrate")

AGENT_IDLE = 120.0  # seconds without a message from us after which an agent exits
_READ = 262_144
ROOM = 32 << 20  # unprocessed bytes of one host, at which its reader waits
MOST = 256 << 20  # bytes, at which a host is given up: replies are queued behind them
_FRAME = 1024  # bytes that a frame takes besides its payload


class Backlog:
    """Counts the frames of one session between its reader and their consumer."""

    def __init__(self, clock: Clock = SYSTEM) -> None:
        self.size = 0
        self.clock = clock
        self._changed = threading.Condition()

    def add(self, payload: bytes) -> None:
        with self._changed:
            self.size += len(payload) + _FRAME

    def take(self, payload: bytes) -> None:
        with self._changed:
            self.size -= len(payload) + _FRAME
            self._changed.notify_all()

    def hurry(self) -> None:
        """Make a waiting thread check again whether it is urgent."""
        with self._changed:
            self._changed.notify_all()

    def wait(self, urgent: Callable[[], bool]) -> None:
        """Wait until there is room again, or reading on is `urgent`."""
        with self._changed:
            while self.size > ROOM and not urgent():
                self.clock.changed(self._changed)


class Cancelled(Exception):  # noqa: N818 - not an error: the user asked for it
    """A wait ended because its reply is no longer needed."""


class TaskNews(Value):
    """A frame about a task that is followed."""

    host: str
    session: Session
    news: wire.News
    payload: bytes = b""


class Lost(Value):
    """The session has ended without being closed on this side."""

    host: str
    session: Session
    error: HostError


Sink = Callable[[TaskNews | Lost], None]


class _Open(Value):
    """A request without a reply yet; an abandoned one still receives its reply."""

    request: Request[Any]
    future: Future[Any]


class Session:
    """One agent at the remote end of one link.

    `submit` returns at once; the future ends in a reply, a HostError or `Cancelled`. Frames about tasks go
    to the sink, from the session's reader thread. Anything that our agent would not send ends the session:
    all pending requests fail with one HostError (kind "protocol"), and the sink receives the loss.
    """

    def __init__(self, host: Host, link: Link, sink: Sink, clock: Clock = SYSTEM) -> None:
        self.host = host
        self.link = link
        self.clock_offset = 0.0  # node's clock minus ours, seconds
        self.clock = clock
        self.last_message = clock.now()
        self.held = False  # its reader waits for room here: this side is not consuming
        self.backlog = Backlog(clock)
        self.on_output: Callable[[wire.Pipe, bytes], None] = lambda _stream, _data: None  # of an `Exec`
        self._hello: wire.Hello | None = None
        self._sink = sink
        self._lock = threading.Lock()  # held only briefly: a stop must get through while a send blocks
        self._sending = threading.Lock()
        self._open: dict[int, _Open] = {}
        self._followed: dict[int, frozenset[str]] = {}  # stream -> its tasks
        self.dropped: set[int] = set()  # ended streams, whose late frames are ignored
        self._last_id = 0
        self._ended: Callable[[], HostError] | None = None
        self._closing = False
        self._greeted: Future[wire.Hello] = Future()
        self._channel: Channel | None = None
        self._stream = wire.AgentStream(self._limits, self._limit)
        self._ahead: list[tuple[Request[Any], Future[Any]]] = []

    def start(
        self, timeout: float = DEFAULT.hello, beat: float = DEFAULT.beat, ahead: Sequence[Request[Any]] = ()
    ) -> None:
        """Start the agent, with a heartbeat every `beat` seconds; raise HostError without a hello.

        The requests in `ahead` are sent along with it: submitting an equal one later returns their reply.
        """
        began = self.clock.wall()
        self._channel = channel = self.link.open(bootstrap.argv(self.host.agent_python))
        self.clock.start(f"read {self.host.name}", self._read, channel, beat, ahead)
        try:
            hello = self.clock.result(self._greeted, timeout)
        except FutureTimeoutError:
            begun, why = self._stream.ready, f"no reply from the agent within {timeout:.0f} s"
            why += "" if begun else "; a startup file may wait, or start another shell"
            error = problems.no_agent(self.host, why, None, begun=begun)
            self.close()
            raise error from None
        # The hello was stamped when the agent was up, which is close to now, not to the beginning.
        now = self.clock.wall()
        self.clock_offset = hello.time_ns / 1e9 - now
        if abs(self.clock_offset) <= now - began:
            self.clock_offset = 0.0

    def _introduce(self, channel: Channel, beat: float, ahead: Sequence[Request[Any]]) -> None:
        """Send our agent's code, which our command now reads, and the first requests."""
        settings = {"state": self.host.state, "idle": AGENT_IDLE, "beat": beat}
        made = [(request, self._open_request(request)) for request in ahead]
        self._ahead = [(request, future) for request, (_, future) in made]
        requests = [frames.pack(wire.header(number, request), b"") for request, (number, _) in made]
        try:
            channel.send(b"".join((bootstrap.payload(settings), *requests)))
        except HostError:
            pass  # the end of its output shows the reason
        except OSError as error:  # our own code cannot be read
            settle(self._greeted, error=error)

    @property
    def hello(self) -> wire.Hello:
        """Return the agent's first message; only once `start` has returned."""
        assert self._hello is not None
        return self._hello

    def submit(self, request: Request[R], payload: bytes = b"") -> Future[R]:
        for sent in self._ahead:
            if sent[0] == request:
                self._ahead.remove(sent)
                return sent[1]
        number, future = self._open_request(request)
        if future.done():
            return future
        self.backlog.hurry()
        assert self._channel is not None
        data = frames.pack(wire.header(number, request), payload)
        try:
            with self._sending:
                self._channel.send(data)
        except HostError as error:
            with self._lock:
                self._open.pop(number, None)
            settle(future, error=error)
        return future

    def _open_request(self, request: Request[R]) -> tuple[int, Future[R]]:
        """Register a request to be sent; return its number and reply, an error if the session ended."""
        future: Future[R] = Future()
        with self._lock:
            if self._ended is not None:
                future.set_exception(self._ended())
            self._last_id += 1
            number = self._last_id
            if not future.done():
                self._open[number] = _Open(request, future)
            if isinstance(request, wire.Follow):
                self._followed[number] = frozenset(start.task for start in request.tasks)
        return number, future

    def unfollow(self, *streams: int) -> None:
        """End these streams of tasks, or all of them."""
        for stream in streams or tuple(self._followed):
            if stream not in self.dropped:
                self.dropped.add(stream)
                self.submit(wire.Unfollow(target=stream))

    def speak(self) -> None:
        """Send the agent a sign of life, unless something is being sent anyway."""
        if not self._sending.locked():
            self.submit(wire.Ping())

    def request(self, request: Request[R], payload: bytes = b"", timeout: float = 60.0) -> R:
        """Send a request and wait; raise HostError (kind "timeout" without a reply), or `Cancelled`."""
        return self.wait(self.submit(request, payload), request.OP, timeout)

    def wait(self, future: Future[R], op: str, timeout: float) -> R:
        try:
            return self.clock.result(future, timeout)
        except FutureTimeoutError:
            raise problems.silent(self.host, op, timeout) from None

    def cancel(self) -> None:
        """Abandon every reply that is still awaited."""
        with self._lock:
            waiting = list(self._open.values())
        for future in waiting:
            settle(future.future, error=Cancelled())

    def give_up(self, why: str) -> None:
        """End a session whose remote end hangs: pending requests fail, and the sink receives the loss."""
        self._finish(lambda: problems.lost(self.host, why))
        self.link.close()

    def close(self) -> None:
        self._closing = True
        self.backlog.hurry()
        # The link first: on a hanging one, closing the channel would wait for the remote end.
        self.link.close()
        if self._channel is not None:
            self._channel.close()

    @property
    def alive(self) -> bool:
        return self._ended is None

    @property
    def error(self) -> HostError | None:
        """Return why the session has ended; None while it is open."""
        return None if self._ended is None else self._ended()

    def _read(self, channel: Channel, beat: float, ahead: Sequence[Request[Any]]) -> None:
        """The reader thread; an error caused by a node's data ends this session, and nothing else."""
        introduced = False
        try:
            while self.alive and (data := channel.recv(_READ)):
                if len(data) > _FRAME:  # a frame could come byte by byte forever
                    self.last_message = self.clock.now()
                self._take(data)
                if self._stream.ready and not introduced:
                    introduced = True
                    self._introduce(channel, beat, ahead)
        except ProtocolError as error:
            self.distrust(str(error))
        except Exception as error:
            log.exception("%s sent what its reader cannot take", self.host.name)
            self.distrust(repr(error))
        else:
            self._hung_up(channel)

    def _take(self, data: bytes) -> None:
        for header, payload in self._stream.feed(data):
            self._dispatch(header, payload)
            if self.backlog.size > MOST:  # not the host's fault: its tasks' output is safe on its disk
                self.give_up("it sends faster than this machine can process")
                return
            if self.backlog.size > ROOM:
                self.held = True
                # Reading cannot wait while a reply is awaited, nor for the end.
                self.backlog.wait(lambda: bool(self._open) or not self.alive or self._closing)
                self.last_message, self.held = self.clock.now(), False

    def _limits(self) -> tuple[int, int]:
        with self._lock:
            requests = [open_request.request for open_request in self._open.values()]
            news = wire.NEWS_PAYLOAD if self._followed else 0
        return (
            max(wire.HEAD, *(request.HEAD for request in requests), 0),
            max(news, *(request.PAYLOAD for request in requests), 0),
        )

    def _limit(self, header: dict[str, Any]) -> int:
        if "id" in header:
            return self._asked(header["id"]).request.PAYLOAD if header.get("ok") is True else 0
        return wire.NEWS_PAYLOAD if "stream" in header or "exec" in header else 0

    def _dispatch(self, header: dict[str, Any], payload: bytes) -> None:
        self.last_message = self.clock.now()
        if self._hello is None:
            if "hello" not in header:
                raise ProtocolError("its first frame is not a hello")
            self._hello = wire.read(header["hello"], wire.Hello, "its hello")
            self._greeted.set_result(self._hello)
        elif "hello" in header:
            raise ProtocolError("it sent two hellos")
        elif "id" in header:
            self._answer(header, payload)
        elif "exec" in header:
            with self._lock:
                runs = any(isinstance(pending.request, wire.Exec) for pending in self._open.values())
            pipe = next((pipe for pipe in wire.Pipe if pipe == header["exec"]), None)
            if not runs or pipe is None:
                raise ProtocolError("it sent output of a command that does not run")
            self.on_output(pipe, payload)
        elif "stream" in header:
            news = wire.news(header, payload)
            with self._lock:
                if news.task not in self._followed.get(news.stream, ()):
                    raise ProtocolError(f"it sent an update about {news.task}, which is not followed")
            self._sink(TaskNews(self.host.name, self, news, payload))
        elif "beat" not in header:
            raise ProtocolError("it sent a frame that is neither a reply nor an update")

    def _answer(self, header: dict[str, Any], payload: bytes) -> None:
        pending = self._asked(header["id"])
        outcome, error = None, None
        match header.get("ok"):
            case True:
                outcome = wire.answer(pending.request, header.get("result"), payload)
            case False:
                name = f"the error in answer to `{pending.request.OP}`"
                error = problems.refused(self.host, wire.read(header.get("error"), wire.Failure, name))
            case _:
                raise ProtocolError(f"the answer to `{pending.request.OP}` is neither a result nor an error")
        with self._lock:
            self._open.pop(header["id"], None)
        settle(pending.future, outcome, error)

    def _asked(self, number: object) -> _Open:
        """Return the open request with that number; raise ProtocolError."""
        with self._lock:
            pending = self._open.get(number) if type(number) is int else None
        if pending is None:
            raise ProtocolError(f"it answered request {number!r}, which is not open")
        return pending

    def _hung_up(self, channel: Channel) -> None:
        if not self._greeted.done():
            status, stderr = channel.wait(2.0), channel.stderr_tail()
            noise = problems.noise(self._stream.noise, stderr)
            error = self.link.explain(status, stderr) or problems.no_agent(
                self.host, noise, status, begun=self._stream.ready
            )
            settle(self._greeted, error=error)
        self._finish(lambda: problems.lost(self.host, "the connection was closed"))

    def distrust(self, why: str) -> None:
        """End a session whose remote end sends what our agent would not."""
        log.error("%s does not speak our protocol: %s", self.host.name, wire.printable(why))
        self._finish(lambda: problems.foreign(self.host, why))
        settle(self._greeted, error=problems.foreign(self.host, why))  # receivers find it ended
        self.link.close()

    def _finish(self, error: Callable[[], HostError]) -> None:
        with self._lock:
            if self._ended is not None:
                return
            self._ended = error
            waiting, self._open = list(self._open.values()), {}
        self.backlog.hurry()
        for future in waiting:
            settle(future.future, error=error())
        if self._hello is not None and not self._closing:
            self._sink(Lost(self.host.name, self, error()))


def settle(future: Future[Any], outcome: object = None, error: BaseException | None = None) -> bool:
    """Complete a future; return False if something else, such as a cancel, was faster."""
    try:
        if error is None:
            future.set_result(outcome)
        else:
            future.set_exception(error)
    except InvalidStateError:
        return False
    return True
