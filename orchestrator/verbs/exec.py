"""`exec`: one command on all hosts, without a run, and the answer of each."""

import time

from msgspec import Struct, field

from orchestrator.connectors import Connectors
from orchestrator.errors import HostError
from orchestrator.fleet.containers import Inside
from orchestrator.phases.command import CommandEnded, CommandOutput, Commands, CommandStarted
from orchestrator.requests import ExecRequest
from orchestrator.store.known import new_run_id
from orchestrator.text import count
from orchestrator.value import Value
from orchestrator.verbs import Caller
from orchestrator.verbs.asking import logins
from orchestrator.wire import CommandEnd, Pipe

LIMIT = 4 << 20  # bytes of one stream of one host that an answer holds
_LOOK = 0.2  # seconds; a Ctrl-C takes effect in between


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
    """The part of one host's answer that is not shown yet."""

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
