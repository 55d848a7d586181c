"""One command on many hosts: started on each as it connects, with its output and end as they arrive."""

import queue
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial
from typing import TypeAlias

from orchestrator import wire
from orchestrator.errors import HostError
from orchestrator.fleet import Fleet
from orchestrator.fleet.session import Backlog, Cancelled, Session
from orchestrator.model import Host
from orchestrator.transport import Connector
from orchestrator.value import Value


class CommandStarted(Value):
    host: str


class CommandOutput(Value):
    host: str
    stream: wire.Pipe
    data: bytes


class CommandEnded(Value):
    host: str
    end: wire.CommandEnd


Word: TypeAlias = CommandStarted | CommandOutput | CommandEnded | HostError


class Commands:
    """`argv` on all hosts; each host contributes exactly one `CommandEnded` or error.

    Backpressure: what waits here is bounded, so a slow consumer slows down the commands.
    """

    def __init__(self, connector: Connector, hosts: Sequence[Host], argv: Sequence[str]) -> None:
        self._words: queue.SimpleQueue[Word | Exception] = queue.SimpleQueue()
        self._backlog = Backlog()  # of all hosts together
        self._fleet = Fleet(connector, lambda _frame: None)
        self.hosts = hosts
        self._argv = tuple(argv)
        self._stopping = threading.Event()

    def start(self) -> None:
        """Connect in a separate thread: the first replies need not wait for the last host."""
        self._fleet.clock.start("exec", self._connect)

    def next(self, timeout: float) -> Word | None:
        """Return the next message, or None if none arrives in time; raise what ended the connecting."""
        try:
            word = self._fleet.clock.take(self._words, timeout)
        except queue.Empty:
            return None
        if isinstance(word, Exception) and not isinstance(word, HostError):
            raise word
        if isinstance(word, CommandOutput):
            self._backlog.take(word.data)
            return None if self._stopping.is_set() else word  # minutes of it may wait here
        return word

    def stop(self) -> None:
        """Ask for the command's end everywhere; the hosts' last messages report where it ended."""
        self._stopping.set()
        self._backlog.hurry()
        for session in list(self._fleet.sessions.values()):
            session.submit(wire.ExecEnd())

    def close(self) -> None:
        """Close the connections; agents end what still runs."""
        self._stopping.set()
        self._backlog.hurry()
        self._fleet.close()

    def _connect(self) -> None:
        try:
            bad = self._fleet.connect(self.hosts, self._run)
        except Cancelled:
            pass
        except Exception as reason:  # otherwise a consumer would wait for these hosts forever
            self._words.put(reason)
        else:
            for error in bad.values():
                self._words.put(error)

    def _run(self, session: Session, _seconds: float) -> None:
        name = session.host.name
        if self._stopping.is_set():
            self._words.put(CommandEnded(name, wire.CommandEnd(status=0, stopped=True, ended=0, left=())))
            return
        self._words.put(CommandStarted(name))
        session.on_output = partial(self._on_output, session)
        session.submit(wire.Exec(argv=self._argv)).add_done_callback(partial(self._on_end, name))
        if self._stopping.is_set():
            session.submit(wire.ExecEnd())

    def _on_output(self, session: Session, stream: wire.Pipe, data: bytes) -> None:
        """Called by the reader of a session, which stops reading meanwhile."""
        if self._stopping.is_set():
            return
        self._backlog.add(data)
        self._words.put(CommandOutput(session.host.name, stream, data))
        session.held = True
        self._backlog.wait(lambda: self._stopping.is_set() or not session.alive)
        session.last_message, session.held = self._fleet.clock.now(), False

    def _on_end(self, name: str, future: Future[wire.CommandEnd]) -> None:
        self._backlog.hurry()
        error = future.exception()
        if error is None:
            self._words.put(CommandEnded(name, future.result()))
        elif isinstance(error, HostError):
            self._words.put(error)
