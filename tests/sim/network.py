"""The network to the hosts: a `transport.Connector` whose links can be cut, silent, or slow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from orchestrator.errors import HostError, Trouble
from orchestrator.model import Host
from orchestrator.node.serve import frames
from tests.sim.node import Agent, Node
from tests.sim.scheduler import Process

if TYPE_CHECKING:
    from tests.sim.world import World

_REFUSALS = {
    "refused": (Trouble.REFUSED, "refused the connection"),
    "no-route": (Trouble.NO_ROUTE, "has no route to it"),
    "hung-up": (Trouble.HUNG_UP, "closes every connection at once"),
    "key-changed": (Trouble.HOSTKEY_CHANGED, "presented another host key"),
}


class SimulatedChannel:
    """A `transport.Channel` to one agent, and the link that carries it: bytes in order, both ways."""

    remark = ""

    def __init__(self, world: World, node: Node, process: Process) -> None:
        self.world, self.node, self.process = world, node, process
        self.agent: Agent | None = None
        self.open_here = self.open_there = True
        self.silent = False
        self._opened = self._sent = self._cut = False
        self._held: list[Callable[[], None]] = []  # in transit while the link is silent
        self._arrived = bytearray()
        self._early = b""  # in the pipe of an agent that has not started
        self._ended = False
        self._next_there = self._next_here = 0.0
        node.channels.append(self)

    # --- operations of the controller ---

    def open(self, argv: Sequence[str]) -> SimulatedChannel:
        """Log in: our command reports that it is reading, unless a startup file prevents it."""
        if self._opened:
            return SimulatedChannel(self.world, self.node, self.process).open(argv)
        self._opened = True
        if self.node.trouble == "no-hello":
            self.world.hit("no-hello")
        else:
            self._to_node(lambda: self.to_controller(frames.READY) if self.open_there else None)
        return self

    def explain(self, status: int | None, words: bytes) -> HostError | None:
        del status, words
        return self._lost() if self._cut else None

    def leave(self) -> None:
        pass

    def send(self, data: bytes) -> None:
        if not self.open_here:
            raise self._lost()
        first, self._sent = not self._sent, True
        self._to_node((lambda: self._boot(data)) if first else lambda: self._hear(data))

    def send_eof(self) -> None:
        if not self._sent:
            self._to_node(self.hang_up)

    def recv(self, limit: int) -> bytes:
        self.world.scheduler.wait(lambda: bool(self._arrived) or self._ended or not self.open_here, None)
        if not self.open_here:
            return b""
        if self.world.splits:
            limit = self.world.dice.randint(1, 400)
        data = bytes(self._arrived[:limit])
        del self._arrived[:limit]
        return data

    def stderr_tail(self) -> bytes:
        return b""

    def wait(self, timeout: float) -> int | None:
        del timeout
        return -1

    def close(self) -> None:
        """Close the local end; the agent notices if and when the message arrives."""
        if self.open_here:
            self.open_here = False
            self._to_node(self._gone)

    def _lost(self) -> HostError:
        return HostError(self.node.name, "was lost", kind=Trouble.LOST, why="the connection was closed")

    # --- transfer of bytes ---

    def _to_node(self, arrive: Callable[[], None]) -> None:
        self._next_there = max(self._next_there, self.world.now + self._latency())
        self.world.after(self._next_there - self.world.now, lambda: self._through(arrive))

    def to_controller(self, data: bytes) -> None:
        def arrive() -> None:
            self._arrived.extend(data)

        self._next_here = max(self._next_here, self.world.now + self._latency())
        self.world.after(self._next_here - self.world.now, lambda: self._through(arrive))

    def _latency(self) -> float:
        return self.node.latency * self.node.slow * self.world.dice.uniform(0.8, 1.5)

    def _through(self, arrive: Callable[[], None]) -> None:
        if self.silent:
            self._held.append(arrive)
        else:
            arrive()

    def _boot(self, data: bytes) -> None:
        if not self.open_there or not self.node.up:
            return
        loader, _, rest = data.partition(b"\n")
        sizes, _, rest = rest[int(loader) :].partition(b"\n")
        self._early = rest[sum(map(int, sizes.split())) :]
        delay, trouble = self.node.slow * self.world.dice.uniform(0.05, 0.4), self.node.trouble
        if trouble == "late-hello":
            self.world.hit("late-hello")
            delay += self.world.dice.uniform(5.0, 15.0)
        self.world.after(delay, self._greet)

    def _greet(self) -> None:
        if self.open_there and self.node.up:
            self.agent = Agent(self.node, self)
            self.to_controller(frames.MARKER + frames.encode({"hello": self.node.hello()}))
            self.agent.hear(self._early)

    def _hear(self, data: bytes) -> None:
        if self.agent is not None:
            self.agent.hear(data)
        else:
            self._early += data

    def _gone(self) -> None:
        """Notify the remote end that we are gone."""
        self.open_there = False
        if self.agent is not None:
            self.world.after(self.node.linger, self.agent.leave)

    # --- faults ---

    def hang_up(self) -> None:
        """The agent has exited: its last bytes are followed by an end of file."""
        self.open_there = False

        def arrive() -> None:
            self._ended = True

        self._next_here = max(self._next_here, self.world.now + self._latency())
        self.world.after(self._next_here - self.world.now, lambda: self._through(arrive))

    def cut(self) -> None:
        """Both ends notice at once that the link is gone; data in transit is lost."""
        self._arrived.clear()
        self._ended, self._held, self.silent, self._cut = True, [], True, True
        self._gone()

    def fall_silent(self, seconds: float) -> None:
        """Nothing passes; data sent meanwhile arrives later if both ends still exist."""
        self.silent = True
        self.world.after(seconds, self._speak)

    def _speak(self) -> None:
        if self._ended:
            return
        self.silent = False
        held, self._held = self._held, []
        for arrive in held:
            arrive()

    def vanish(self, reset: bool) -> None:
        """The remote machine is gone, with a reset or silently."""
        self.open_there, self.silent, self._held = False, True, []
        if reset:
            self._ended = True


class Network:
    """A `transport.Connector` for one process of the controller."""

    def __init__(self, world: World, process: Process) -> None:
        self.world, self.process = world, process

    def connect(self, host: Host, timeout: float) -> SimulatedChannel:
        node, world = self.world.nodes[host.name], self.world
        world.on_connect(node)
        world.scheduler.wait(lambda: False, node.latency * node.slow * 4)
        if node.trouble == "slow-connect":
            world.hit("slow-connect")
            world.scheduler.wait(lambda: False, min(timeout, world.dice.uniform(2.0, 14.0)))
        if not node.up or node.trouble == "time-out":
            if node.trouble:
                world.hit("connect-time-out")
            world.scheduler.wait(lambda: False, max(0.0, timeout))
            raise HostError(host.name, "did not answer", kind=Trouble.TIMEOUT, why="no answer in time")
        if node.trouble in _REFUSALS:
            world.hit("connect-" + node.trouble)
            kind, what = _REFUSALS[node.trouble]
            raise HostError(host.name, what, kind=kind)
        return SimulatedChannel(world, node, self.process)

    def close(self) -> None:
        """Nothing to close: connections share nothing."""
