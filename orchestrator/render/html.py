"""What preflight found as a page of its own, with the pairs as a picture. Pure.

Every text is escaped: much of it comes from nodes. The page loads nothing and runs nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from html import escape

from orchestrator.events import CheckReported, Level, PairReported
from orchestrator.render.preflight import worst_last, worst_pairs
from orchestrator.text import plain, size

_STYLE = """
body { font: 14px/1.4 system-ui, sans-serif; margin: 2em; color: #222; background: #fff }
table { border-collapse: collapse; margin: 1em 0 }
td, th { border: 1px solid #ccc; padding: 2px 6px; text-align: left; font-weight: normal }
th { background: #f3f3f3 }
.ok { background: #d9f2dc } .warn { background: #ffe9b3 } .fail { background: #f8c1bd }
pre { white-space: pre-wrap }
rect.ok { fill: #57b368 } rect.warn { fill: #f0b429 } rect.fail { fill: #d64545 } rect.none { fill: #ddd }
text { font: 10px sans-serif }
"""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_CELL = 12  # pixels
_LEVELS = {Level.OK: "ok", Level.WARN: "warn", Level.FAIL: "fail"}


def page(
    hosts: Sequence[str],
    checks: Sequence[CheckReported],
    pairs: Sequence[PairReported],
    *,
    problems: Sequence[str],
    summary: str,
    now: float,
) -> str:
    """The whole document; `problems` are lines as on a terminal."""
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(now))
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8"><title>orchestrate preflight</title>',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        f"<style>{_STYLE}</style></head><body>",
        f"<h1>{_text(summary)}</h1><p>{_text(when)}</p>",
        f"<pre>{_text(chr(10).join(problems))}</pre>" if problems else "",
        *_table(hosts, checks),
        *_picture(hosts, pairs),
        "</body></html>",
    ]
    return "\n".join(part for part in parts if part) + "\n"


def _table(hosts: Sequence[str], checks: Sequence[CheckReported]) -> Iterator[str]:
    slugs = list(dict.fromkeys(check.check for check in checks))
    worst = {(check.host, check.check): check for check in worst_last(checks)}
    yield "<table><tr><th>host</th>" + "".join(f"<th>{_text(slug)}</th>" for slug in slugs) + "</tr>"
    for host in hosts:
        cells = (_cell(worst.get((host, slug))) for slug in slugs)
        yield f"<tr><th>{_text(host)}</th>{''.join(cells)}</tr>"
    yield "</table>"


def _cell(check: CheckReported | None) -> str:
    if check is None:
        return "<td></td>"
    more = escape(plain(f"{check.why} {check.hint}".strip()), quote=True)
    return f'<td class="{_LEVELS[check.level]}" title="{more}">{_text(check.found)}</td>'


def _picture(hosts: Sequence[str], pairs: Sequence[PairReported]) -> Iterator[str]:
    """A square for each pair: the row's host sees the column's."""
    if not pairs:
        return
    seen = worst_pairs(pairs)
    margin = 20 + 6 * max(map(len, hosts))
    width = margin + _CELL * len(hosts) + 10
    yield "<h2>who reaches whom</h2><p>the row's host sees the column's; point at a square</p>"
    yield f'<svg width="{width}" height="{width}" role="img" aria-label="matrix of pairs">'
    for number, host in enumerate(hosts):
        at = margin + _CELL * number + _CELL - 3
        yield f'<text x="{margin - 6}" y="{at}" text-anchor="end">{_text(host)}</text>'
        yield f'<text x="0" y="0" transform="translate({at} {margin - 6}) rotate(-90)">{_text(host)}</text>'
    yield from _squares(hosts, seen, margin)
    yield "</svg>"


def _squares(
    hosts: Sequence[str], seen: Mapping[tuple[str, str], PairReported], margin: int
) -> Iterator[str]:
    for row, source in enumerate(hosts):
        for column, target in enumerate(hosts):
            pair = seen.get((source, target))
            kind, said = _said(pair)
            x, y = margin + _CELL * column, margin + _CELL * row
            yield (
                f'<rect class="{kind}" x="{x}" y="{y}" width="{_CELL - 1}" height="{_CELL - 1}">'
                f"<title>{_text(f'{source} to {target}: {said}')}</title></rect>"
            )


def _said(pair: PairReported | None) -> tuple[str, str]:
    if pair is None:
        return "none", "not tried"
    if not pair.tcp:
        return "fail", pair.why or "no answer"
    if pair.large_out is False or pair.large_back is False:
        return "fail", "large packets vanish"
    ms = f"ok {pair.tcp_ms:.1f} ms" if pair.tcp_ms is not None else "ok"
    large = f", 64 kB in {pair.large_ms:.1f} ms" if pair.large_ms is not None else ""
    rate = f", {size(round(pair.bandwidth))}/s" if pair.bandwidth else ""
    return ("warn", f"{ms}, no ping") if pair.icmp is False else ("ok", ms + large + rate)


def _text(text: str) -> str:
    return escape("\n".join(map(plain, text.split("\n"))))
