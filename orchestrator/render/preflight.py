"""Results of preflight: a table of hosts, a line about their pairs, and a block for each problem. Pure."""

from collections.abc import Sequence
from operator import itemgetter

from orchestrator.events import CheckReported, Level, PairReported
from orchestrator.render import fold
from orchestrator.render.errors import problems
from orchestrator.render.grid import table, wrapped
from orchestrator.text import count, plain

_SHORT = 14  # characters of a finding that fit into a table


def preflight_table(
    checks: Sequence[CheckReported],
    pairs: Sequence[PairReported],
    width: int | None = None,
    hosts: Sequence[str] | None = None,
) -> list[str]:
    """Return everything, the problems last, where users look first.

    A failed `login` is a row of the table but not a problem: its host has a separate error.
    """
    shown = [check for check in checks if check.check != "login" or check.level is not Level.FAIL]
    last = wrapped(problems(shown), width)
    parts = (host_table(checks, width, hosts), wrapped(pairs_line(pairs), width), last)
    lines: list[str] = []
    for part in parts:
        lines += ["", *part] if lines and part else part
    return lines


def host_table(
    checks: Sequence[CheckReported], width: int | None = None, hosts: Sequence[str] | None = None
) -> list[str]:
    """Return a row per host, a column per check; hosts with equal rows share one.

    A column shows the value (a version) if all hosts without a problem agree on it, otherwise `ok`.
    """
    slugs = list(dict.fromkeys(check.check for check in checks))
    worst = {
        (check.host, check.check): check
        for check in sorted(checks, key=lambda check: [*Level].index(check.level))  # the worst last
    }
    texts = {
        slug: {check.found for check in checks if (check.check, check.level) == (slug, Level.OK)}
        for slug in slugs
    }
    rows: dict[tuple[str, ...], list[str]] = {}
    checked = dict.fromkeys(check.host for check in checks)
    for host in [name for name in hosts if name in checked] if hosts is not None else checked:
        cells = tuple(_cell(worst.get((host, slug)), texts[slug]) for slug in slugs)
        rows.setdefault(cells, []).append(host)
    if not rows:
        return []
    return table(("host", *slugs), [(fold.names(names), *cells) for cells, names in rows.items()], width)


def pairs_line(pairs: Sequence[PairReported]) -> list[str]:
    """Summarize the connections: `36 of 36 connections are open, in at most 0.4 ms (gpu-01 to gpu-03)`."""
    timed = [(pair.tcp_ms or 0.0, pair) for pair in pairs if pair.tcp]
    if not pairs:
        return []
    line = f"{len(timed)} of {count(len(pairs), 'connection')} {'is' if len(timed) == 1 else 'are'} open"
    if timed:
        ms, slowest = max(timed, key=itemgetter(0))
        line += f", in at most {ms:.1f} ms ({slowest.source} to {slowest.target})"
    large = max((pair.large_ms for pair in pairs if pair.large_ms is not None), default=None)
    return [plain(line + (f"; 64 kB arrive in at most {large:.1f} ms" if large is not None else ""))]


def _cell(check: CheckReported | None, well: set[str]) -> str:
    """Return the cell of a check; `well` is the value shown where it passed."""
    if check is None:
        return "-"
    common = next(iter(well)) if len(well) == 1 else "ok"
    common = common if 0 < len(common) <= _SHORT else "ok"
    return {Level.OK: common, Level.WARN: "warn", Level.FAIL: "FAIL"}[check.level]
