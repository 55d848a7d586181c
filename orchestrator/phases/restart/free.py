"""Proof, before another attempt, that the last one holds nothing any more: processes, ports, GPU memory."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence

from orchestrator import wire
from orchestrator.errors import HostError
from orchestrator.events import Phase, StopBy
from orchestrator.fleet import Cancelled
from orchestrator.phases import stop
from orchestrator.phases.context import Run, fail_on
from orchestrator.phases.mesh import listen

_LOOK = 0.5  # seconds between two looks


def prove_free(run: Run) -> None:
    """Raise PhaseFailed naming what still runs, or holds a port or a GPU's memory; Cancelled when a user
    asks for the end.

    A host that was lost when the last attempt was ended may still run its tasks.
    """
    stop.EndAll(run, kill=True, grace=0.0, by=StopBy.FAILURE).wait()
    stop.sweep(run)
    deadline = time.monotonic() + run.timings.release
    while busy := _busy(run):
        if time.monotonic() > deadline:
            fail_on(run.bus, Phase.CONNECT, busy)
        if run.stop.wait(_LOOK):
            raise Cancelled


def _busy(run: Run) -> dict[str, HostError]:
    """What is held on which host, and by whom."""
    nonce = secrets.token_hex(8)
    ports = listen(
        run.fleet,
        {
            name: wire.Listen(
                run=run.id,
                ports=[spec.port for spec in run.plan.tasks_on(name)],
                nonce=nonce,
                host=name,
            )
            for name in run.names
        },
    )
    run.fleet.ask(wire.Unlisten(), hosts=run.names)
    gpus = run.fleet.ask(wire.GpuHeld(run=run.id), hosts=run.names)
    swept = run.fleet.ask(wire.Sweep(run=run.id), hosts=run.names, timeout=30.0)
    fail_on(run.bus, Phase.CONNECT, {**ports.bad, **gpus.bad, **swept.bad})
    taken = {
        name: reply.busy or (wire.Busy(port=0, holder=f"a preflight of {reply.waits_for}"),)
        for name, reply in ports.good.items()
        if reply.busy or reply.waits_for
    }
    held = {name: reply.held for name, reply in gpus.good.items() if reply.held}
    alive = {name: reply.alive for name, reply in swept.good.items() if reply.alive}
    return {
        **{name: _gpu(name, found[0]) for name, found in held.items()},
        **{name: _port(name, found[0]) for name, found in taken.items()},
        **{name: _alive(name, found) for name, found in alive.items()},
    }


def _alive(name: str, tasks: Sequence[str]) -> HostError:
    return HostError(
        name,
        f"still runs {', '.join(tasks)} of the last attempt",
        kind="orphan",
        why="SIGKILL has not ended it: it waits in the kernel, for a disk or a driver, or is stopped there",
        hint=f"`ps -eo pid,stat,wchan:30,args` on {name}: state D is ended by what it waits for, or a reboot",
    )


def _port(name: str, first: wire.Busy) -> HostError:
    return HostError(
        name,
        f"has task port {first.port} taken",
        kind="port",
        why=f"{first.words} has it, and nothing of this run is left there",
        hint="end it, then launch again",
    )


def _gpu(name: str, first: wire.GpuProcess) -> HostError:
    return HostError(
        name,
        "has not got back the GPU memory of the last attempt",
        kind="gpu",
        why=f"nvidia-smi shows pid {first.pid} ({first.name}), whose end was proven",
        hint=f"`nvidia-smi` on {name}; a driver that keeps it needs `nvidia-smi --gpu-reset`, or a reboot",
    )
