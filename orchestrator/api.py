"""The verbs for a Python program: nothing is printed, nothing asked without a terminal, errors are raised.

Each function makes the words of a command line and calls what its verb calls, so that both judge alike.
"""

from __future__ import annotations

import argparse
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypedDict, Unpack

import msgspec
from msgspec import Struct

from orchestrator.cli import exec as exec_verb
from orchestrator.cli import launch as launch_verb
from orchestrator.cli import preflight as preflight_verb
from orchestrator.cli import pull, stacks, stop
from orchestrator.cli.args.parser import parse
from orchestrator.cli.desk.asking import adopt
from orchestrator.cli.desk.finding import find_run
from orchestrator.cli.desk.inventory import chosen
from orchestrator.cli.desk.out import silence
from orchestrator.cli.desk.watch import stream
from orchestrator.errors import ClusterError, HostError, OrchestrateError, RunError, UsageError
from orchestrator.events import Event, RunEnded, RunLeft, Stamped
from orchestrator.model import Order
from orchestrator.phases.hang import RunStacks
from orchestrator.phases.preflight import Findings
from orchestrator.report import page
from orchestrator.store import RunFolder, RunReader
from orchestrator.store.standing import over, standing

__all__ = ["HostError", "OrchestrateError"]  # which nothing here uses
StrPath: TypeAlias = str | os.PathLike[str]
_LOOK = 0.2  # seconds between two looks for the words of hosts

for _name in ("orchestrate", "paramiko"):  # else their warnings are printed where nobody has set up logging
    logging.getLogger(_name).addHandler(logging.NullHandler())


class Chosen(TypedDict, total=False):
    """The inventory, and which of its hosts, as the options of these names have it."""

    hosts: StrPath
    only: str
    exclude: str


class LaunchOptions(Chosen, total=False):
    """Options of `orchestrate launch`."""

    name: str
    code: StrPath
    max_restarts: int
    min_hosts: int
    spares: int
    hang_timeout: float
    notify: str
    metrics: StrPath
    replay: str
    other_ports: bool


class HostAnswer(msgspec.Struct, frozen=True):
    """The answer of one host to a command, as `exec --json` shows it."""

    host: str
    status: int | None  # None: it is not known, and `error` says why
    stdout: str
    stderr: str
    dropped: int = 0  # bytes beyond 4 MiB of each
    note: str = ""
    error: dict[str, str] | None = None


@silence()
def launch(
    command: Sequence[StrPath] = (),
    *,
    preflight: bool = True,
    validate: bool | Literal["always", "changed"] = True,
    env: Mapping[str, str] | None = None,
    **options: Unpack[LaunchOptions],
) -> RunHandle:
    """Start a run and return; it outlives this process, and is ended by `stop` alone.

    Raise UsageError before anything was started.
    """
    when = None if validate is True else validate or "never"
    every = [f"{name}={value}" for name, value in (env or {}).items()]
    words = _read("launch", command, skip_preflight=not preflight, validate=when, env=every, **options)
    return RunHandle(launch_verb.begin(chosen(words), words))


@silence()
def open(run: str | None = None, *, hosts: StrPath | None = None) -> RunHandle:  # noqa: A001 - `orchestrator.open`
    """Return a run by its id, part of it, or its name, live or past; the newest without one."""
    return RunHandle(find_run(run, None if hosts is None else os.fspath(hosts)))


@silence()
def preflight(**hosts: Unpack[Chosen]) -> Findings:
    """Check every host and every pair of hosts; `good` where they can train together."""
    return preflight_verb.check(preflight_verb.everything(chosen(_read("preflight", **hosts))))


@silence()
def execute(command: Sequence[StrPath], **hosts: Unpack[Chosen]) -> dict[str, HostAnswer]:
    """Run one command on all hosts, without a run; return their answers."""
    commands, collected = exec_verb.prepare(_read("exec", command, json=True, **hosts))
    answers: list[HostAnswer] = []
    try:
        commands.start()
        while collected.waiting:
            if (word := commands.next(_LOOK)) is not None:
                lines = collected.take(word, time.monotonic())
                answers += (msgspec.json.decode(line, type=HostAnswer) for _, line in lines)
    finally:
        commands.close()
    return {answer.host: answer for answer in answers}


