"""Statements of tasks about their end: their own report, else the last lines of the log. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any, Self

from orchestrator.diagnosis import lastwords, rules, tracebacks
from orchestrator.diagnosis.rules import Rule
from orchestrator.events import FailureKind
from orchestrator.text import plain

MESSAGE = 4000  # characters of a report's message
_SHORT = 300
_CHAIN = 6
_NUMBER = re.compile(r"0x[0-9a-fA-F]+|\d+")


class How(StrEnum):
    """Relation of an exception in a chain to the one before it, in the words of node/hook/site_errors.py."""

    CAUSE = "cause"  # that was raised from it
    CONTEXT = "context"  # that was raised while it was handled
    PART = "part"  # a group that holds it

    @classmethod
    def of(cls, word: object) -> How | None:
        """That which a stranger's word names; None for any other."""
        return next((one for one in cls if one == word), None)


@dataclass(frozen=True)
class Raised:
    """An exception as the task's own Python reported it; printable, and of bounded length."""

    type: str  # "" for a program's own error
    message: str
    file: str = ""
    line: int = 0
    how: How | None = None  # in a chain
    note: str = ""  # that the program added to it
    why: str = ""  # of a program's own error, as `hint`
    hint: str = ""
    chain: tuple[Raised, ...] = ()

    @classmethod
    def parse(cls, data: Mapping[str, Any]) -> Self:
        """Read an `error` record, which is input from a stranger: whatever does not fit is left out."""
        chain = data.get("chain")
        line = data.get("line")
        links = [one for one in chain if isinstance(one, dict)] if isinstance(chain, list) else []
        return cls(
            type=_text(data.get("type"), _SHORT),
            message=_text(data.get("message"), MESSAGE, lines=True),
            file=_text(data.get("file"), _SHORT),
            line=line if isinstance(line, int) and 0 < line < 10**9 else 0,
            how=How.of(data.get("how")),
            note=_text(data.get("note"), _SHORT),
            why=_text(data.get("why"), _SHORT),
            hint=_text(data.get("hint"), _SHORT),
            chain=tuple(Raised.parse({**one, "chain": []}) for one in links[:_CHAIN]),
        )

    @property
    def is_exit(self) -> bool:
        """Return True if it is `sys.exit("...")` and no exception that somebody made."""
        return self.type == "SystemExit"

    @property
    def words(self) -> tuple[str, ...]:
        """Return an exception as Python prints it, without the traceback."""
        first, *rest = self.message.split("\n")
        name = "" if self.is_exit else self.type
        head = f"{name}: {first}" if name and first else name or first
        return tuple(line for line in (head, *rest) if line.strip())

    @property
    def in_one_line(self) -> str:
        return lastwords.one_line(self.type, self.words) if self.words else self.type

    @property
    def where(self) -> str:
        """`train.py, line 6`; "" where it is not known."""
        return lastwords.place(self.file, self.line)

    @property
    def inner(self) -> str:
        """The exception of another process or of a data set's function, whose traceback is its message."""
        rows = self.message.split("\n")
        raised = tracebacks.last(rows)
        return lastwords.told(rows, raised) if raised is not None and raised.file else ""

    @property
    def told(self) -> str:
        """In a few words, with its place."""
        if self.type.endswith("RemoteTraceback") and self.inner:
            return self.inner
        return f"{self.in_one_line} ({self.where})" if self.where else self.in_one_line


