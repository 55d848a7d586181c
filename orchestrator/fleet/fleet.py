"""All sessions of a run: opened in parallel, asked together, each reply kept with its host."""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Generic, TypeVar

from orchestrator import processes
from orchestrator.clock import SYSTEM, Clock
from orchestrator.errors import HereError, HostError, HostErrors, Trouble
from orchestrator.fleet.session import Cancelled, Session, Sink, settle
from orchestrator.model import Host
from orchestrator.timings import DEFAULT, Timings
from orchestrator.transport import Connector
from orchestrator.value import Value
from orchestrator.wire import Reply, Request

A = TypeVar("A")
T = TypeVar("T")
R = TypeVar("R", bound=Reply)

CONNECT_TIMEOUT = 15.0
_TICK = 0.5
_FROZEN = 4.0  # seconds; a longer gap between two ticks: this process itself was suspended
POOL = 32  # threads that connect or push at once
_PAUSES = (0.2, 0.4, 0.8, 1.6, 2.0, 2.0)  # seconds at most between tries
_PASSING = frozenset({Trouble.HUNG_UP, Trouble.LOST})  # may be over at the next try
_LAST_MOMENTS = 2.0  # seconds that cancelled work has for cleaning up


class Answers(Value, Generic[T]):
    """Replies and errors of hosts, by name; a host is in exactly one of the two."""

    good: dict[str, T]
    bad: HostErrors


