"""Results of preflight: a table of hosts, a line about their pairs, and a block for each problem. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter

from orchestrator.events import CheckReported, Level, PairReported
from orchestrator.groups import grouped
from orchestrator.render import fold
from orchestrator.render.grid import grid
from orchestrator.render.problems import problems
from orchestrator.render.wrap import wrapped
from orchestrator.text import count, plain

_SHORT = 14  # characters of a finding that still fit into a table


def preflight_table(
    checks: Sequence[CheckReported],
    pairs: Sequence[PairReported],
    width: int | None = None,
    hosts: Sequence[str] | None = None,
) -> list[str]:
    """Everything, the problems last: that is where one looks.

    A failed `login` is a row of the table and no problem: its host has an error of its own.
    """
    shown = [check for check in checks if check.check != "login" or check.level is not Level.FAIL]
    last = wrapped([*notes(shown), *problems(shown)], width)
    parts = (host_table(checks, width, hosts), wrapped(pairs_line(pairs), width), last)
    lines: list[str] = []
    for part in parts:
        lines += ["", *part] if lines and part else part
    return lines


def notes(checks: Sequence[CheckReported]) -> list[str]:
    """A line for what is worth knowing and nothing to do about: `note: gpu-[01-04]: rsync: none (...)`."""
    texts = grouped(
        ((each.check, each.found, each.why), each.host) for each in checks if each.level is Level.NOTE
    )
    return [
        plain(f"note: {fold.names(hosts)}: {name}: {text} ({why})")
        for (name, text, why), hosts in texts.items()
    ]


def host_table(
    checks: Sequence[CheckReported], width: int | None = None, hosts: Sequence[str] | None = None
) -> list[str]:
    """A row per host, a column per check; hosts with equal rows share one.

    A column shows what was found where all hosts that are well agree on it (a version), else `ok`.
    """
    slugs = list(dict.fromkeys(check.check for check in checks))
    worst = {(check.host, check.check): check for check in worst_last(checks)}
    common = {slug: _common([check for check in checks if check.check == slug]) for slug in slugs}
    rows: dict[tuple[str, ...], list[str]] = {}
    checked = dict.fromkeys(check.host for check in checks)
    for host in [name for name in hosts if name in checked] if hosts is not None else checked:
        cells = tuple(_cell(worst.get((host, slug)), common[slug]) for slug in slugs)
        rows.setdefault(cells, []).append(host)
    if not rows:
        return []
    return grid([("host", *slugs), *((fold.names(names), *cells) for cells, names in rows.items())], width)


def pairs_line(pairs: Sequence[PairReported]) -> list[str]:
    """Sum up who reaches whom: `36 of 36 connections are open, in at most 0.4 ms (gpu-01 to gpu-03)`."""
    timed = [(pair.tcp_ms or 0.0, pair) for pair in pairs if pair.tcp]
    if not pairs:
        return []
    line = f"{len(timed)} of {count(len(pairs), 'connection')} {'is' if len(timed) == 1 else 'are'} open"
    if timed:
        ms, slowest = max(timed, key=itemgetter(0))
        line += f", in at most {ms:.1f} ms ({slowest.source} to {slowest.target})"
    large = max((pair.large_ms for pair in pairs if pair.large_ms is not None), default=None)
    return [plain(line + (f"; 64 kB arrive in at most {large:.1f} ms" if large is not None else ""))]


def worst_last(checks: Sequence[CheckReported]) -> list[CheckReported]:
    """So that of several findings of one check the worst is kept."""
    order = [*Level]
    return sorted(checks, key=lambda check: order.index(check.level))


def _common(checks: list[CheckReported]) -> str:
    texts = {check.found for check in checks if check.level is Level.OK}
    only = texts.pop() if len(texts) == 1 else ""
    return only if 0 < len(only) <= _SHORT else "ok"


def _cell(check: CheckReported | None, common: str) -> str:
    if check is None:
        return "-"
    return {Level.OK: common, Level.NOTE: check.found, Level.WARN: "warn", Level.FAIL: "FAIL"}[check.level]
