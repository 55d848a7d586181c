"""What a command answers on many hosts: equal answers are shown once, those of a slow one as they come."""

from __future__ import annotations

import json
import sys
import time

from orchestrator.cli.desk.out import facts, say, tell
from orchestrator.errors import ExitStatus, HostError
from orchestrator.phases.command import CommandEnded, CommandOutput, CommandStarted, Failed, Word
from orchestrator.render.commands import Answer, folded
from orchestrator.run import latecomers
from orchestrator.text import count

_SHORT = 2.0  # seconds that an answer is held back, so that it can be folded
_OFTEN = 0.5  # seconds between looks at what may be shown
_LATE = 1.0  # seconds after which a person is told who has not answered


class ShownAnswers:
    """What came from the hosts, and what of it was shown."""

    def __init__(self, names: list[str], *, as_json: bool) -> None:
        self.waiting = set(names)
        self.running: dict[str, float] = {}  # name -> when it was started
        self.errors: list[HostError] = []
        self.status = 0
        self._answers = {name: Answer(name) for name in names}
        self._ended: list[Answer] = []  # whole answers that are not shown yet
        self._json = as_json
        self._first_ended = 0.0  # when the oldest of them came
        self._next_look = 0.0
        self._began = time.monotonic()
        self._last_answer: float | None = None  # seconds until the slowest of those that have answered did
        self._named = as_json or not sys.stderr.isatty()  # latecomers are named once, to a person

    def take(self, word: Word | None) -> None:
        if isinstance(word, CommandStarted | Failed):
            self._last_answer = time.monotonic() - self._began
        match word:
            case CommandStarted(host):
                self.running[host] = time.monotonic()
            case CommandOutput(host, stream, data):
                self._answers[host].add(stream, data)
            case CommandEnded(host):
                self._end(self._answers[host], word)
            case Failed(host, error):
                self.waiting.discard(host)
                self.errors.append(error)
                self.status = max(self.status, int(ExitStatus.CLUSTER))
                if self._json:
                    self._print_json(self._answers[host], error)
        if time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + _OFTEN
            if self._ended and time.monotonic() - self._first_ended >= _SHORT:
                self.show_ended()
            self._show_running()
            self._name_latecomers()

    def show_ended(self) -> None:
        """The answers that are whole, equal ones once."""
        ended, self._ended = self._ended, []
        for out, err in folded(ended):
            _print(out, err)

    def _end(self, answer: Answer, end: CommandEnded) -> None:
        self.waiting.discard(end.host)
        answer.status = end.status
        self.status = max(self.status, end.status)
        notes = [end.error] if end.error else []
        if end.ended and not end.stopped:
            were = "was" if end.ended == 1 else "were"
            notes.append(f"{count(end.ended, 'process', 'processes')} that it left running {were} ended")
        if end.left:
            notes.append(f"could not be ended: {', '.join(end.left)}")
        answer.note = "; ".join(notes)
        if self._json:
            self._print_json(answer, None)
        else:
            self._first_ended = self._first_ended if self._ended else time.monotonic()
            self._ended.append(answer)

    def _name_latecomers(self) -> None:
        silent = sorted(self.waiting - self.running.keys())
        waited = time.monotonic() - self._began
        if not self._named and silent and latecomers.due(waited, _LATE, self._last_answer):
            self._named = True
            tell(f"note: {latecomers.words(silent)}")

    def _show_running(self) -> None:
        """The lines of commands that take long, as they come."""
        if self._json:
            return
        now = time.monotonic()
        for name in self.waiting:
            if now - self.running.get(name, now) >= _SHORT:
                _print(*self._answers[name].whole_lines())

    def _print_json(self, answer: Answer, error: HostError | None) -> None:
        said: dict[str, object] = {
            "host": answer.host,
            "status": answer.status,
            "stdout": answer.out.decode("utf-8", "replace"),
            "stderr": answer.err.decode("utf-8", "replace"),
        }
        if answer.dropped:
            said["dropped"] = answer.dropped
        if answer.note:
            said["note"] = answer.note
        if error is not None:
            said["error"] = {"what": error.what, "kind": error.kind, "why": error.why, "try": error.hint}
        facts(json.dumps(said))
        sys.stdout.flush()


def _print(out: list[str], err: list[str]) -> None:
    say(*out)
    sys.stdout.flush()
    tell(*err)
