"""Which hosts have to be left out, so that the others can train. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from orchestrator.events import Check, CheckReported, Level, PairReported
from orchestrator.model import Host, Role

_OF_PAIRS = {Check.REACH, Check.PACKETS, Check.NCCL}


def without(
    hosts: Sequence[Host],
    checks: Sequence[CheckReported],
    pairs: Sequence[PairReported],
    failed: Collection[str],
) -> tuple[str, ...]:
    """The hosts without which all is well, in their order; () where none are left, or a role is missing then.

    Of hosts that do not reach each other the one with the most such pairs goes first.
    """
    wrong = [check for check in checks if check.level is Level.FAIL]
    bad = {*failed, *(check.host for check in wrong if check.check not in _OF_PAIRS)}
    bad |= {check.host for check in wrong if check.check == Check.NCCL}
    apart = [pair for pair in pairs if not pair.tcp or pair.large_out is False or pair.large_back is False]
    while left := [pair for pair in apart if not {pair.source, pair.target} & bad]:
        counts = Counter(name for pair in left for name in {pair.source, pair.target})
        most = max(counts.values())
        bad.add(next(host.name for host in reversed(hosts) if counts[host.name] == most))
    rest = [host for host in hosts if host.name not in bad]
    roles = {host.role for host in hosts} - {Role.EVALUATOR}
    if not bad or roles - {host.role for host in rest}:
        return ()
    return tuple(host.name for host in hosts if host.name in bad)
