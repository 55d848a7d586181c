"""Importing what trains on every host, in the background: it takes seconds of a processor."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future

from orchestrator import wire
from orchestrator.checks import MODULES, Needs
from orchestrator.errors import HostError
from orchestrator.fleet import Fleet, Session
from orchestrator.model import Host, RunPlan
from orchestrator.planning.plan import is_builtin

LIMIT = 180.0  # seconds


class ImportChecks:
    """The questions under way; hosts that are one machine, with one environment, are asked once."""

    def __init__(
        self,
        fleet: Fleet,
        plan: RunPlan,
        hosts: Sequence[Host],
        facts: Mapping[str, wire.MachineFacts],
        needs: Needs,
    ) -> None:
        self._asked: dict[str, tuple[Session, Future[wire.Imported]]] = {}
        self._same: dict[str, str] = {}  # host -> the one that is asked in its place
        self._deadline = time.monotonic() + LIMIT
        first: dict[tuple[object, ...], str] = {}
        for host in hosts:
            request = _request(plan, host, facts[host.name], needs)
            if request is None:
                continue
            session = fleet.sessions[host.name]
            hello = session.hello
            key = (
                hello.boot_id,
                hello.netns,
                hello.user,
                request.python,
                request.setup,
                *request.env.items(),
            )
            self._same[host.name] = first.setdefault(key, host.name)
            if first[key] == host.name:
                self._asked[host.name] = session, session.submit(request)

    def wait(self) -> tuple[dict[str, wire.Imported], dict[str, HostError]]:
        """The answers by host, and what went wrong."""
        good: dict[str, wire.Imported] = {}
        bad: dict[str, HostError] = {}
        for name, (session, future) in self._asked.items():
            try:
                left = max(0.1, self._deadline - time.monotonic())
                good[name] = session.wait(future, wire.Imports.OP, left)
            except HostError as error:
                bad[name] = error
        return {name: good[asked] for name, asked in self._same.items() if asked in good}, bad


def _request(plan: RunPlan, host: Host, facts: wire.MachineFacts, needs: Needs) -> wire.Imports | None:
    """Nothing to ask where the job needs no TensorFlow, or where it is known already that it is not there."""
    if not needs.tensorflow or not facts.python.ok:
        return None
    keras = "tf-keras" if needs.legacy_keras else "keras"
    wanted = ["numpy", "protobuf", "tensorflow", keras]
    if is_builtin(plan.command):
        wanted.append("tensorflow-datasets")
    there = {MODULES[name] for name, version in facts.packages.items() if version}
    if MODULES["tensorflow"] not in there:
        return None
    spec = plan.tasks_on(host.name)[0]
    return wire.Imports(
        python=spec.env.get("RETICULATE_PYTHON", host.python) if needs.r else host.python,
        setup=spec.setup,
        env={name: value for name, value in spec.env.items() if name != "TF_CONFIG"},
        # numpy is imported by all: that it is not there is what one wants to know.
        modules=[MODULES[name] for name in wanted if MODULES[name] in there or name == "numpy"],
        gpus=bool(facts.gpus or host.devices),
    )