@dataclass(frozen=True)
class Statement:
    """The last lines of a task's log, and its own report of an error if it made one."""

    lines: Sequence[str]
    report: Raised | None = None
    port: int = 0  # of the task; 0 where it is not known
    others: frozenset[int] = frozenset()  # the ports of the run's other tasks

    @cached_property
    def words(self) -> Sequence[str]:
        """From the exception's own line on."""
        return self.report.words if self.report else lastwords.final(self.lines)

    def __post_init__(self) -> None:
        object.__setattr__(self, "lines", tracebacks.shortened(self.lines))

    @cached_property
    def name(self) -> str:
        """Name the exception that ended it; "" for a program's own error, and where nothing tells of one."""
        return self.report.type if self.report else lastwords.name(self.lines)

    @property
    def _inner(self) -> str:
        """Name the library's or program's file in which it was raised, as far as the log tells."""
        same = self.report is None or self.name.endswith(lastwords.name(self.lines).rpartition(".")[2])
        return lastwords.inner(self.lines) if same else ""

    @cached_property
    def exception(self) -> str:
        """In one line; "" where nothing tells of one."""
        return self.report.in_one_line if self.report else lastwords.exception(self.lines)

    @cached_property
    def rule(self) -> Rule | None:
        rule = rules.classify(self.words, self.name, self._inner) or self._rule_of_chain
        if rule is None or rule.kind is not FailureKind.PORT or not self.port:
            return rule
        wanted = lastwords.port_wanted(self.lines)
        if wanted in (0, self.port):
            return rule
        return rules.PORT_OF_ANOTHER if wanted in self.others else rules.PORT_OF_NOBODY

    @property
    def _chain(self) -> tuple[Raised, ...]:
        return self.report.chain if self.report else ()

    @property
    def _words_of_chain(self) -> Iterator[Sequence[str]]:
        yield self.words
        yield from (one.words for one in self._chain)

    @property
    def _rule_of_chain(self) -> Rule | None:
        """Find the rule of an exception that it was raised from: its own words may be the program's."""
        return next(filter(None, (rules.classify(one.words, one.type) for one in self._chain)), None)

    @cached_property
    def blames_peer(self) -> bool:
        """Also in words of the program's own, raised from those of TensorFlow."""
        return rules.blames_peer(self.words, self.name) or any(
            rules.blames_peer(one.words, one.type) for one in self._chain
        )

    @property
    def accused(self) -> str:
        return next(filter(None, map(lastwords.accused, self._words_of_chain)), "")

    @property
    def raised(self) -> bool:
        """Return True if the task ended with an exception of its own making."""
        return (
            bool(self.exception)
            and not self.blames_peer
            and not (self.report and self.report.is_exit)
            and not self.exception.startswith(("KeyboardInterrupt", "SystemExit"))
        )

    @property
    def why(self) -> str:
        """Tell where the exception was raised, from which other one, and what had failed before it."""
        if self.report is not None and self.report.why:
            return self.report.why
        return "; ".join(filter(None, (self._origin, self.report.note if self.report else "", self._before)))

    @property
    def where(self) -> str:
        """The place in the program where its exception was raised."""
        return self.report.where if self.report else lastwords.where(self.lines)

    @property
    def _origin(self) -> str:
        where = f"raised at {self.where}" if self.where else ""
        if self.report is None:
            cause = lastwords.caused_by(self.lines)
            return f"{where or 'raised'}, because of {cause}" if cause else where
        parts = [one.told for one in self.report.chain if one.how is How.PART]
        if parts:
            return f"{where or 'raised'}; it holds {', '.join(parts)}"
        if self.report.chain:
            first = self.report.chain[0]
            how = "while it handled" if first.how is How.CONTEXT else "because of"
            return f"{where or 'raised'}, {how} {first.told}"
        inner = self.report.inner
        return f"{where or 'raised'}, because of {inner}" if inner else where

    @property
    def _before(self) -> str:
        name = self.exception.partition(":")[0]
        return lastwords.before(self.lines, child=name.endswith("CalledProcessError")) if name else ""

    @cached_property
    def alike(self) -> str:
        """Text that is equal for tasks with equal failures: numbers and addresses may differ."""
        text = self.exception or lastwords.complaint(self.lines) or lastwords.closing(self.lines)
        return _NUMBER.sub("#", text)


def _text(value: object, longest: int, *, lines: bool = False) -> str:
    if not isinstance(value, str):
        return ""
    rows = value[:longest].split("\n") if lines else [value[:longest].replace("\n", " ")]
    return "\n".join(plain(row) for row in rows)
