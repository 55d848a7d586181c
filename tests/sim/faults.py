"""The fault points: each is armed in a world, and counted when it strikes."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from msgspec.structs import replace

from orchestrator.model import Order
from tests.sim.node import Node, Task

if TYPE_CHECKING:
    from tests.sim.world import World

Fault: TypeAlias = "Callable[[World], None]"


def _node(world: World) -> Node:
    return world.dice.choice(list(world.nodes.values()))


def _at(world: World, strike: Callable[[], None]) -> None:
    """Strike at a random moment of the run, often while it starts."""
    early = world.dice.random() < 0.35
    world.after(
        world.dice.uniform(0.0, 2.5) if early else world.dice.uniform(0.0, world.length * 1.3), strike
    )


def _strikes(name: str, strike: Callable[[World, Node], None]) -> Fault:
    """Strike a node at a random moment."""

    def arm(world: World) -> None:
        node = _node(world)

        def now() -> None:
            strike(world, node)
            world.hit(name)

        _at(world, now)

    return arm


def _for_a_while(world: World, set_back: Callable[[], None]) -> None:
    world.after(world.dice.choice([1.0, 8.0, 40.0, 90.0]) * world.dice.uniform(0.2, 1.0), set_back)


def _trouble(kind: str, *, forever: float = 0.1) -> Fault:
    """Affect new connections for a while; the current one is cut, or was never made."""

    def arm(world: World) -> None:
        node = _node(world)

        def strike() -> None:
            node.trouble = kind
            if node.channels:
                world.hit("cut")
            node.cut()
            if world.dice.random() > forever:
                _for_a_while(world, lambda: setattr(node, "trouble", ""))

        if world.dice.random() < 0.5:
            strike()
        else:
            _at(world, strike)

    return arm


def _cut_all(world: World) -> None:
    def strike() -> None:
        world.hit("cut-all")
        for node in world.nodes.values():
            node.cut()

    _at(world, strike)


def _silence(world: World) -> None:
    seconds = world.dice.choice([3.0, 18.0, 30.0, 200.0]) * world.dice.uniform(0.5, 1.5)

    def strike(_: World, node: Node) -> None:
        for channel in list(node.channels):
            channel.fall_silent(seconds)

    _strikes("silence", strike)(world)


def _slow(world: World, node: Node) -> None:
    node.slow = world.dice.choice([20.0, 100.0])
    _for_a_while(world, lambda: setattr(node, "slow", 1.0))


def _reply(fate: str) -> Fault:
    """Affect one reply, to any request."""

    def arm(world: World) -> None:
        world.fates.append((fate, _node(world).name, world.dice.randint(0, 25)))

    return arm


def _linger(world: World, node: Node) -> None:
    node.linger = world.dice.uniform(1.0, 20.0)
    node.cut()


def _reboot(world: World) -> None:
    seconds = world.dice.choice([2.0, 20.0, 90.0, 100_000.0])
    name = "reboot" if seconds < 1000 else "gone-for-good"
    _strikes(name, lambda _, node: node.reboot(seconds))(world)


def _returns_late(world: World) -> None:
    """Cut off a host with a long task until its attempt may be over; the last check waits for it longer."""
    node = _node(world)
    world.timings = replace(world.timings, last_try=60.0)

    def long(_: World, task: Task) -> None:
        task.conduct.length = 300.0

    def strike() -> None:
        world.hit("host-returns-late")
        node.trouble = "refused"
        node.cut()
        world.after(world.dice.uniform(30.0, 200.0), back)
        world.on_failure.append(lambda: world.after(world.dice.uniform(0.0, 60.0), back))

    def back() -> None:
        node.trouble = ""

    world.conducts.append(("host-returns-late", node.name, long))
    _at(world, strike)


def _outage(world: World) -> None:
    """Every host with tasks loses its power for good; the spares do not."""

    def strike() -> None:
        world.hit("outage")
        for host in world.plan.hosts:
            world.nodes[host.name].reboot(100_000.0)

    world.after(world.length * 0.5, strike)


def _agents_die(_: World, node: Node) -> None:
    for agent in list(node.agents):
        agent.leave()


def _of_task(name: str, strike: Callable[[World, Task], None]) -> Fault:
    """Affect a live task at a random moment."""

    def arm(world: World) -> None:
        node = _node(world)

        def now() -> None:
            if living := [task for task in node.tasks if task.alive]:
                strike(world, living[0])
                world.hit(name)

        world.after(world.dice.uniform(0.5, world.length * 1.1), now)

    return arm


def _exits_when_asked(world: World) -> None:
    op = world.dice.choice(["states", "stop", "sweep", "follow", "started", "ping", "gpus"])
    world.exits.append((op, _node(world).name, world.dice.random() < 0.5, world.dice.choice([0, 0, 1])))


def _conduct(name: str, change: Callable[[World, Task], None] | None = None, **fixed: float) -> Fault:
    """Set the behavior of the next task that starts there."""

    def behave(world: World, task: Task) -> None:
        for key, value in fixed.items():
            setattr(task.conduct, key, value)
        if change is not None:
            change(world, task)

    def arm(world: World) -> None:
        world.conducts.append((name, _node(world).name, behave))

    return arm


def _fails_early(world: World, task: Task) -> None:
    task.conduct.length = world.dice.uniform(0.0, 2.0)


def _hard_to_kill(world: World, task: Task) -> None:
    task.conduct.on_kill = world.dice.choice([3.0, 15.0])


def _hangs(world: World, task: Task) -> None:
    task.conduct.hangs_at = world.dice.uniform(1.0, world.length)


def _refused(kind: str) -> Fault:
    def arm(world: World) -> None:
        _node(world).refuses.append(kind)

    return arm


def _port_busy(world: World) -> None:
    def strike() -> None:
        node.busy_until = world.now + world.dice.choice([1.0, 10.0, 60.0])

    node = _node(world)
    world.on_failure.append(strike)


def _node_full(world: World) -> None:
    def strike() -> None:
        node.full = True
        _for_a_while(world, lambda: setattr(node, "full", False))

    node = _node(world)
    _at(world, strike)


def _controller_full(world: World) -> None:
    def strike() -> None:
        world.full = True
        world.after(world.dice.uniform(1.0, 40.0), lambda: setattr(world, "full", False))

    _at(world, strike)


def _clock_offset(world: World) -> None:
    node = _node(world)
    node.offset = world.dice.choice([-1, 1]) * world.dice.choice([0.5, 100.0, 90_000.0])
    world.hit("clock-offset")


def _clock_jumps(world: World) -> None:
    def strike() -> None:
        world.hit("clock-jumps")
        world.scheduler.shift += world.dice.choice([-3600.0, 3600.0, 5.0])

    _at(world, strike)


def _order(name: str, *orders: Order) -> Fault:
    def arm(world: World) -> None:
        def strike() -> None:
            world.hit(name)
            for number, order in enumerate(orders):
                world.after(number * world.dice.uniform(0.0, 5.0), partial(world.order, order))

        _at(world, strike)

    return arm


def _stop_in_a_pause(world: World) -> None:
    """Stop the run between two attempts, in a pause much longer than a stop may take."""
    world.timings = replace(world.timings, pauses=(100.0,))
    world.on_failure.append(partial(_order("stop-in-a-pause", Order.STOP), world))


def _stopped_elsewhere(world: World) -> None:
    """Another machine stops the run: it notifies the nodes, but not the keeper."""

    def strike() -> None:
        if any(node.runs for node in world.nodes.values()):
            world.hit("stopped-elsewhere")
            world.stop_elsewhere()

    _at(world, strike)


def _killed(world: World) -> None:
    """Kill the keeper between any two of its steps."""
    world.kill_after.append(world.dice.randint(0, 40) if world.dice.random() < 0.5 else -1)
    if world.kill_after[-1] < 0:
        _at(world, lambda: world.kill("keeper-killed"))


def _killed_again(world: World) -> None:
    _killed(world)
    _killed(world)
    world.kill_again = True


def _torn(world: World) -> None:
    """Kill the keeper in the middle of writing an event."""
    _killed(world)
    world.tears = True


def _killed_at_a_stop(world: World) -> None:
    """Kill the keeper after it has recorded a stop, and before it notifies a node."""
    world.kill_at_a_stop = True
    _order("stop", Order.STOP)(world)


def _splits(world: World) -> None:
    world.splits = True
    world.hit("split-frames")


def _standby_dies(world: World) -> None:
    node = _node(world)

    def strike() -> None:
        if node.standbys:
            world.hit("standby-dies")
            node.lose_standby(world.dice.choice(node.standbys))

    for _ in range(3):
        _at(world, strike)


FAULTS: dict[str, Fault] = {
    "connect-refused": _trouble("refused"),
    "connect-no-route": _trouble("no-route"),
    "connect-hung-up": _trouble("hung-up"),
    "connect-key-changed": _trouble("key-changed"),
    "connect-time-out": _trouble("time-out"),
    "slow-connect": _trouble("slow-connect"),
    "no-hello": _trouble("no-hello"),
    "late-hello": _trouble("late-hello"),
    "cut": _strikes("cut", lambda _, node: node.cut()),
    "cut-all": _cut_all,
    "silence": _silence,
    "slow-host": _strikes("slow-host", _slow),
    "split-frames": _splits,
    "lost-reply": _reply("lost-reply"),
    "late-reply": _reply("late-reply"),
    "cut-before-reply": _reply("cut-before-reply"),
    "agent-lingers": _strikes("agent-lingers", _linger),
    "agent-dies": _strikes("agent-dies", _agents_die),
    "reboot": _reboot,
    "gone-for-good": _strikes("gone-for-good", lambda _, node: node.reboot(100_000.0)),
    "host-returns-late": _returns_late,
    "outage": _outage,
    "node-disk-full": _node_full,
    "controller-disk-full": _controller_full,
    "clock-offset": _clock_offset,
    "clock-jumps": _clock_jumps,
    "supervisor-killed": _of_task("supervisor-killed", lambda _, task: task.kill_ours()),
    "task-killed": _of_task("task-killed", lambda _, task: task.leave(signal=9)),
    "task-exits-while-asked": _exits_when_asked,
    "task-fails": _conduct("task-fails", code=3),
    "task-fails-early": _conduct("task-fails-early", _fails_early, code=1),
    "task-ignores-term": _conduct("task-ignores-term", on_term=math.inf),
    "task-hard-to-kill": _conduct("task-hard-to-kill", _hard_to_kill, on_term=math.inf),
    "task-hangs": _conduct("task-hangs", _hangs),
    "task-bursts": _conduct("task-bursts", bursts=True),
    "start-refused": _refused("program"),
    "start-no-room": _refused("claim"),
    "port-busy": _port_busy,
    "standby-dies": _standby_dies,
    "standby-dies-taken": lambda world: setattr(_node(world), "fails_taken", True),
    "standby-refused": lambda world: setattr(_node(world), "no_memory", True),
    "stop": _order("stop", Order.STOP),
    "kill": _order("kill", Order.KILL),
    "stop-then-kill": _order("stop-then-kill", Order.STOP, Order.KILL),
    "stop-in-a-pause": _stop_in_a_pause,
    "stopped-elsewhere": _stopped_elsewhere,
    "keeper-killed": _killed,
    "keeper-killed-again": _killed_again,
    "keeper-killed-in-a-write": _torn,
    "keeper-killed-at-a-stop": _killed_at_a_stop,
}
