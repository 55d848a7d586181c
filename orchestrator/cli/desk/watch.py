"""Watching a run: read its folder, let the renderer draw, turn the user's signals into requests."""

import argparse
import contextlib
import math
import os
import shlex
import signal
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, Self

from msgspec import Struct

from orchestrator.cli.desk.out import tell
from orchestrator.cli.desk.person import Person
from orchestrator.cli.desk.screen import Screen
from orchestrator.errors import ExitStatus, UsageError
from orchestrator.events import Noted, RunEnded, RunLeft, Stamped, StopBy, StopRequested
from orchestrator.model import Order
from orchestrator.node.base.fault import reason
from orchestrator.node.base.paths import free_bytes
from orchestrator.render import DisplayGoneError, Look, Plain, Renderer, choose, is_full
from orchestrator.store import RunFolder, RunReader
from orchestrator.verbs import asking
from orchestrator.verbs.watch import stream

_ASK_EVERY = 5.0  # seconds between two messages to the keeper that a viewer shows the tasks
_LOOK_EVERY = 0.5  # seconds between two reads of what they use
_STALE = 20.0  # seconds after which that is outdated
_SILENCE, _BLOCK = 2.0, 4096  # seconds without events; bytes without which none can be written
_PATIENCE = 2  # stop requests without an effect after which the viewer leaves the keeper alone
BEHIND = 8 << 20  # bytes of one log that a terminal may be behind before lines are dropped


class Interrupts:
    """A context in which Ctrl-C and SIGTERM are counted and passed on; none is lost.

    Those that arrive before `pass_on` is called are passed on then.
    """

    def __init__(self) -> None:
        self.count = 0
        self._receive: Callable[[int], object] | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        # Before a job's time limit, if requested: `#SBATCH --signal=B:USR1@120`.
        of_slurm = (signal.SIGUSR1,) if "SLURM_JOB_ID" in os.environ else ()
        for number in (signal.SIGINT, signal.SIGTERM, *of_slurm):
            self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def pass_on(self, receive: Callable[[int], object]) -> None:
        self._receive = receive
        if self.count:
            receive(self.count)

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self.count += 1
        if self._receive is not None:
            self._receive(self.count)


def follow(folder: RunFolder, arguments: argparse.Namespace, interrupts: Interrupts) -> int:
    """Watch a run that was started here until it ends."""
    tasks = {str(task) for task in arguments.task}
    terminal = Screen(folder, str(arguments.attach)) if getattr(arguments, "attach", None) else None
    look = Look(shows=lambda task: terminal is None and (not tasks or task in tasks))
    reader, renderer = shown(folder, look, as_json=arguments.json, plain=terminal is not None)
    return own(folder, reader, renderer, interrupts, terminal=terminal)


def shown(
    folder: RunFolder, look: Look, *, as_json: bool, last: int | None = None, plain: bool = False
) -> tuple[RunReader, Renderer]:
    """Return a reader of a run's folder, with the `last` lines of each log, and its renderer."""
    renderer = Plain(sys.stdout, sys.stderr, look) if plain else choose(sys.stdout, as_json, sys.stderr, look)
    behind = BEHIND if sys.stdout.isatty() and not as_json else None
    blocks = renderer.takes_blocks
    return RunReader(folder, shows=look.shows, last=last, drop_behind=behind, blocks=blocks), renderer


