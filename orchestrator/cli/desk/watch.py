"""Watching a run: its folder is read, the renderer draws, the user's signals become requests."""

from __future__ import annotations

import argparse
import contextlib
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

from orchestrator.cli.desk.interrupts import Interrupts
from orchestrator.cli.desk.out import tell
from orchestrator.cli.desk.person import Person
from orchestrator.cli.desk.screen import Screen
from orchestrator.errors import ExitStatus
from orchestrator.events import RunEnded, RunLeft, Stamped, StopBy, StopRequested
from orchestrator.model import Order
from orchestrator.node.base.fault import reason
from orchestrator.render import DisplayGoneError, Look, Plain, Renderer, choose, is_full
from orchestrator.run.vitals import decode
from orchestrator.store import RunFolder, RunReader
from orchestrator.verbs import asking
from orchestrator.verbs.watch import stream

_ASK_EVERY = 5.0  # seconds between two words to the keeper that somebody looks at the tasks
_LOOK_EVERY = 0.5  # seconds between two looks at what they use
_STALE = 20.0  # seconds after which that tells nothing any more
_PATIENCE = 2  # requests to stop that a keeper may leave without an effect before the viewer leaves it alone


BEHIND = 8 << 20  # bytes of one log that a terminal may be behind before lines are dropped


def follow(folder: RunFolder, arguments: argparse.Namespace, interrupts: Interrupts) -> int:
    """Watch a run that was started here until it ends."""
    tasks = {str(task) for task in arguments.task}
    terminal = Screen(folder, str(arguments.attach)) if getattr(arguments, "attach", None) else None
    look = Look(wanted=lambda task: terminal is None and (not tasks or task in tasks))
    reader, renderer = shown(folder, look, as_json=arguments.json, plain=terminal is not None)
    status = own(folder, reader, renderer, interrupts, terminal=terminal)
    if arguments.report is not None:
        from orchestrator.report.page import write

        tell(f"report: {write(folder, Path(arguments.report) if arguments.report else None)}")
    return status


def shown(
    folder: RunFolder, look: Look, *, as_json: bool, last: int | None = None, plain: bool = False
) -> tuple[RunReader, Renderer]:
    """Return what reads a run's folder, of each log the `last` lines, and what shows it."""
    renderer = Plain(sys.stdout, sys.stderr, look) if plain else choose(sys.stdout, as_json, sys.stderr, look)
    behind = BEHIND if sys.stdout.isatty() and not as_json else None
    blocks = renderer.takes_blocks
    return RunReader(folder, wanted=look.wanted, last=last, drop_behind=behind, blocks=blocks), renderer


def own(
    folder: RunFolder,
    reader: RunReader,
    renderer: Renderer,
    interrupts: Interrupts,
    stop: Order | None = None,
    *,
    terminal: Screen | None = None,
) -> int:
    """Watch a run we are responsible for: Ctrl-C stops it, twice kills it; return its exit status.

    A keeper that was killed is replaced. `stop` (STOP or KILL) is what the run was asked for already.
    """

    def ask(count: int) -> None:
        folder.ask_keeper(Order.STOP if count == 1 else Order.KILL)

    interrupts.pass_on(ask)
    return _Watch(folder, reader, renderer, interrupts, True, stop, terminal).loop()


def look(folder: RunFolder, reader: RunReader, renderer: Renderer) -> int:
    """Watch a run without owning it: Ctrl-C only stops watching."""
    with Interrupts() as interrupts:
        return _Watch(folder, reader, renderer, interrupts, False, None).loop()


