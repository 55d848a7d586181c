"""The Python API: it prints nothing, prompts only at a terminal, and raises every error."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Literal, TypeAlias, TypedDict, Unpack

from orchestrator.errors import ClusterError, HostError, OrchestrateError, RunError, UsageError, worded
from orchestrator.events import Event, RunEnded, RunLeft, Stamped
from orchestrator.model import Inventory, Order
from orchestrator.phases.hang import RunStacks
from orchestrator.phases.preflight import Findings
from orchestrator.render import question
from orchestrator.report import several
from orchestrator.requests import ExecRequest, LaunchRequest, PreflightRequest, PullRequest, Selection, make
from orchestrator.store import RunFolder, RunReader
from orchestrator.store.standing import over, standing
from orchestrator.text import plain
from orchestrator.value import Value
from orchestrator.verbs import Caller, inventory, pull, stacks, stop
from orchestrator.verbs import exec as exec_verb
from orchestrator.verbs import launch as launch_verb
from orchestrator.verbs import preflight as preflight_verb
from orchestrator.verbs.asking import adopt
from orchestrator.verbs.exec import HostAnswer
from orchestrator.verbs.finding import find_run
from orchestrator.verbs.watch import stream

__all__ = ["ClusterError", "Event", "Findings", "HostAnswer", "HostError", "OrchestrateError", "RunError"]
__all__ += ["RunHandle", "Stamped", "UsageError", "execute", "launch", "open", "preflight"]
StrPath: TypeAlias = str | os.PathLike[str]

_log = logging.getLogger("orchestrate")
_log.addHandler(logging.NullHandler())  # Otherwise its warnings are printed where logging is not configured.


class Hosts(TypedDict, total=False):
    """The inventory and the hosts to use from it; the options with these names work the same way."""

    hosts: StrPath
    only: str
    exclude: str


class LaunchOptions(Hosts, total=False):
    """Options of `orchestrate launch`."""

    name: str
    code: StrPath
    max_restarts: int
    min_hosts: int
    spares: int
    hang_timeout: float
    keep_warm: float
    notify: str
    replay: str
    continues: str
    other_ports: bool
    wait: bool


class _Program(Caller):
    """The calling program: notices are logged, and prompts appear only at a terminal."""

    def __init__(self) -> None:
        self.masters = question.can_answer()
        self.asks = question.passphrase if self.masters else _refuse

    def tell(self, *lines: str) -> None:
        _log.info("%s", "\n".join(map(plain, lines)))


@contextlib.contextmanager
def _worded() -> Iterator[None]:
    """Raise every failure as an OrchestrateError, except Python's own errors for wrong types."""
    try:
        yield
    except (OrchestrateError, TypeError, ValueError):
        raise
    except Exception as error:
        raise worded(error) from error


def _refuse(prompt: str) -> str:
    raise UsageError(
        f"cannot prompt without a terminal: {prompt.removesuffix(': ')}",
        hint="`ssh-add` the key first, or name another one with `identity`",
    )


@_worded()
def launch(
    command: Sequence[StrPath] = (),
    *,
    preflight: bool = True,
    validate: bool | Literal["always", "changed"] = True,
    env: Mapping[str, str] | None = None,
    **options: Unpack[LaunchOptions],
) -> RunHandle:
    """Start a run and return its handle. The run outlives this process; only `stop` ends it.

    Raise UsageError if nothing was started.
    """
    program, given = _Program(), _given(options, LaunchOptions)
    selection = make(Selection, given)
    given["other_ports"] = given.get("other_ports") or selection.hosts == inventory.SLURM
    request = make(
        LaunchRequest,
        given,
        inventory=inventory.chosen(selection, program),
        command=_words(command),
        preflight=preflight,
        validate=None if validate is True else validate or "never",
        env=dict(env or {}),
    )
    return RunHandle(launch_verb.launch(request, program, awaited=True))


@_worded()
def open(run: str | None = None, *, hosts: StrPath | None = None) -> RunHandle:  # noqa: A001 - `orchestrator.open`
    """Return the handle of a run by its ID, part of the ID, or its name; by default the newest run."""
    selection = make(Selection, {"hosts": _path(hosts), "only": run})
    if run == "":
        raise UsageError("the name of a run is empty", hint="omit it to select the newest run")
    return RunHandle(find_run(run, selection.hosts, _Program()))


@_worded()
def preflight(**hosts: Unpack[Hosts]) -> Findings:
    """Check every host and every pair of hosts. `good` is True when they can train together."""
    program = _Program()
    request = PreflightRequest(_inventory(hosts, program))
    return preflight_verb.check(preflight_verb.everything(request), program, lambda _: None)


@_worded()
def execute(command: Sequence[StrPath], **hosts: Unpack[Hosts]) -> dict[str, HostAnswer]:
    """Run one command on all hosts, without a run, and return each host's answer by its name."""
    program = _Program()
    request = make(ExecRequest, {"command": _words(command)}, inventory=_inventory(hosts, program))
    return exec_verb.execute(request, program)


