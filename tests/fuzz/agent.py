"""Mutated requests through an agent: decoding, dispatch, and operations that only know its own folder."""

from __future__ import annotations

import contextlib
import io
import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from orchestrator.node.serve import frames, ops
from orchestrator.node.serve.agent import Agent
from tests.fuzz.mutate import damaged, frame, mutated

# The others start programs, bind ports, kill, or write where a mutated path leads.
SAFE = (
    *("ping", "beats", "states", "keep", "lease", "follow", "stop", "unlisten"),
    *("clean_look", "gpu_held"),
)


class _Agent(Agent):
    """An agent that does in place what it would leave to a child, whose errors are answers alike."""

    def __init__(self, state: Path) -> None:
        self._feed, self._told = os.pipe()
        self._answers, stdout = os.pipe()
        super().__init__({"state": str(state), "idle": 1e9}, self._feed, stdout, ops.serve)
        os.set_blocking(self._feed, False)
        os.set_blocking(self._answers, False)
        self._stdout = stdout
        self.decoder = frames.Decoder()
        self.kinds: list[str] = []

    def in_child(self, request: Any, work: Any, **options: Any) -> None:
        try:
            made = work()
            result, payload = made if isinstance(made, tuple) else (made, b"")
            self.reply(request, result, payload)
        except BaseException as error:
            self.fail(request, error)
        options.get("after", lambda: None)()

    def take(self, data: bytes) -> None:
        """Hear the data and say what there is to say."""
        view = memoryview(data)
        while view and self._running:
            view = view[os.write(self._told, view[:32768]) :]
            self._hear()
        while self.outbox._queue:
            self.outbox._flush()
            for header, _ in self.decoder.feed(os.read(self._answers, 1 << 20)):
                if header.get("ok") is False:
                    self.kinds.append(header["error"]["kind"])

    @property
    def left(self) -> bool:
        return not self._running

    def close(self) -> None:
        leases = [fd for both in self.leases.values() for fd in both]
        for fd in (self._feed, self._told, self._answers, self._stdout, *leases):
            os.close(fd)
        for fd in self.rooms.get("words", {}).values():
            os.close(fd)
        if "follower" in self.rooms:
            for tail in list(self.rooms["follower"]._tails):
                self.rooms["follower"]._forget(tail)


class Players:
    """Agents one after the other: one that left, or that waits for the rest of a frame, is replaced."""

    def __init__(self, state: Path) -> None:
        self._state = state
        self._agent = _Agent(state)
        self._plays = 0

    def play(self, dice: random.Random, requests: Sequence[dict[str, Any]]) -> str:
        """One mutated request; return what came of it. Whatever an agent would fall over is raised."""
        agent, request = self._agent, dice.choice(requests)
        whole = dice.random() < 0.8
        if whole:
            made = mutated(dice, request)
            data = frame(made)
        else:
            data = damaged(dice, frame(request))
        before = len(agent.kinds)
        with contextlib.redirect_stderr(io.StringIO()):
            agent.take(data)
        self._plays += 1
        if agent.left or not whole or self._plays % 500 == 0:
            agent.close()
            self._agent = _Agent(self._state)
        if agent.left:
            return "left"
        return agent.kinds[-1] if len(agent.kinds) > before else "answered"

    def close(self) -> None:
        self._agent.close()


def restricted() -> None:
    """From now on, in this process, an agent knows the safe operations alone."""
    known = {name: ops.OPS[name] for name in SAFE}
    ops.OPS.clear()
    ops.OPS.update(known)
