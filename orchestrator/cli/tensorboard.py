"""`orchestrate tensorboard`: what a run's tasks write for TensorBoard, live in a browser of this machine."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.cli.args import options, readings
from orchestrator.cli.desk.out import facts, say, tell
from orchestrator.errors import ClusterError, ExitStatus, SeveralErrors, UsageError

if TYPE_CHECKING:
    from orchestrator.fleet import Fleet
    from orchestrator.model import Host, RunPlan
    from orchestrator.sync.eventfiles import EventMirror

SUMMARY = "show what a run's tasks write for TensorBoard, live, in your browser"
_EVERY = 3.0  # seconds between two looks
_AGAIN = 15.0  # seconds until a host that was lost is tried again


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.run(parser)
    parser.add_argument(
        "--from", dest="source", metavar="worker/0", help="only of this task or host (default: of all)"
    )
    parser.add_argument(
        "--logdir", metavar="DIR", help="where tasks write it (default: anywhere in their folder)"
    )
    parser.add_argument(
        "--port",
        type=readings.whole(1, 65_535),
        default=0,
        metavar="PORT",
        help="on this machine (default: a free one)",
    )
    options.as_json(parser)


def main(arguments: argparse.Namespace) -> int:
    import json
    import tempfile

    from orchestrator.cli.desk.asking import unconnected
    from orchestrator.cli.desk.finding import find_run, is_over, source_of
    from orchestrator.envs import tensorboard
    from orchestrator.sync.eventfiles import EventMirror

    folder = find_run(arguments.run, arguments.hosts)
    plan = folder.read_plan()
    names = [source_of(plan, arguments.source)] if arguments.source else [host.name for host in plan.hosts]
    hosts = [plan.host(name) for name in names]
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    program = tensorboard.program()
    try:
        with (
            tempfile.TemporaryDirectory(prefix="orchestrate-tensorboard-") as made,
            tensorboard.show(program, Path(made), arguments.port, _EVERY) as board,
            unconnected(hosts) as fleet,
        ):
            mirrors = {
                host.name: EventMirror(Path(made) / host.name, _root(plan, host, arguments.logdir))
                for host in hosts
            }
            follower = _Follower(fleet, hosts, mirrors)
            follower.catch_up()
            files = sum(len(mirror.sizes) for mirror in mirrors.values())
            if not files and is_over(folder):
                raise UsageError(
                    f"no task of run {plan.run} has written an event file",
                    why="the run is over: none will come",
                    hint='give fit a callback: tf.keras.callbacks.TensorBoard("logs")',
                )
            url = board.url()
            show = facts if arguments.json else say
            show(json.dumps({"run": plan.run, "url": url, "files": files}) if arguments.json else url)
            sys.stdout.flush()
            tell(f"event files so far: {files}; it follows the run, and Ctrl-C ends it")
            while board.alive:
                time.sleep(_EVERY)
                follower.catch_up()
            raise ClusterError("TensorBoard has ended", why=board.last_words())
    except KeyboardInterrupt:
        tell("TensorBoard has ended; nothing of it was on the hosts")
    return int(ExitStatus.OK)


class _Follower:
    """Keeps the mirrors of a run's hosts up to date."""

    def __init__(self, fleet: Fleet, hosts: list[Host], mirrors: Mapping[str, EventMirror]) -> None:
        self._fleet = fleet
        self._mirrors = mirrors
        self._hosts = {host.name: host for host in hosts}  # without those that are given up
        self._next_try = 0.0

    def catch_up(self) -> None:
        """Take what is new from every host that answers; raise HostError where none does any more."""
        missing = [host for name, host in self._hosts.items() if name not in self._fleet.sessions]
        if missing and time.monotonic() >= self._next_try:
            bad = self._fleet.connect(missing)
            self._next_try = time.monotonic() + _AGAIN
            if len(bad) == len(self._hosts):
                raise SeveralErrors(bad.values())
            tell(*(f"warning: {one.host} {one.what}; tried again every {_AGAIN:g} s" for one in bad.values()))

        def take(name: str) -> None:
            self._mirrors[name].catch_up(self._fleet.sessions[name])

        answers = self._fleet.each([name for name in self._hosts if name in self._fleet.sessions], str, take)
        for name, error in answers.bad.items():
            self._fleet.let_go(name)
            tell(f"warning: {name} {error.in_one_line}")
            if not error.lost:  # it would say the same again
                del self._hosts[name]
                if not self._hosts:
                    raise error


def _root(plan: RunPlan, host: Host, logdir: str | None) -> str:
    """Return where to look on a host: the run's whole work folder, or a folder as its tasks would name it."""
    from orchestrator.sync.files import work_folder

    if logdir is None or logdir.startswith(("/", "~")):
        return logdir or work_folder(host.workdir, plan.run)
    if ".." in Path(logdir).parts:
        raise UsageError(f"--logdir {logdir} leads out of the work folder", hint="write an absolute path")
    return f"{work_folder(host.workdir, plan.run, plan.cwd)}/{logdir}"