class RunHandle(Value):
    """Handle to a live or finished run. Dropping it does not affect the run."""

    _folder: RunFolder

    @property
    def id(self) -> str:
        """Return the run's ID."""
        return self._folder.run

    @property
    def folder(self) -> Path:
        """Return the run's folder on this machine, which holds its logs."""
        return self._folder.path

    @property
    def ended(self) -> RunEnded | None:
        """Return the event that ended the run, or None while any of it may be alive."""
        with _worded():
            return over(self._folder)

    def events(self) -> Iterator[Event]:
        """Yield the run's events and its tasks' lines, from the first to the one that ends the run."""
        return (stamped.event for stamped in self.stamped())

    def stamped(self) -> Iterator[Stamped]:
        """Yield the same events as `events`, each with its time (fields `at` and `event`)."""
        return (stamped for stamped in self._stream() if stamped is not None)

    def wait(self, timeout: float | None = None, *, check: bool = False) -> RunEnded:
        """Wait until the run has ended and return that event.

        Raise TimeoutError after `timeout` seconds, and with `check` RunError for a failed run.
        """
        end = self._end(timeout)
        if check and end.status:
            raise RunError(end.cause or f"run {self.id} was stopped", why=end.why, hint=end.hint)
        return end

    @_worded()
    def stop(self, *, now: bool = False) -> RunEnded:
        """End the run on every host and return that event; `now` skips the tasks' grace period."""
        order, seen_bytes = Order.KILL if now else Order.STOP, standing(self._folder)[1]
        if (end := self.ended) is not None:
            return end
        stop.reach_keeper(self._folder, order, seen_bytes, _Program())
        return self._end(None, seen_bytes, order)

    @_worded()
    def pull(
        self, *paths: str, source: str | None = None, all_hosts: bool = False, to: StrPath | None = None
    ) -> list[Path]:
        """Fetch files that the tasks wrote; return the folders that received any."""
        given = {"paths": paths, "source": source, "all_hosts": all_hosts, "to": _path(to)}
        return pull.fetch(self._folder, make(PullRequest, given), _Program(), lambda _: None)

    @_worded()
    def stacks(self) -> RunStacks:
        """Collect the Python stacks of all tasks; they show which task hangs, and where."""
        return stacks.take(self._folder, _Program())

    @_worded()
    def metrics(self) -> dict[str, float]:
        """Return the last value of each metric that the tasks reported or printed, such as `loss`."""
        return several.metrics(self._folder)

    @_worded()
    def report(self, to: StrPath | None = None, others: Sequence[RunHandle] = ()) -> Path:
        """Write an HTML page about the run, with `others` in the same charts, and return its path.

        By default the page is in the run's folder.
        """
        folders = list(dict.fromkeys(handle._folder for handle in (self, *others)))  # noqa: SLF001
        return several.write(folders, None if to is None else Path(to))

    def _end(self, timeout: float | None, start: int = 0, order: Order | None = None) -> RunEnded:
        limit = None if timeout is None else time.monotonic() + timeout
        end: RunEnded | None = None
        for stamped in self._stream(lambda _task: False, start, order):
            if stamped is not None and isinstance(stamped.event, RunEnded):
                end = stamped.event
            elif end is None and limit is not None and time.monotonic() > limit:
                raise TimeoutError(f"run {self.id} has not ended within {timeout:g} s")
        assert end is not None  # otherwise the stream has raised
        return end

    def _stream(
        self, tasks: Callable[[str], bool] = lambda _task: True, start: int = 0, order: Order | None = None
    ) -> Iterator[Stamped | None]:
        """Yield the events after `start` bytes, and None after each check; raise if no keeper is left."""
        with _worded():
            reader = RunReader(self._folder, shows=tasks, start=start)
            leaving: RunLeft | None = None
            take_over = partial(adopt, self._folder, _Program(), stop=order)
            if order is None and over(self._folder) is None:
                take_over()  # no effect if it has a keeper
            for stamped in stream(self._folder, reader, take_over):
                leaving = stamped.event if stamped and isinstance(stamped.event, RunLeft) else leaving
                yield stamped
        if leaving is not None and not reader.ended:
            raise ClusterError(f"run {self.id} cannot be kept from here", why=leaving.why, hint=leaving.hint)


def _words(command: Sequence[StrPath]) -> list[str]:
    if isinstance(command, str):
        raise UsageError(f"the command is a string: {command!r}", hint='write a list: ["train.py", "--lr=1"]')
    return [os.fspath(word) for word in command]


def _path(value: object) -> object:
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _given(options: Mapping[str, object], request: type) -> dict[str, object]:
    if unknown := sorted(options.keys() - vars(request)["__optional_keys__"]):
        raise TypeError(f"unexpected keyword argument {unknown[0]!r}")
    return {name: _path(value) for name, value in options.items()}


def _inventory(hosts: Mapping[str, object], program: Caller) -> Inventory:
    return inventory.chosen(make(Selection, _given(hosts, Hosts)), program)
