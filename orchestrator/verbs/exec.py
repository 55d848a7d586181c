"""`exec`: one command on all hosts, outside any run, started on each host as soon as it connects."""

import queue
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial
from typing import TypeAlias

from msgspec import Struct, field

from orchestrator.connectors import Connectors
from orchestrator.errors import HostError
from orchestrator.fleet import Fleet
from orchestrator.fleet.containers import Inside
from orchestrator.fleet.session import Backlog, Cancelled, Session
from orchestrator.model import Host
from orchestrator.requests import ExecRequest
from orchestrator.store.known import new_run_id
from orchestrator.text import count
from orchestrator.transport import Connector
from orchestrator.value import Value
from orchestrator.verbs import Caller
from orchestrator.verbs.asking import logins
from orchestrator.wire import CommandEnd, Exec, ExecEnd, Pipe

LIMIT = 4 << 20  # bytes that an answer holds of each stream
_LOOK = 0.2  # seconds; a Ctrl-C takes effect in between


class CommandStarted(Value):
    host: str


class CommandOutput(Value):
    host: str
    stream: Pipe
    data: bytes


class CommandEnded(Value):
    host: str
    end: CommandEnd


Message: TypeAlias = CommandStarted | CommandOutput | CommandEnded | HostError


class Commands:
    """`argv` on all hosts; each host contributes exactly one `CommandEnded` or error.

    Backpressure: the queue is bounded, so a slow consumer slows down the commands.
    """

    def __init__(self, connector: Connector, hosts: Sequence[Host], argv: Sequence[str]) -> None:
        self._messages: queue.SimpleQueue[Message | Exception] = queue.SimpleQueue()
        self._backlog = Backlog()  # of all hosts together
        self._fleet = Fleet(connector, lambda _frame: None)
        self.hosts = hosts
        self._argv = tuple(argv)
        self._stopping = threading.Event()

    def start(self) -> None:
        """Connect in a separate thread: the first replies need not wait for the last host."""
        self._fleet.clock.start("exec", self._connect)

    def next(self, timeout: float) -> Message | None:
        """Return the next message, or None if none arrives in time; raise an exception from connecting."""
        try:
            message = self._fleet.clock.take(self._messages, timeout)
        except queue.Empty:
            return None
        if isinstance(message, Exception) and not isinstance(message, HostError):
            raise message
        if isinstance(message, CommandOutput):
            self._backlog.take(message.data)
            return None if self._stopping.is_set() else message  # minutes of output may wait here
        return message

    def stop(self) -> None:
        """Request the command's end on all hosts; each host's last message reports it."""
        self._stopping.set()
        self._backlog.hurry()
        for session in list(self._fleet.sessions.values()):
            session.submit(ExecEnd())

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
            self._messages.put(reason)
        else:
            for error in bad.values():
                self._messages.put(error)

    def _run(self, session: Session, _seconds: float) -> None:
        name = session.host.name
        if self._stopping.is_set():
            self._messages.put(CommandEnded(name, CommandEnd(status=0, stopped=True, ended=0, left=())))
            return
        self._messages.put(CommandStarted(name))
        session.on_output = partial(self._on_output, session)
        session.submit(Exec(argv=self._argv)).add_done_callback(partial(self._on_end, name))
        if self._stopping.is_set():
            session.submit(ExecEnd())

    def _on_output(self, session: Session, stream: Pipe, data: bytes) -> None:
        """Called by the reader of a session, which stops reading meanwhile."""
        if self._stopping.is_set():
            return
        self._backlog.add(data)
        self._messages.put(CommandOutput(session.host.name, stream, data))
        session.held = True
        self._backlog.wait(lambda: self._stopping.is_set() or not session.alive)
        session.last_message, session.held = self._fleet.clock.now(), False

    def _on_end(self, name: str, future: Future[CommandEnd]) -> None:
        self._backlog.hurry()
        error = future.exception()
        if error is None:
            self._messages.put(CommandEnded(name, future.result()))
        elif isinstance(error, HostError):
            self._messages.put(error)


class HostAnswer(Value):
    """Answer of one host to a command: its exit status and output, or an error."""

    host: str
    status: int | None  # None: unknown, and `error` gives the reason
    stdout: str
    stderr: str
    dropped: int = 0  # bytes beyond 4 MiB of each
    note: str = ""
    error: HostError | None = None


class Answer(Struct):
    """One host's answer so far; a consumer may remove output that it has shown."""

    host: str
    began: float  # monotonic
    out: bytearray = field(default_factory=bytearray)
    err: bytearray = field(default_factory=bytearray)
    dropped: int = 0  # bytes beyond the limit
    status: int | None = None  # None: it is running
    note: str = ""

    def add(self, stream: Pipe, data: bytes, room: int) -> None:
        kept = self.out if stream is Pipe.OUT else self.err
        fits = data[: max(0, room - len(kept))]
        kept += fits
        self.dropped += len(data) - len(fits)

    def end(self, end: CommandEnd) -> None:
        """Record the command's status, and a remark about its end."""
        self.status = end.status
        notes = [f"{end.error} (no shell runs the command; use `sh -c '...'`)"] if end.error else []
        if end.ended and not end.stopped:
            were = "was" if end.ended == 1 else "were"
            notes.append(f"{count(end.ended, 'process', 'processes')} that it left running {were} ended")
        if end.left:
            notes.append(f"could not be ended: {', '.join(end.left)}")
        self.note = "; ".join(notes)

    def result(self, error: HostError | None = None) -> HostAnswer:
        out, err = (data.decode("utf-8", "replace") for data in (self.out, self.err))
        return HostAnswer(self.host, self.status, out, err, self.dropped, self.note, error)


def prepare(request: ExecRequest, caller: Caller) -> Commands:
    """Return the command on all hosts, not started yet."""
    ways = {(host.ssh, host.user, host.port): host for host in reversed(request.inventory.hosts)}
    hosts = tuple(reversed(ways.values()))  # each login once: a machine may have several entries
    inside = None if request.outside else Inside(new_run_id(time.time()))
    return Commands(Connectors(logins(hosts, caller), inside), hosts, request.command)


def execute(request: ExecRequest, caller: Caller) -> dict[str, HostAnswer]:
    """Run the command to its end on every host; return the answers by host, in their order."""
    commands = prepare(request, caller)
    running: dict[str, Answer] = {}
    answers: dict[str, HostAnswer] = {}
    try:
        commands.start()
        while len(answers) < len(commands.hosts):
            match commands.next(_LOOK):
                case CommandStarted(host):
                    running[host] = Answer(host, time.monotonic())
                case CommandOutput(host, stream, data) if host in running:
                    running[host].add(stream, data, LIMIT)
                case CommandEnded(host, end):
                    answer = running.pop(host, Answer(host, 0.0))
                    answer.end(end)
                    answers[host] = answer.result()
                case HostError(host=host) as error:
                    answers[host] = running.pop(host, Answer(host, 0.0)).result(error)
    finally:
        commands.close()
    return {host.name: answers[host.name] for host in commands.hosts}
