"""What a task reports about its end: an error record, otherwise the last lines of its log. Pure."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Self

from msgspec.structs import force_setattr, replace

from orchestrator.diagnosis import lastwords, rules, tracebacks
from orchestrator.diagnosis.rules import Rule
from orchestrator.diagnosis.tracebacks import PrintedException
from orchestrator.text import plain
from orchestrator.value import Value

MESSAGE = 4000  # characters of a report's message
_SHORT = 300
_CHAIN = 6
_TRACEBACK = "Traceback (most recent call last):"
# torchrun's line about the first failure that is no exception (1), stop (15), or abort by PyTorch (6).
_ENDED = re.compile(r" *exitcode +: (?!1 |-15 |-6 )-?\d+ ")
NUMBER = re.compile(r"0x[0-9a-fA-F]+|\d+")  # what may differ between equal failures


class Raised(Value):
    """An exception as the task's own Python reported it; printable, and of bounded length."""

    type: str  # "" for a program's own error
    message: str
    file: str = ""
    line: int = 0
    note: str = ""  # notes that the program added to it
    why: str = ""  # like `hint`, only for a program's own error
    hint: str = ""
    held: str = ""  # what kept the program alive after the exception: `thread feed`
    chain: tuple[Raised, ...] = ()

    @classmethod
    def parse(cls, data: Mapping[str, Any]) -> Self:
        """Read an `error` record, which is untrusted; fields that do not fit are dropped."""
        chain = data.get("chain")
        line = data.get("line")
        links = [link for link in chain if isinstance(link, dict)] if isinstance(chain, list) else []
        return cls(
            type=_text(data.get("type"), _SHORT),
            message=_text(data.get("message"), MESSAGE, lines=True),
            file=_text(data.get("file"), _SHORT),
            line=line if isinstance(line, int) and 0 < line < 10**9 else 0,
            note=_text(data.get("note"), _SHORT),
            why=_text(data.get("why"), _SHORT),
            hint=_text(data.get("hint"), _SHORT),
            held=_text(data.get("held"), _SHORT),
            chain=tuple(Raised.parse({**link, "chain": []}) for link in links[:_CHAIN]),
        )

    @property
    def quoted(self) -> Raised:
        """Return the program's exception that this one quotes with its traceback; itself if it quotes none.

        TensorFlow quotes those of `tf.py_function` and generators, PyTorch those of a DataLoader, and a pool
        the location in its process.
        """
        of_process = next(
            (raised for raised in self.chain[:1] if raised.type.endswith("RemoteTraceback")), None
        )
        lines = (of_process or self).message.split("\n")
        inner = tracebacks.last(lines) if any(_TRACEBACK in line for line in lines) else None
        if inner is None or rules.blames_peer(self.printed, self.type):
            return self
        if of_process is not None:
            return (
                self if tracebacks.is_library(inner.file) else replace(self, file=inner.file, line=inner.line)
            )
        text = itertools.takewhile(str.strip, lines[inner.at :])
        message = "\n".join(text).strip().removeprefix(inner.name).removeprefix(":").strip()
        return replace(self, type=inner.name, message=message, file=inner.file, line=inner.line)

    @property
    def is_exit(self) -> bool:
        """Return True if it is `sys.exit("...")` and not an exception class of the program."""
        return self.type == "SystemExit"

    @property
    def printed(self) -> tuple[str, ...]:
        """Return an exception as Python prints it, without the traceback."""
        first, *rest = self.message.split("\n")
        name = "" if self.is_exit else self.type
        head = f"{name}: {first}" if name and first else name or first
        return tuple(lastwords.from_root_cause([line for line in (head, *rest) if line.strip()]))

    @property
    def in_one_line(self) -> str:
        return lastwords.one_line(self.type, self.printed) if self.printed else self.type

    @property
    def where(self) -> str:
        """Return `train.py, line 6`; "" if unknown."""
        return lastwords.place(self.file, self.line)

    @property
    def brief(self) -> str:
        """Return the exception on one line, with its location."""
        return f"{self.in_one_line} ({self.where})" if self.where else self.in_one_line


