"""Answers of many hosts to one command: equal answers once, long ones as they arrive. Pure."""

import json
import sys
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from msgspec.structs import asdict

from orchestrator.errors import HostError
from orchestrator.ranges import grouped
from orchestrator.render.fold import names
from orchestrator.text import plain, shell_signal, signal_name
from orchestrator.verbs.exec import (
    LIMIT,
    Answer,
    CommandEnded,
    CommandOutput,
    CommandStarted,
    HostAnswer,
    Message,
)
from orchestrator.wire import CommandEnd, Pipe

_HELD = 64 << 10  # bytes; longer answers are not compared with others
_ALWAYS = ("host", "status", "stdout", "stderr")
_SHORT = 2.0  # seconds that an answer is delayed, so that equal ones are shown once


def _facts(answer: HostAnswer) -> str:
    """Return the answer as a line of JSON."""
    facts = {name: value for name, value in asdict(answer).items() if value or name in _ALWAYS}
    if (error := answer.error) is not None:
        facts["error"] = {"what": error.what, "kind": error.kind, "why": error.why, "try": error.hint}
    return json.dumps(facts)


StreamLines: TypeAlias = list[tuple[Pipe, str]]


class CommandAnswers:
    """Messages of hosts in, lines out; `now` is a monotonic clock."""

    def __init__(self, hosts: Iterable[str], *, as_json: bool) -> None:
        self.waiting = set(hosts)
        self.running: dict[str, Answer] = {}
        self.errors: list[HostError] = []
        self.status = 0
        self._whole: list[Answer] = []  # the commands ended unobserved
        self._json = as_json

    def take(self, word: Message, now: float) -> StreamLines:
        """Take a host's message; return what is shown at once."""
        match word:
            case CommandStarted(host):
                self.running[host] = Answer(host, now)
            case CommandOutput(host, stream, data):
                if (answer := self.running.get(host)) is None:
                    return []  # after its end: our agent sends no such message
                answer.add(stream, data, LIMIT if self._json else sys.maxsize)
                if not self._json and len(answer.out) + len(answer.err) > _HELD:
                    return _stream(answer)
            case CommandEnded(host, end):
                return self._end(self.running.pop(host, Answer(host, now)), end)
            case HostError(host=host) as error:
                self.waiting.discard(host)
                self.errors.append(error)
                self.status = max(self.status, int(error.status))
                answer = self.running.pop(host, Answer(host, now))
                if self._json:
                    return [(Pipe.OUT, _facts(answer.result(error)))]
                return _stream(answer, all_of_it=True)
        return []

    def due(self, now: float) -> StreamLines:
        """Return what was delayed long enough."""
        if any(now - answer.began >= _SHORT for answer in self._whole):
            return self.rest()
        late = [answer for answer in self.running.values() if now - answer.began >= _SHORT and not self._json]
        return [line for answer in late for line in _stream(answer)]

    def rest(self) -> StreamLines:
        """Return the complete answers, equal ones once."""
        whole, self._whole = self._whole, []
        groups = grouped(
            ((bytes(answer.out), bytes(answer.err), answer.status, answer.note), answer) for answer in whole
        )
        return [line for alike in groups.values() for line in _folded(alike)]

    def _end(self, answer: Answer, end: CommandEnd) -> StreamLines:
        self.waiting.discard(answer.host)
        answer.end(end)
        self.status = max(self.status, end.status)
        if self._json:
            return [(Pipe.OUT, _facts(answer.result()))]
        self._whole.append(answer)
        return []


def _folded(alike: Sequence[Answer]) -> StreamLines:
    """Return a group of equal answers: one line next to its hosts, several lines below them."""
    first = alike[0]
    who = names(answer.host for answer in alike)
    lines: StreamLines = []
    for pipe, data in ((Pipe.OUT, first.out), (Pipe.ERR, first.err)):
        texts = [plain(line) for line in data.decode("utf-8", "replace").splitlines()]
        shown = [f"{who}: {texts[0]}"] if len(texts) == 1 else [f"{who}:", *(f"  {text}" for text in texts)]
        lines += [(pipe, line) for line in shown if texts]
    last = "; ".join(filter(None, (first.note, ending(first.status) if first.status else "")))
    return [*lines, *([(Pipe.ERR, f"{who}: {last}")] if last else [])]


def ending(status: int) -> str:
    """Return `ended with status 2`, `ended by SIGKILL`: above 128 a status may mean a signal."""
    number = shell_signal(status)
    return f"ended by {signal_name(number)}" if number else f"ended with status {status}"


def _stream(answer: Answer, *, all_of_it: bool = False) -> StreamLines:
    """Take the complete lines, and of an endless one what has arrived."""
    lines: StreamLines = []
    for pipe, data in ((Pipe.OUT, answer.out), (Pipe.ERR, answer.err)):
        end = len(data) if all_of_it or len(data) > _HELD else data.rfind(b"\n") + 1
        text = data[:end].decode("utf-8", "replace")
        lines += [(pipe, f"{answer.host}: {plain(line)}") for line in text.splitlines()]
        del data[:end]
    return lines