class Fleet:
    """The open sessions of a run, by host name."""

    keep_alive = 20.0  # seconds between our own messages to an agent, which exits without any

    def __init__(
        self, connector: Connector, sink: Sink, timings: Timings = DEFAULT, clock: Clock = SYSTEM
    ) -> None:
        processes.allow_files()  # in a program that uses the API, too
        self.clock = clock
        self.sessions: dict[str, Session] = {}
        self._connector = connector
        self._sink = sink
        self._cancelled = False
        self._waiting: dict[Future[Any], None] = {}
        self._lock = threading.Lock()
        self._watched: dict[Session, None] = {}  # including those that are being reopened
        self._closed = threading.Event()
        self._beats = False  # the monitoring thread has begun
        self._timings = timings
        self._pool: list[threading.Thread] = []

    def connect(
        self,
        hosts: Iterable[Host],
        on_open: Callable[[Session, float], None] = lambda *_: None,
        ahead: Callable[[Host], Sequence[Request[Any]]] = lambda _: (),
    ) -> HostErrors:
        """Connect to all hosts in parallel; return the errors of those that failed.

        `on_open(session, seconds)` is called through `Clock.post` for each one that responds. `ahead` returns
        the first requests to a host, which are sent along with the agent.
        """

        def open_host(host: Host) -> Session:
            began = self.clock.now()
            session = self.open(host, ahead=ahead(host))
            self.clock.post(partial(opened, session, self.clock.now() - began))
            return session

        def opened(session: Session, seconds: float) -> None:
            self.sessions[session.host.name] = session  # at once: a cancel has to find it, to close it
            on_open(session, seconds)

        by_name = {host.name: host for host in hosts}
        answers = self.each(by_name, open_host)
        for name in by_name:  # in host order, not in order of the replies
            if (session := self.sessions.pop(name, None)) is not None:
                self.sessions[name] = session
        return answers.bad

    def open(
        self, host: Host, timeout: float = CONNECT_TIMEOUT, ahead: Sequence[Request[Any]] = ()
    ) -> Session:
        """Open a new session with one host, not yet among `sessions`; raise HostError.

        A host that hangs up at once, as a busy sshd does, or whose connection breaks meanwhile, is retried
        after a random delay.
        """
        deadline = self.clock.now() + timeout
        for longest in _PAUSES:
            try:
                return self._open(host, deadline - self.clock.now(), ahead)
            except HostError as error:
                pause = longest * self.clock.between(0.3, 1.0)
                if error.kind not in _PASSING or self.clock.now() + pause + 1.0 > deadline:
                    raise
            self.clock.sleep(pause)
        return self._open(host, deadline - self.clock.now(), ahead)

    def _open(self, host: Host, timeout: float, ahead: Sequence[Request[Any]]) -> Session:
        try:
            link = self._connector.connect(host, timeout)
            session = Session(host, link, self._sink, self.clock)
            try:
                session.start(self._timings.hello, self._timings.beat, ahead)
                self._watch(session)
            except BaseException:
                session.close()
                raise
        except OSError as error:  # no process, thread, descriptor or memory, or an unreadable file
            raise HereError(host.name, error.strerror or str(error)) from error
        return session

    def _watch(self, session: Session) -> None:
        """Give the session up when its agent's heartbeats stop."""
        with self._lock:
            self._watched[session] = None
            if not self._beats:
                self.clock.start("pulse", self._pulse)
                self._beats = True

    def _pulse(self) -> None:
        looked = spoke = self.clock.now()
        while not self.clock.flagged(self._closed, min(_TICK, self._timings.silence / 4)):
            now = self.clock.now()
            with self._lock:
                self._watched = {session: None for session in self._watched if session.alive}
                sessions = list(self._watched)
            if now - looked > _FROZEN:  # messages received meanwhile are yet to be processed
                for session in sessions:
                    session.last_message = now
            looked = now
            for session in sessions:
                if session.held:
                    session.last_message = now
                if now - session.last_message > self._timings.silence:
                    session.give_up(f"no message for {self._timings.silence:.0f} s")
            if now - spoke > self.keep_alive:
                spoke = now
                for session in sessions:
                    session.speak()

    def session(self, name: str) -> Session:
        """Return the session with a host; raise HostError if there is none any more."""
        if (session := self.sessions.get(name)) is None:
            raise HostError(name, "was lost", kind=Trouble.LOST, why="there is no connection")
        return session

    def let_go(self, name: str) -> None:
        """Close the session with a host, if there is one."""
        session = self.sessions.pop(name, None)
        if session is not None:
            session.close()

    def in_pool(self, work: Callable[[], T]) -> T:
        """Do slow work, such as reading a lot, in a thread of the pool; raise HostError or `Cancelled`."""
        answers = self.each({"": work}, lambda work: work())
        for error in answers.bad.values():
            raise error
        return answers.good[""]

    def each(self, items: Mapping[str, T], work: Callable[[T], A], pool: int = POOL) -> Answers[A]:
        """Do blocking work for each item, by name, in a bounded pool of threads; raise `Cancelled`."""
        futures = {name: Future[A]() for name in items}
        todo = iter(list(items.items()))  # shared by all threads: taking the next one is atomic
        with self._lock:
            if self._cancelled:
                raise Cancelled
            self._waiting.update(dict.fromkeys(futures.values()))

        def serve() -> None:
            for name, item in todo:
                if futures[name].done():  # cancelled
                    continue
                try:
                    outcome = work(item)
                except BaseException as error:
                    settle(futures[name], error=error)
                else:
                    settle(futures[name], outcome)

        self._pool = [thread for thread in self._pool if thread.is_alive()]
        for number in range(min(pool, len(items))):
            try:
                self._pool.append(self.clock.start(f"pool {number}", serve))
            except OSError:
                if not number:
                    raise
                break  # the existing ones do all of it
        answers: Answers[A] = Answers({}, {})
        try:
            for key, future in futures.items():
                try:
                    answers.good[key] = self.clock.result(future)
                except HostError as error:
                    answers.bad[key] = error
            return answers
        finally:
            with self._lock:
                for future in futures.values():
                    self._waiting.pop(future, None)

    def ask(
        self,
        question: Request[R] | Mapping[str, Request[R]],
        *,
        timeout: float = 60.0,
        hosts: Iterable[str] | None = None,
    ) -> Answers[R]:
        """Send one request to these hosts or to all, or each host its own; wait for all.

        One round trip: all requests are sent before the first reply is awaited. A host that was dropped
        meanwhile has an error, like one that is lost.
        """
        return self.begin(question, timeout=timeout, hosts=hosts)()

    def begin(
        self,
        question: Request[R] | Mapping[str, Request[R]],
        *,
        timeout: float = 60.0,
        hosts: Iterable[str] | None = None,
    ) -> Callable[[], Answers[R]]:
        """Send requests, which have `timeout` seconds; others may follow before the replies are read."""
        futures: dict[str, tuple[Session, str, Future[R]]] = {}
        bad: HostErrors = {}
        self._check()
        if isinstance(question, Request):
            question = dict.fromkeys(self.sessions if hosts is None else hosts, question)
        for name, request in question.items():
            try:
                session = self.session(name)
            except HostError as error:
                bad[name] = error
            else:
                futures[name] = session, request.OP, session.submit(request)
        self._check()  # a cancel that came while we were submitting has cancelled only the first ones
        deadline = self.clock.now() + timeout

        def gather() -> Answers[R]:
            answers: Answers[R] = Answers({}, dict(bad))
            for name, (session, op, future) in futures.items():
                try:
                    answers.good[name] = session.wait(future, op, max(0.01, deadline - self.clock.now()))
                except HostError as error:
                    answers.bad[name] = error
            return answers

        return gather

    def cancel(self) -> None:
        """Make every wait of this fleet end with `Cancelled`, now and until `resume`."""
        with self._lock:  # to the end: a `resume` in between would see its own waits cancelled
            self._cancelled = True
            waiting, self._waiting = list(self._waiting), {}
            for future in waiting:
                settle(future, error=Cancelled())
            for session in list(self.sessions.values()):
                session.cancel()

    def _check(self) -> None:
        with self._lock:
            if self._cancelled:
                raise Cancelled

    def resume(self) -> None:
        with self._lock:
            self._cancelled = False

    def close(self) -> None:
        """Close every connection; abandoned work gets a moment to remove what it created here."""
        self._closed.set()
        for session in list(self.sessions.values()):
            session.close()
        self._connector.close()
        deadline = self.clock.now() + _LAST_MOMENTS
        for thread in self._pool:
            self.clock.join(thread, max(0.0, deadline - self.clock.now()))