class RunHandle(Struct, frozen=True):
    """A run, live or past; to the run it is nothing who holds it, and for how long."""

    _folder: RunFolder

    @property
    def id(self) -> str:
        return self._folder.run

    @property
    def folder(self) -> Path:
        """Return the run's folder on this machine, with its logs."""
        return self._folder.path

    @property
    def ended(self) -> RunEnded | None:
        """Return the run's end; None while something of it may be left."""
        return over(self._folder)

    def events(self) -> Iterator[Event]:
        """Yield what has happened and happens, the lines of tasks too, until the run has ended."""
        return (stamped.event for stamped in self.stamped())

    def stamped(self) -> Iterator[Stamped]:
        """Yield what `events` does, each with its time."""
        return (stamped for stamped in self._stream() if stamped is not None)

    def wait(self, timeout: float | None = None, *, check: bool = False) -> RunEnded:
        """Wait for the run's end and return it.

        Raise TimeoutError when it does not come in time, and with `check` RunError for a run that failed.
        """
        end = self._end(timeout)
        if check and end.status:
            raise RunError(end.cause or f"run {self.id} was stopped", why=end.why, hint=end.hint)
        return end

    @silence()
    def stop(self, *, now: bool = False) -> RunEnded:
        """End the run everywhere, with `now` without the grace of its tasks, and return its end."""
        order, known = Order.KILL if now else Order.STOP, standing(self._folder)[1]
        if (end := self.ended) is not None:
            return end
        stop.reach_keeper(self._folder, order, known)
        return self._end(None, known, order)

    @silence()
    def pull(
        self, *paths: str, source: str | None = None, all_hosts: bool = False, to: StrPath | None = None
    ) -> list[Path]:
        """Fetch what the tasks wrote; return the folders that something came into."""
        folders: list[Path] = []
        words = _read("pull", (), self.id, *paths, **{"from": source, "all": all_hosts, "to": to})
        pull.fetch(words, folders.append)
        return folders

    @silence()
    def stacks(self) -> RunStacks:
        """Take the stacks of all tasks: who hangs, and where."""
        return stacks.take(self._folder)

    @silence()
    def report(self, to: StrPath | None = None) -> Path:
        """Write the run as one page of HTML, into its folder unless told otherwise; return its path."""
        return page.write(self._folder, None if to is None else Path(to))

    def _end(self, timeout: float | None, known: int = 0, order: Order | None = None) -> RunEnded:
        limit = None if timeout is None else time.monotonic() + timeout
        end: RunEnded | None = None
        for stamped in self._stream(lambda _task: False, known, order):
            if stamped is not None and isinstance(stamped.event, RunEnded):
                end = stamped.event
            elif end is None and limit is not None and time.monotonic() > limit:
                raise TimeoutError(f"run {self.id} has not ended within {timeout:g} s")
        assert end is not None  # else the stream has raised
        return end

    def _stream(
        self,
        tasks: Callable[[str], bool] = lambda _task: True,
        known: int = 0,
        order: Order | None = None,
    ) -> Iterator[Stamped | None]:
        """Yield what follows `known` bytes of events, None after each look; raise when none can keep it."""
        reader = RunReader(self._folder, wanted=tasks, start=known)
        left: RunLeft | None = None
        take_over = silence()(partial(adopt, self._folder, stop=order))
        if order is None and self.ended is None:
            take_over()  # does nothing when it has a keeper
        for stamped in stream(self._folder, reader, take_over):
            left = stamped.event if stamped and isinstance(stamped.event, RunLeft) else left
            yield stamped
        if left is not None and not reader.ended:
            raise ClusterError(f"run {self.id} cannot be kept from here", why=left.why, hint=left.hint)


def _read(verb: str, command: Sequence[StrPath] = (), *positional: str, **options: Any) -> argparse.Namespace:
    """Read what was given as a command line is read; raise UsageError."""
    if isinstance(command, str):
        raise UsageError(f"the command is one text: {command!r}", hint='write a list: ["train.py", "--lr=1"]')
    words = [verb, *positional]
    for name, given in options.items():
        option = f"--{name.replace('_', '-')}"
        for value in given if isinstance(given, list) else [given]:
            if value is not None and value is not False:
                words.append(option if value is True else f"{option}={value}")
    return parse([*words, *(["--", *(os.fspath(word) for word in command)] if command else [])])