def own(
    folder: RunFolder,
    reader: RunReader,
    renderer: Renderer,
    interrupts: Interrupts,
    stop: Order | None = None,
    *,
    terminal: Screen | None = None,
) -> int:
    """Watch a run as its owner: Ctrl-C stops it, a second one kills it; return its exit status.

    A keeper that was killed is replaced. `stop` (STOP or KILL) is what was already requested of the run.
    """
    interrupts.pass_on(lambda count: folder.ask_keeper(Order.STOP if count == 1 else Order.KILL))
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
    stop: Order | None  # what was requested of the run before
    terminal: Screen | None = None
    _status: int = ExitStatus.BUG
    _shown: bool = True  # the output has a reader
    _full: str = ""  # why the output could not be written
    _left: Stamped | None = None
    _stopped: bool = False  # by any user
    _asked: float = -math.inf  # when the keeper was last notified that a viewer shows the tasks
    _measured: float = -math.inf
    _last: float = -math.inf  # when the last event came
    _room: bool = True  # the disk has room, as far as the user was notified

    def loop(self) -> int:
        """Return the run's exit status, or the one for why it was not watched to its end."""
        try:
            status = self._watch()
        except UsageError as error:  # such as a folder that was removed: the run exists, and continues
            error.status = ExitStatus.HERE
            raise
        finally:
            self._close()
        if not self._full:
            return status
        run = self.folder.run
        tell(f"error: the output could not be written: {self._full}; `orchestrate tail {run} -n all`")
        return status or ExitStatus.HERE  # a copy that lacks the run's end is not a success

    @property
    def stopping(self) -> Order | None:
        """Return what the user here has requested of the run."""
        if not self.owned or not self.interrupts.count:
            return self.stop
        return Order.KILL if self.interrupts.count > 1 or self.stop is Order.KILL else Order.STOP

    @property
    def leave(self) -> bool:
        """Return True if the user is leaving."""
        detached = self.terminal is not None and self.terminal.left
        return detached or self.interrupts.count > (_PATIENCE if self.owned else 0)

    def _watch(self) -> int:
        for stamped in stream(self.folder, self.reader, self._adopt):
            if stamped is not None:
                self._take(stamped)
            else:
                self._display(self.renderer.tick)
                self._check_disk()
                if self.renderer.has_board:
                    self._measure()
            if self.reader.ended:
                continue
            if self.leave or (stamped is None and not self._shown and not self.stopping):
                self._report_leaving()
                return ExitStatus.INTERRUPTED if self.leave else ExitStatus.OK
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
        except KeyboardInterrupt:  # if a person was asked
            self._close()
            tell(f"run {self.folder.run} has no keeper; `orchestrate tail {self.folder.run}` starts one")
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
        """Let the renderer act while its output has a reader; raise errors with other causes."""
        if not self._shown:
            return
        try:
            act(*what)
        except OSError as error:
            if is_full(error):
                self._full = reason(error)
            elif not isinstance(error, DisplayGoneError):  # `| head` has read enough
                raise
            self._shown = False

    def _measure(self) -> None:
        """Notify the keeper that a viewer shows the tasks, and pass on the resulting measurements."""
        now = time.monotonic()
        if now - self._asked >= _ASK_EVERY:
            self._asked = now
            self.folder.ask_keeper(Order.VITALS)
        if now - self._measured >= _LOOK_EVERY:
            self._measured = now
            vitals = self.folder.read_vitals()
            if vitals is not None and time.time() - vitals.at < _STALE:
                self.renderer.measured(vitals)

    def _check_disk(self) -> None:
        """Report once that events find no room: the keeper waits for it, and nothing would be shown."""
        if not self._room or time.monotonic() - self._last < _SILENCE:
            return
        with contextlib.suppress(OSError):
            self._room = free_bytes(str(self.folder.path)) >= _BLOCK
        if not self._room:
            where = shlex.quote(str(self.folder.root))
            text = f"no space left on this machine: nothing new can be shown; `df -h {where}`, then make room"
            self._display(self.renderer.handle, Stamped(time.time(), Noted(text)))

    def _take(self, stamped: Stamped) -> None:
        event, self._last = stamped.event, time.monotonic()
        if isinstance(event, RunLeft):
            self._left = stamped  # possibly of an earlier viewer's keeper: only the last one is new
            return
        if isinstance(event, StopRequested):
            self._stopped |= event.by is StopBy.USER
        elif isinstance(event, RunEnded):
            self._status = event.status
        elif self.terminal is not None:
            self.terminal.handle(event)
        self._display(self.renderer.handle, stamped)

    def _report_leaving(self) -> None:
        self._close()  # the display first: otherwise its removal would erase our lines
        run = self.folder.run
        notice = f"run {run} continues; orchestrate stop {run} ends it"
        if self._stopped or self.stopping:
            notice = f"run {run} is being stopped; orchestrate tail {run} shows its end"
        with contextlib.suppress(OSError):
            tell(notice)