class Statement(Value, dict=True):
    """The last lines of a task's log, and its own report of an error if it made one."""

    lines: Sequence[str]
    report: Raised | None = None

    @cached_property
    def message(self) -> Sequence[str]:
        """Return the exception's own line and what follows."""
        return self.report.printed if self.report else lastwords.final(self.lines)

    def __post_init__(self) -> None:
        force_setattr(self, "lines", tracebacks.shortened(self.lines))
        report = self.report and self.report.quoted
        # Of torchrun's processes, one ended by itself; the others report that they lost it.
        if report and rules.blames_peer(report.printed, report.type):
            report = None if any(map(_ENDED.match, lastwords.final(self.lines))) else report
        force_setattr(self, "report", report)

    @cached_property
    def name(self) -> str:
        """Return the name of the exception that ended it; "" for a program's own error, or if unknown."""
        return self.report.type if self.report else lastwords.name(self.lines)

    @cached_property
    def _printed(self) -> PrintedException | None:
        return lastwords.ending(self.lines)

    @cached_property
    def exception(self) -> str:
        """Return the exception on one line; "" if unknown."""
        return self.report.in_one_line if self.report else lastwords.exception(self.lines)

    @cached_property
    def rule(self) -> Rule | None:
        printed = self._printed
        same = printed is not None and self.name.endswith(printed.name.rpartition(".")[2])
        inner, source = (printed.inner, printed.source) if printed is not None and same else ("", "")
        # Its text may be the program's, and that of the exception it came from TensorFlow's.
        others = (rules.classify(raised.printed, raised.type) for raised in self._chain)
        return rules.classify(self.message, self.name, inner, source) or next(filter(None, others), None)

    @property
    def _chain(self) -> tuple[Raised, ...]:
        return self.report.chain if self.report else ()

    @cached_property
    def blames_peer(self) -> bool:
        """Return True if its output blames a peer, or an exception from which its own was raised does."""
        return rules.blames_peer(self.message, self.name) or any(
            rules.blames_peer(raised.printed, raised.type) for raised in self._chain
        )

    @property
    def blamed(self) -> str:
        messages = (self.message, *(raised.printed for raised in self._chain))
        return next(filter(None, map(lastwords.blamed, messages)), "")

    @property
    def raised(self) -> bool:
        """Return True if the task ended with an exception of its own."""
        return (
            bool(self.exception)
            and not self.blames_peer
            and not (self.report and self.report.is_exit)
            and not self.exception.startswith(("KeyboardInterrupt", "SystemExit"))
        )

    @property
    def why(self) -> str:
        """Return where the exception was raised, and the exception it came from."""
        if self.report is not None and self.report.why:
            return self.report.why
        return "; ".join(filter(None, (self._origin, self.report.note if self.report else "")))

    @property
    def where(self) -> str:
        """Return the location in the program where its exception was raised."""
        if self.report is not None:
            return self.report.where
        return lastwords.place(self._printed.file, self._printed.line) if self._printed else ""

    @cached_property
    def failed_part(self) -> str:
        """Return the last exception that ended a thread or a child process of the task; "" for none."""
        partial = tracebacks.of_part(self.lines)
        if partial is None:
            return ""
        who, raised = partial
        where = lastwords.place(raised.file, raised.line)
        summary = lastwords.one_line(raised.name, self.lines[raised.at :])
        return f"its {who} ended with {summary}" + (f" ({where})" if where else "")

    @property
    def _origin(self) -> str:
        where = f"raised at {self.where}" if self.where else ""
        if self.failed_part and self.exception and self.exception not in self.failed_part:
            where = f"{where or 'raised'}, after {self.failed_part}"
        first = next(iter(self._chain), None)
        if first is None or first.type.endswith("RemoteTraceback"):  # it holds a whole traceback
            return where
        return f"{where or 'raised'}, after {first.brief}"

    @cached_property
    def signature(self) -> str:
        """Return text that is equal for equal failures, without numbers and addresses."""
        text = self.exception or lastwords.complaint(self.lines)
        return NUMBER.sub("#", text)


def _text(value: object, longest: int, *, lines: bool = False) -> str:
    if not isinstance(value, str):
        return ""
    rows = value[:longest].split("\n") if lines else [value[:longest].replace("\n", " ")]
    return "\n".join(plain(row) for row in rows)
