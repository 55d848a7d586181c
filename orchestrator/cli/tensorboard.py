"""`orchestrate tensorboard`: what a run's tasks write for TensorBoard, live in a browser of this machine."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from orchestrator.cli.args import options, readings
from orchestrator.cli.desk.out import facts, say, tell
from orchestrator.errors import ClusterError, ExitStatus, SeveralErrors, UsageError
from orchestrator.text import count, size

if TYPE_CHECKING:
    from orchestrator.envs.tensorboard import TensorBoard
    from orchestrator.fleet import Fleet
    from orchestrator.model import Host, RunPlan
    from orchestrator.sync.eventfiles import EventMirror

SUMMARY = "show what a run's tasks write for TensorBoard, live, in your browser"
_EVERY = 3.0  # seconds between two looks
_AGAIN = 15.0  # seconds until a host that was lost is tried again


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.run(parser)
    parser.add_argument(
        "--from",
        dest="source",
        metavar="worker/0",
        help="only of this task or host (default: of all)",
    )
    parser.add_argument(
        "--logdir",
        metavar="DIR",
        help="where tasks write it (default: anywhere in their folder)",
    )
    parser.add_argument(
        "--port",
        type=readings.whole(1, 65_535),
        default=0,
        metavar="PORT",
        help="on this machine (default: a free one)",
    )
    parser.add_argument("--open", action="store_true", help="open a browser")
    options.as_json(parser)


def main(arguments: argparse.Namespace) -> int:
    import tempfile

    from orchestrator.cli.desk.finding import find_run, is_over, source_of
    from orchestrator.envs import tensorboard

    _check_port(arguments.port)
    folder = find_run(arguments.run, arguments.hosts)
    plan = folder.read_plan()
    names = [source_of(plan, arguments.source)] if arguments.source else [host.name for host in plan.hosts]
    hosts = [plan.host(name) for name in names]
    program = tensorboard.installed()
    if program is None:
        tell("this machine has no TensorBoard: uv fetches one, and keeps it in its cache")
        program = tensorboard.fetched()
    with _until_ctrl_c(), tempfile.TemporaryDirectory(prefix="orchestrate-tensorboard-") as made:
        board = tensorboard.TensorBoard(program, Path(made), arguments.port, _EVERY)
        try:
            _show(board, plan, hosts, Path(made), arguments, over=is_over(folder))
        finally:
            board.close()
    tell("TensorBoard has ended; nothing of it was on the hosts")
    return int(ExitStatus.OK)


def _check_port(port: int) -> None:
    """Raise UsageError for one that cannot be had; TensorBoard says so between other things, in a minute."""
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError as error:
        raise UsageError(
            f"port {port} of this machine cannot be had",
            why=os.strerror(error.errno or 0),
            hint="name another one, or leave --port out: then one that is free is taken",
        ) from error


def _show(
    board: TensorBoard,
    plan: RunPlan,
    hosts: list[Host],
    to: Path,
    arguments: argparse.Namespace,
    *,
    over: bool,
) -> None:
    """Mirror and serve until Ctrl-C; raise ClusterError when TensorBoard ends by itself."""
    import json
    import webbrowser

    from orchestrator.cli.desk.asking import unconnected

    with contextlib.suppress(_Ended), unconnected(hosts) as fleet:
        mirrors = _Mirrors(fleet, plan, hosts, to, arguments.logdir)
        mirrors.connect()
        mirrors.catch_up()
        if not mirrors.files and over:
            raise UsageError(
                f"no task of run {plan.run} has written an event file",
                why="the run is over: none will come",
                hint='give fit a callback: tf.keras.callbacks.TensorBoard("logs")',
            )
        if not mirrors.files:
            tell("no task has written an event file yet; they are shown as soon as there are some")
        url = board.url()
        if arguments.json:
            facts(json.dumps({"run": plan.run, "url": url, "files": mirrors.files}))
        else:
            say(url)
        sys.stdout.flush()
        tell("it follows the run; Ctrl-C ends it")
        if arguments.open:
            webbrowser.open(url)
        while board.alive:
            time.sleep(_EVERY)
            mirrors.catch_up()
        raise ClusterError("TensorBoard has ended", why=board.last_words())


class _Mirrors:
    """What the hosts of a run have written, each in a folder of its name."""

    def __init__(self, fleet: Fleet, plan: RunPlan, hosts: list[Host], to: Path, logdir: str | None) -> None:
        from orchestrator.sync.eventfiles import EventMirror

        self._fleet = fleet
        self._plan = plan
        self._hosts = {host.name: host for host in hosts}
        self._mirrors = {host.name: EventMirror(to / host.name, _root(plan, host, logdir)) for host in hosts}
        self._told: set[str] = set()
        self._next_try = 0.0

    @property
    def files(self) -> int:
        return sum(len(mirror.known) for mirror in self._mirrors.values())

    def connect(self) -> None:
        """Raise what is wrong when no host answers."""
        bad = self._fleet.connect(self._hosts.values())
        if len(bad) == len(self._hosts):
            raise next(iter(bad.values())) if len(bad) == 1 else SeveralErrors(bad.values())
        for error in bad.values():
            tell(f"warning: {error.host} {error.what}; tried again every {_AGAIN:g} s")
        self._next_try = time.monotonic() + _AGAIN

    def catch_up(self) -> None:
        """Take what is new from every host that answers; raise ClusterError for our own disk."""
        self._reconnect()

        def take(name: str) -> None:
            self._mirrors[name].catch_up(self._fleet.sessions[name])

        answers = self._fleet.each([name for name in self._hosts if name in self._fleet.sessions], str, take)
        for name, error in answers.bad.items():
            self._fleet.let_go(name)
            if not error.lost:  # it would say the same again
                del self._hosts[name]
            tell(f"warning: {name} {error.in_one_line}")
            if not self._hosts:
                raise error
        for name, mirror in self._mirrors.items():
            self._remark(name, mirror)

    def _reconnect(self) -> None:
        lost = [host for name, host in self._hosts.items() if name not in self._fleet.sessions]
        if lost and time.monotonic() >= self._next_try:
            bad = self._fleet.connect(lost)
            tell(*(f"{host.name} answers again" for host in lost if host.name not in bad))
            self._next_try = time.monotonic() + _AGAIN

    def _remark(self, name: str, mirror: EventMirror) -> None:
        """Say once what a host has, and what is left out of it."""
        tasks = ", ".join(str(spec.id) for spec in self._plan.tasks_on(name))
        said = {
            "has": bool(mirror.known) and f"{count(len(mirror.known), 'event file')}, {size(mirror.size)}",
            "full": mirror.full and f"no more is taken: {mirror.full}",
            "more": mirror.more and "some of its event files are left out: there are too many",
        }
        for kind, words in said.items():
            if words and f"{name} {kind}" not in self._told:
                self._told.add(f"{name} {kind}")
                tell(f"{name} ({tasks}): {words}" if tasks else f"{name}: {words}")


def _root(plan: RunPlan, host: Host, logdir: str | None) -> str:
    """Where to look on a host: the whole work folder of the run, or a folder as its tasks would name it."""
    from orchestrator.sync.files import work_folder

    work = work_folder(host.workdir, plan.run)
    if logdir is None:
        return work
    if logdir.startswith(("/", "~")):
        return logdir
    if ".." in Path(logdir).parts:
        raise UsageError(f"--logdir {logdir} leads out of the work folder", hint="write an absolute path")
    return "/".join(filter(None, (work_folder(host.workdir, plan.run, plan.cwd), logdir)))


class _Ended(Exception):  # noqa: N818 - the usual end
    """Ctrl-C, or the end of the terminal."""


@contextlib.contextmanager
def _until_ctrl_c() -> Iterator[None]:
    """In it the first Ctrl-C, TERM or HUP raises `_Ended`; further ones are ignored: it is ending."""

    def end(_number: int, _frame: FrameType | None) -> None:
        for one in before:
            signal.signal(one, signal.SIG_IGN)
        raise _Ended

    before = {one: signal.signal(one, end) for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        with contextlib.suppress(_Ended):
            yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
