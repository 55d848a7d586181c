"""What preflight found: a table of hosts, a matrix of pairs, and a block for each problem. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from orchestrator.events import CheckReported, Level, PairReported
from orchestrator.groups import grouped
from orchestrator.render import fold
from orchestrator.render.grid import grid
from orchestrator.render.problems import problems
from orchestrator.render.wrap import wrapped

_SHORT = 14  # characters of a finding that still fit into a table

Pairs: TypeAlias = Mapping[tuple[str, str], PairReported]


def preflight_table(
    checks: Sequence[CheckReported],
    pairs: Sequence[PairReported],
    width: int | None = None,
    hosts: Sequence[str] | None = None,
) -> list[str]:
    """Everything, the problems last: that is where one looks.

    A failed `login` is a row of the table and no problem: its host has an error of its own.
    """
    told = [check for check in checks if check.check != "login" or check.level is not Level.FAIL]
    last = wrapped([*notes(told), *problems(told)], width)
    parts = (host_table(checks, width, hosts), pair_matrix(pairs, width), last)
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
        f"note: {fold.names(hosts)}: {name}: {text} ({why})" for (name, text, why), hosts in texts.items()
    ]


def host_table(
    checks: Sequence[CheckReported], width: int | None = None, hosts: Sequence[str] | None = None
) -> list[str]:
    """A row per host, a column per check; hosts with equal rows share one.

    A column shows what was found where all hosts that are well agree on it (a version), else `ok`.
    """
    slugs = list(dict.fromkeys(check.check for check in checks))
    found = {(check.host, check.check): check for check in worst_last(checks)}
    common = {slug: _common([check for check in checks if check.check == slug]) for slug in slugs}
    rows: dict[tuple[str, ...], list[str]] = {}
    known = dict.fromkeys(check.host for check in checks)
    for host in [name for name in hosts if name in known] if hosts is not None else known:
        cells = tuple(_cell(found.get((host, slug)), common[slug]) for slug in slugs)
        rows.setdefault(cells, []).append(host)
    if not rows:
        return []
    return grid([("host", *slugs), *((fold.names(names), *cells) for cells, names in rows.items())], width)


def pair_matrix(pairs: Sequence[PairReported], width: int | None = None) -> list[str]:
    """Who reaches whom: rows see columns. Hosts that see and are seen alike share a row and a column."""
    seen = worst_pairs(pairs)
    hosts = list(dict.fromkeys(name for pair in pairs for name in (pair.source, pair.target)))
    places = {name: number for number, name in enumerate(hosts)}
    ways = {
        name: (
            [_status(seen, name, other) for other in hosts],
            [_status(seen, other, name) for other in hosts],
        )
        for name in hosts
    }
    groups: list[list[str]] = []
    for host in hosts:
        alike = next((group for group in groups if _alike(ways, places, host, group[0])), None)
        if alike is None:
            groups.append([host])
        else:
            alike.append(host)
    if not groups:
        return []
    names = [fold.names(group) for group in groups]
    rows = [
        [name, *(_between(seen, group, other) for other in groups)]
        for name, group in zip(names, groups, strict=True)
    ]
    return grid([["from \\ to", *names], *rows], width)


def worst_last(checks: Sequence[CheckReported]) -> list[CheckReported]:
    """So that of several findings of one check the worst is kept."""
    order = [*Level]
    return sorted(checks, key=lambda check: order.index(check.level))


def worst_pairs(pairs: Sequence[PairReported]) -> Pairs:
    """A host with several tasks has several ports: the one that is not reached is what matters."""
    return {(pair.source, pair.target): pair for pair in sorted(pairs, key=lambda pair: not pair.tcp)}


def _common(checks: list[CheckReported]) -> str:
    found = {check.found for check in checks if check.level is Level.OK}
    only = found.pop() if len(found) == 1 else ""
    return only if 0 < len(only) <= _SHORT else "ok"


def _cell(check: CheckReported | None, common: str) -> str:
    if check is None:
        return "-"
    return {Level.OK: common, Level.NOTE: check.found, Level.WARN: "warn", Level.FAIL: "FAIL"}[check.level]


def _status(seen: Pairs, source: str, target: str) -> str:
    pair = seen.get((source, target))
    if pair is None:
        return "-"
    if not pair.tcp:
        return pair.why or "no answer"
    return "no large packets" if pair.large is False else "ok"


def _alike(
    ways: Mapping[str, tuple[list[str], list[str]]], places: Mapping[str, int], one: str, other: str
) -> bool:
    """Whether two hosts see all the others alike, and are seen alike, each other and themselves included."""
    here, there = places[one], places[other]
    for mine, theirs in zip(ways[one], ways[other], strict=True):
        swapped = theirs.copy()
        swapped[here], swapped[there] = theirs[there], theirs[here]
        if mine != swapped:
            return False
    return True


def _between(seen: Pairs, sources: list[str], targets: list[str]) -> str:
    """What one group sees of another: of itself, first the others in it and then each host of itself."""
    others = [(a, b) for a in sources for b in targets if a != b]
    selves = [(a, a) for a in sources if a in targets]
    said = _timed(seen, others)
    own = _timed(seen, selves)
    if not others:
        return own
    same = not selves or _status(seen, *others[0]) == _status(seen, *selves[0])
    return said if same else f"{said}; itself {own}"


def _timed(seen: Pairs, places: list[tuple[str, str]]) -> str:
    """The status, and the longest time a connection took."""
    if not places:
        return ""
    times = [
        pair.tcp_ms for place in places if (pair := seen.get(place)) and pair.tcp and pair.tcp_ms is not None
    ]
    return _status(seen, *places[0]) + (f" {max(times):.1f} ms" if times else "")
