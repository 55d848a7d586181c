"""Which hosts kept a run from its start, as its events tell it."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.checks.rest import without
from orchestrator.errors import ExitStatus
from orchestrator.events import CheckReported, HostFailed, PairReported, RunEnded, Stamped
from orchestrator.model import Host


class Readiness:
    def __init__(self, hosts: Sequence[Host]) -> None:
        self._hosts = hosts
        self._checks: list[CheckReported] = []
        self._pairs: list[PairReported] = []
        self._failed: set[str] = set()
        self._never_began = False

    def hear(self, stamped: Stamped) -> None:
        match stamped.event:
            case CheckReported() as check:
                self._checks.append(check)
            case PairReported() as pair:
                self._pairs.append(pair)
            case HostFailed(host=host):
                self._failed.add(host)
            case RunEnded(status=status):
                self._never_began = status == ExitStatus.CLUSTER

    def out(self) -> tuple[str, ...]:
        """The hosts without which it could have begun; () where there is no such way, or it did begin."""
        if not self._never_began:
            return ()
        return without(self._hosts, self._checks, self._pairs, self._failed)
