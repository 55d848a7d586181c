"""A conversation with one agent: requests with replies, and frames that come unasked."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any, TypeVar

from msgspec import Struct

from orchestrator import wire
from orchestrator.clock import SYSTEM, Clock
from orchestrator.errors import HostError
from orchestrator.fleet import problems
from orchestrator.model import Host
from orchestrator.node.serve import bootstrap, frames
from orchestrator.timings import DEFAULT
from orchestrator.transport import Channel, Link
from orchestrator.wire import ProtocolError, Request

R = TypeVar("R", bound=wire.Reply)

log = logging.getLogger("orchestrate")

AGENT_IDLE = 120.0  # seconds without a word from us after which an agent leaves
_READ = 262_144
_FRAME_SECONDS = 30.0  # that a frame may take to come whole,
_SLOWEST = 10_000.0  # and bytes per second of a large one


ROOM = 32 << 20  # bytes of one host that nobody has looked at, with which its reader waits for us
MOST = 256 << 20  # bytes, with which a host is let go of: answers are awaited behind them
_FRAME = 1024  # bytes that a frame takes beside its payload
_SUSPICIOUS = 3.0  # seconds without a word of our command, after which the login is looked into


class Backlog:
    """Counts the frames of one session between its reader and whoever takes them."""

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
        """Have whoever waits look again whether it is urgent."""
        with self._changed:
            self._changed.notify_all()

    def wait(self, urgent: Callable[[], bool]) -> None:
        """Until there is room again, or reading on is `urgent`."""
        with self._changed:
            while self.size > ROOM and not urgent():
                self.clock.changed(self._changed)


class Cancelled(Exception):  # noqa: N818 - not an error: the user asked for it
    """A wait ended since its answer is no longer wanted."""


class TaskNews(Struct, frozen=True):
    """News of a task that is followed."""

    host: str
    session: Session
    news: wire.News
    payload: bytes = b""


class Lost(Struct, frozen=True):
    """The session has ended, and nobody here has closed it."""

    host: str
    session: Session
    error: HostError


Sink = Callable[[TaskNews | Lost], None]


class _Open(Struct, frozen=True):
    """A request without an answer yet; one that was given up is still answered."""

    request: Request[Any]
    future: Future[Any]


class Session:
    """One agent at the far end of one link.

    `submit` returns at once; the future ends in a reply, a HostError or `Cancelled`. News of tasks go to
    the sink, from the session's reader thread. Whatever our agent would not say ends the session: all that
    is awaited fails with one HostError (kind "protocol"), and the sink hears of the loss.
    """

    def __init__(self, host: Host, link: Link, sink: Sink, clock: Clock = SYSTEM) -> None:
        self.host = host
        self.link = link
        self.clock_offset = 0.0  # node's clock minus ours, seconds
        self.clock = clock
        self.heard = clock.now()
        self.held = False  # its reader waits for room here: it is we who do not listen
        self.backlog = Backlog(clock)
        self.on_output: Callable[[wire.Pipe, bytes], None] = lambda _stream, _data: None  # of an `Exec`
        self._hello: wire.Hello | None = None
        self._sink = sink
        self._lock = threading.Lock()  # held for moments only: a stop must get through while a send hangs
        self._sending = threading.Lock()
        self._open: dict[int, _Open] = {}
        self._followed: dict[int, frozenset[str]] = {}  # stream -> its tasks
        self._last_id = 0
        self._ended: Callable[[], HostError] | None = None
        self._closing = False
        self._greeted: Future[wire.Hello] = Future()
        self._ready = threading.Event()  # what is written is read by our command; or it is over
        self._silence = "no answer from our agent"
        self._channel: Channel | None = None
        self._stream = wire.AgentStream(self._limits, self._limit)
        self._frame_since = 0.0  # when the frame that comes began

    def start(self, timeout: float = DEFAULT.hello, beat: float = DEFAULT.beat) -> None:
        """Start the agent, which is heard every `beat` seconds; raise HostError for no hello in `timeout`."""
        began = self.clock.wall()
        self._channel = channel = self.link.open(bootstrap.argv(self.host.agent_python))
        self.clock.start(f"read {self.host.name}", self._read, channel)
        self.clock.start(f"start {self.host.name}", self._introduce, channel, timeout, beat)
        try:
            hello = self.clock.result(self._greeted, timeout)
        except FutureTimeoutError:
            why = f"{self._silence} within {timeout:.0f} s"
            error = problems.no_agent(self.host, why, None, begun=self._stream.ready)
            self.close()
            raise error from None
        # The hello was stamped when the agent was up, which is close to now, not to the beginning.
        now = self.clock.wall()
        self.clock_offset = hello.time_ns / 1e9 - now
        if abs(self.clock_offset) <= now - began:
            self.clock_offset = 0.0

    def _introduce(self, channel: Channel, timeout: float, beat: float) -> None:
        """Send our agent: in a thread, since on a way that loses large packets it would take for ever."""
        try:
            if not self.clock.flagged(self._ready, min(timeout, _SUSPICIOUS)):
                with contextlib.suppress(HostError):  # a host may allow one session only
                    self._examine(timeout)
            if not self.clock.flagged(self._ready, timeout) or not self._stream.ready:
                return
            settings = {"state": self.host.state, "idle": AGENT_IDLE, "beat": beat}
            channel.send(bootstrap.payload(settings))
        except HostError as error:
            with contextlib.suppress(HostError, FutureTimeoutError):  # what it printed says more
                self.clock.result(self._greeted, timeout)
            settle(self._greeted, error=error)

    def _examine(self, timeout: float) -> None:
        """Log in once more, with an empty stdin: our command begins, and a shell in its place ends."""
        probe = self.link.open(bootstrap.argv(self.host.agent_python))
        try:
            probe.send_eof()
            said = b""
            while frames.READY not in said and (data := probe.recv(_READ)):
                said = (said + data)[-_READ:]
            status = probe.wait(timeout)
        finally:
            probe.close()
        if frames.READY in said:
            self._silence = "a start-up file waits for input: our command did not begin"
        elif not self._ready.is_set():
            words = problems.noise(said, probe.stderr_tail())
            settle(self._greeted, error=problems.no_agent(self.host, words, status, begun=False))

    @property
    def hello(self) -> wire.Hello:
        """Return what the agent said first; only once `start` has returned."""
        assert self._hello is not None
        return self._hello

    def submit(self, request: Request[R], payload: bytes = b"") -> Future[R]:
        future: Future[R] = Future()
        with self._lock:
            if self._ended is not None:
                future.set_exception(self._ended())
                return future
            self._last_id += 1
            number = self._last_id
            self._open[number] = _Open(request, future)
            if isinstance(request, wire.Follow):
                self._followed[number] = frozenset(one.task for one in request.tasks)
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

    def speak(self) -> None:
        """Let the agent hear from us, unless something is on its way to it anyway."""
        if not self._sending.locked():
            self.submit(wire.Ping())

    def request(self, request: Request[R], payload: bytes = b"", timeout: float = 60.0) -> R:
        """Ask and wait; raise HostError (kind "timeout" when no answer came), or `Cancelled`."""
        return self.wait(self.submit(request, payload), request.OP, timeout)

    def wait(self, future: Future[R], op: str, timeout: float) -> R:
        try:
            return self.clock.result(future, timeout)
        except FutureTimeoutError:
            raise problems.silent(self.host, op, timeout) from None

    def cancel(self) -> None:
        """Give up every answer that is still awaited."""
        with self._lock:
            waiting = list(self._open.values())
        for one in waiting:
            settle(one.future, error=Cancelled())

    def give_up(self, why: str) -> None:
        """End a session whose far end hangs: what is awaited fails at once, and the sink hears of it."""
        self._finish(lambda: problems.lost(self.host, why))
        self.link.close()

    def look(self, now: float) -> None:
        """End the session when a frame has begun and does not end."""
        size, since = self._stream.wanting, self._frame_since
        if size and since and now - since > _FRAME_SECONDS + size / _SLOWEST:
            self.distrust(f"a frame of {size:,} bytes did not end within {now - since:.0f} s")

    def close(self) -> None:
        self._closing = True
        self.backlog.hurry()
        # The link first: on one that hangs, closing the channel would wait for the far end.
        self.link.close()
        if self._channel is not None:
            self._channel.close()

    @property
    def alive(self) -> bool:
        return self._ended is None

    @property
    def error(self) -> HostError | None:
        """Why it has ended; None while it goes on."""
        return None if self._ended is None else self._ended()

    def _read(self, channel: Channel) -> None:
        """The reader thread; whatever a node makes it trip over ends this session, and nothing else."""
        try:
            while self.alive and (data := channel.recv(_READ)):
                self.heard = self.clock.now()
                self._take(data)
        except ProtocolError as error:
            self.distrust(str(error))
        except Exception as error:
            log.exception("%s sent what its reader cannot take", self.host.name)
            self.distrust(repr(error))
        else:
            self._hung_up(channel)

    def _take(self, data: bytes) -> None:
        for header, payload in self._stream.feed(data):
            self._frame_since = 0.0
            self._dispatch(header, payload)
            if self.backlog.size > MOST:  # an honest one may: its tasks' words wait on its disk
                self.give_up("it sends faster than this machine takes it in")
                return
            if self.backlog.size > ROOM:
                self.held = True
                self.backlog.wait(self._urgent)
                self.heard, self.held = self.clock.now(), False
        if self._stream.ready:
            self._ready.set()
        if not self._stream.wanting:
            self._frame_since = 0.0
        elif not self._frame_since:
            self._frame_since = self.clock.now()

    def _urgent(self) -> bool:
        """Return True if reading cannot wait: for an answer that somebody waits for, or the end."""
        return bool(self._open) or not self.alive or self._closing

    def _limits(self) -> tuple[int, int]:
        with self._lock:
            requests = [one.request for one in self._open.values()]
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
        if self._hello is None:
            if "hello" not in header:
                raise ProtocolError("its first frame is not a hello")
            self._hello = wire.read(header["hello"], wire.Hello, "its hello")
            self._greeted.set_result(self._hello)
        elif "hello" in header:
            raise ProtocolError("it said hello twice")
        elif "id" in header:
            self._answer(header, payload)
        elif "exec" in header:
            with self._lock:
                runs = any(isinstance(one.request, wire.Exec) for one in self._open.values())
            pipe = next((one for one in wire.Pipe if one == header["exec"]), None)
            if not runs or pipe is None:
                raise ProtocolError("it sent output of a command that does not run")
            self.on_output(pipe, payload)
        elif "stream" in header:
            news = wire.news(header, payload)
            with self._lock:
                if news.task not in self._followed.get(news.stream, ()):
                    raise ProtocolError(f"it sent news of {news.task}, which is not followed")
            self._sink(TaskNews(self.host.name, self, news, payload))
        elif "beat" not in header:
            raise ProtocolError("it sent a frame that is neither an answer nor news")

    def _answer(self, header: dict[str, Any], payload: bytes) -> None:
        asked = self._asked(header["id"])
        outcome, error = None, None
        match header.get("ok"):
            case True:
                outcome = wire.answer(asked.request, header.get("result"), payload)
            case False:
                name = f"the error in answer to `{asked.request.OP}`"
                error = problems.refused(self.host, wire.read(header.get("error"), wire.Failure, name))
            case _:
                raise ProtocolError(f"the answer to `{asked.request.OP}` is neither good nor bad")
        with self._lock:
            self._open.pop(header["id"], None)
        settle(asked.future, outcome, error)

    def _asked(self, number: object) -> _Open:
        """The open request with that number; raise ProtocolError."""
        with self._lock:
            asked = self._open.get(number) if type(number) is int else None
        if asked is None:
            raise ProtocolError(f"it answered request {number!r}, which is not open")
        return asked

    def _hung_up(self, channel: Channel) -> None:
        """The end of the stream."""
        if not self._greeted.done():
            status, words = channel.wait(2.0), channel.stderr_tail()
            noise = problems.noise(self._stream.noise, words)
            error = self.link.explain(status, words) or problems.no_agent(
                self.host, noise, status, begun=self._stream.ready
            )
            settle(self._greeted, error=error)
        self._finish(lambda: problems.lost(self.host, "the connection was closed"))

    def distrust(self, why: str) -> None:
        """End a session whose far end says what our agent would not."""
        log.error("%s does not speak our protocol: %s", self.host.name, wire.printable(why))
        self._finish(lambda: problems.foreign(self.host, why))
        settle(self._greeted, error=problems.foreign(self.host, why))  # who is told finds it ended
        self.link.close()

    def _finish(self, error: Callable[[], HostError]) -> None:
        """The session is over, once."""
        with self._lock:
            if self._ended is not None:
                return
            self._ended = error
            waiting, self._open = list(self._open.values()), {}
        self.backlog.hurry()
        self._ready.set()
        for one in waiting:
            settle(one.future, error=error())
        if self._hello is not None and not self._closing:
            self._sink(Lost(self.host.name, self, error()))


def settle(future: Future[Any], outcome: object = None, error: BaseException | None = None) -> bool:
    """End a future; False when somebody else, a cancel for instance, was faster."""
    try:
        if error is None:
            future.set_result(outcome)
        else:
            future.set_exception(error)
    except InvalidStateError:
        return False
    return True
