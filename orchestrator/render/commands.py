"""Answers of many hosts to one command: equal answers once, long ones as they come. Pure."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from orchestrator.errors import HostError
from orchestrator.phases.command import CommandEnded, CommandOutput, CommandStarted, Word
from orchestrator.ranges import grouped
from orchestrator.render.fold import names
from orchestrator.text import plain, shell_signal, signal_name
from orchestrator.verbs.exec import LIMIT, Answer, HostAnswer
from orchestrator.wire import CommandEnd, Pipe

_HELD = 64 << 10  # bytes that an answer may have to be compared with others
_SHORT = 2.0  # seconds that an answer is held back, so that equal ones are shown once


def _facts(answer: HostAnswer) -> str:
    """The answer as a line of JSON."""
    error = answer.error
    found: dict[str, object] = {
        "host": answer.host,
        "status": answer.status,
        "stdout": answer.stdout,
        "stderr": answer.stderr,
    }
    found |= {"dropped": answer.dropped} if answer.dropped else {}
    found |= {"note": answer.note} if answer.note else {}
    if error is not None:
        found["error"] = {"what": error.what, "kind": error.kind, "why": error.why, "try": error.hint}
    return json.dumps(found)


StreamLines: TypeAlias = list[tuple[Pipe, str]]


class CommandAnswers:
    """Words of hosts in, lines out; `now` is a monotonic clock."""

    def __init__(self, hosts: Iterable[str], *, as_json: bool) -> None:
        self.waiting = set(hosts)
        self.running: dict[str, Answer] = {}
        self.errors: list[HostError] = []
        self.status = 0
        self._whole: list[Answer] = []  # the commands have ended, and nobody has seen how
        self._json = as_json

    def take(self, word: Word, now: float) -> StreamLines:
        """Take a word of a host; return what is shown at once."""
        match word:
            case CommandStarted(host):
                self.running[host] = Answer(host, now)
            case CommandOutput(host, stream, data):
                if (answer := self.running.get(host)) is None:
                    return []  # after its end: no agent of ours says it
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
                return (
                    [(Pipe.OUT, _facts(answer.result(error)))]
                    if self._json
                    else _stream(answer, all_of_it=True)
                )
        return []

    def due(self, now: float) -> StreamLines:
        """Return what was held back long enough."""
        if any(now - answer.began >= _SHORT for answer in self._whole):
            return self.rest()
        late = [one for one in self.running.values() if now - one.began >= _SHORT and not self._json]
        return [line for answer in late for line in _stream(answer)]

    def rest(self) -> StreamLines:
        """Return the whole answers, equal ones once."""
        whole, self._whole = self._whole, []
        groups = grouped(((bytes(one.out), bytes(one.err), one.status, one.note), one) for one in whole)
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
    """Show a group of equal answers: a line stands behind its hosts, several below them."""
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
    """`ended with status 2`, `ended by SIGKILL`: what is above 128 may be a signal, as shells count."""
    number = shell_signal(status)
    return f"ended by {signal_name(number)}" if number else f"ended with status {status}"


def _stream(answer: Answer, *, all_of_it: bool = False) -> StreamLines:
    """Take the lines that are complete, and of one that never ends what has come."""
    lines: StreamLines = []
    for pipe, data in ((Pipe.OUT, answer.out), (Pipe.ERR, answer.err)):
        end = len(data) if all_of_it or len(data) > _HELD else data.rfind(b"\n") + 1
        text = data[:end].decode("utf-8", "replace")
        lines += [(pipe, f"{answer.host}: {plain(line)}") for line in text.splitlines()]
        del data[:end]
    return lines