class _Watch(Struct):
    """Draws until the run has ended; replaces a keeper that vanished."""

    folder: RunFolder
    reader: RunReader
    renderer: Renderer
    interrupts: Interrupts
    owned: bool  # Ctrl-C is for the run
    stop: Order | None  # what the run was asked for before
    terminal: Screen | None = None
    _status: int = ExitStatus.BUG
    _shown: bool = True  # somebody sees what is drawn
    _full: str = ""  # why what was to be shown could not be written
    _left: Stamped | None = None
    _stopped: bool = False  # by a user, whoever that is
    _asked: float = -math.inf  # when the keeper was last told that somebody looks at the tasks
    _measured: float = -math.inf

    def loop(self) -> int:
        """The run's exit status, or the one that says why it was not watched to its end."""
        try:
            status = self._watch()
        finally:
            self._close()
        if not self._full:
            return status
        run = self.folder.run
        tell(
            f"error: what was to be shown could not be written: {self._full}; `orchestrate tail {run} -n all`"
        )
        return status or ExitStatus.USAGE  # a copy that lacks its end is no success of ours

    @property
    def stopping(self) -> Order | None:
        """Return what whoever sits here has asked of the run."""
        if not self.owned or not self.interrupts.count:
            return self.stop
        return Order.KILL if self.interrupts.count > 1 or self.stop is Order.KILL else Order.STOP

    @property
    def leave(self) -> bool:
        """Tell whether the user wants to go."""
        left = self.terminal is not None and self.terminal.left
        return left or self.interrupts.count > (_PATIENCE if self.owned else 0)

    def _watch(self) -> int:
        for stamped in stream(self.folder, self.reader, self._adopt):
            if stamped is not None:
                self._take(stamped)
            else:
                self._display(self.renderer.tick)
                if self.renderer.has_board:
                    self._measure()
            if self.reader.ended:
                continue
            if self.leave:
                self._say_that_it_goes_on()
                return ExitStatus.INTERRUPTED
            if stamped is None and not self._shown and not self.stopping:
                self._say_that_it_goes_on()
                return ExitStatus.OK
        if self._left is not None and not self.reader.ended:
            self._display(self.renderer.handle, self._left)
            return ExitStatus.CLUSTER
        return self._status

    def _adopt(self) -> bool:
        """Start another keeper, which may have to ask for a passphrase."""
        if self.terminal is not None:
            self.terminal.give_back()
        try:
            adopted = asking.adopt(self.folder, Person(), stop=self.stopping)
        except KeyboardInterrupt:  # where a person was asked
            self._close()
            tell(f"run {self.folder.run} has no keeper; orchestrate tail {self.folder.run} goes on with it")
            raise
        if self.terminal is not None:
            self.terminal.take()
        return adopted

    def _close(self) -> None:
        if self.terminal is not None:
            self.terminal.give_back()
        self._display(self.renderer.close)
        self._shown = False

    def _display(self, act: Callable[..., None], *what: Stamped) -> None:
        """Have the renderer act while somebody sees it; raise an error that is no reason for its end."""
        if not self._shown:
            return
        try:
            act(*what)
        except OSError as error:
            if is_full(error):
                self._full = reason(error)
            elif not isinstance(error, DisplayGoneError):  # `| head` has seen enough
                raise
            self._shown = False

    def _measure(self) -> None:
        """Let the keeper know that somebody looks, and hand over what it finds out then."""
        now = time.monotonic()
        if now - self._asked >= _ASK_EVERY:
            self._asked = now
            self.folder.ask_keeper(Order.VITALS)
        if now - self._measured >= _LOOK_EVERY:
            self._measured = now
            vitals = decode(self.folder.read_vitals())
            if vitals is not None and time.time() - vitals.at < _STALE:
                self.renderer.measured(vitals)

    def _take(self, stamped: Stamped) -> None:
        event = stamped.event
        if isinstance(event, RunLeft):
            self._left = stamped  # of an earlier viewer's keeper, perhaps: only the last one is news
            return
        if isinstance(event, StopRequested):
            self._stopped |= event.by is StopBy.USER
        elif isinstance(event, RunEnded):
            self._status = event.status
        elif self.terminal is not None:
            self.terminal.heed(event)
        self._display(self.renderer.handle, stamped)

    def _say_that_it_goes_on(self) -> None:
        self._close()  # the board first: it would be taken away over our words
        run = self.folder.run
        words = f"run {run} continues; orchestrate stop {run} ends it"
        if self._stopped or self.stopping:
            words = f"run {run} is being stopped; orchestrate tail {run} shows its end"
        with contextlib.suppress(OSError):
            tell(words)
