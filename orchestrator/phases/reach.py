"""Whether the hosts of an attempt still reach each other: asked when tasks are silent or blame a peer."""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import Future

from orchestrator import wire
from orchestrator.errors import HostError
from orchestrator.events import Noted
from orchestrator.phases.context import Run, log
from orchestrator.phases.follow import Follower
from orchestrator.run import reach

_TRY = 4.0  # seconds for a connection
_PATIENCE = 12.0  # for all answers
_SILENT = 10.0  # seconds without a word from any task, after which the first test is made
_SELDOM = 300.0  # seconds between two tests of tasks that stay silent, at most


class LinkTester:
    """Tests every pair of hosts through their agents, by the ports of their tasks; `look` never waits."""

    def __init__(self, run: Run, follower: Follower) -> None:
        self._run = run
        self._follower = follower
        self._pause = _SILENT
        self._next = 0.0
        self._began = 0.0
        self._asked: Mapping[str, Future[wire.Probes]] = {}
        self._heard = follower.heard
        self._blamed = False
        self.trouble = ""  # what the last test has shown, and since when

    def look(self) -> None:
        """Test in the background while all tasks are silent, ever more seldom; say what is found."""
        now = time.monotonic()
        if self._follower.heard != self._heard:
            self._heard, self._pause, self._next = self._follower.heard, _SILENT, 0.0
        if self._asked:
            if self._answered(now):
                self._conclude()
            return
        if now - self._heard >= self._pause and now >= self._next:
            self._pause = min(self._pause * 2, _SELDOM)
            self._next = now + self._pause
            self._ask(now)

    def begin(self) -> None:
        """Test once more, whoever was heard; `result` waits for it."""
        if not self._asked and not self._blamed:
            self._ask(time.monotonic())
        self._blamed = True

    def result(self) -> str:
        """What is wrong, "" for nothing."""
        while self._asked and not self._run.stop.asked:
            if self._answered(time.monotonic()):
                self._conclude()
            else:
                self._follower.step(0.05)
        return self.trouble

    def _ask(self, now: float) -> None:
        run, attempt = self._run, {spec.host: spec.port for spec in reversed(self._run.plan.tasks)}
        there = [host for host in run.hosts if host.name in run.fleet.sessions and host.name in attempt]
        if len(there) < 2:
            return
        self._began = now
        self._asked = {
            host.name: run.fleet.sessions[host.name].submit(
                wire.Probe(
                    nonce="",
                    timeout=_TRY,
                    targets=[
                        wire.ProbeTarget(peer.name, peer.address, attempt[peer.name])
                        for peer in there
                        if peer is not host
                    ],
                )
            )
            for host in there
        }

    def _answered(self, now: float) -> bool:
        return now - self._began > _PATIENCE or all(future.done() for future in self._asked.values())

    def _conclude(self) -> None:
        """Only hosts that answered us count: of the others we know that they are lost, and say so."""
        asked, self._asked = self._asked, {}
        replies: dict[str, tuple[wire.Probed, ...]] = {}
        for name, future in asked.items():
            try:
                replies[name] = future.result(timeout=0).results
            except (HostError, TimeoutError) as error:
                log.info("%s did not test its links: %s", name, error)
            except Exception:  # given up
                log.info("%s did not test its links", name)
        tried = {
            (name, one.host): one.why
            for name, results in replies.items()
            for one in results
            if one.host in replies
        }
        words = reach.in_words(reach.closed(tried), replies.keys())
        before = self.trouble
        if not words:
            self.trouble = ""
        elif not before.startswith(words):
            self.trouble = f"{words} since {self._since()}"
        if self.trouble and self.trouble != before:
            self._run.bus.emit(Noted(self.trouble))
        elif before and not words:
            self._run.bus.emit(Noted("all hosts reach each other again"))

    def _since(self) -> str:
        """The last step that any task has reported; else their last word before the test.

        Until then they were in touch: a step takes all of them.
        """
        steps = [life.stepped for life in self._follower.lives.values() if life.step is not None]
        last = max(steps, default=min(self._heard, self._began))
        return time.strftime("%H:%M:%S", time.localtime(time.time() - (time.monotonic() - last)))
