"""The size of the house: a table that only falls.

`python -m tests.unit.test_budget` prints the figures of today; who makes a room smaller lowers its row, and
who raises one gives the reason in the commit.
"""

from __future__ import annotations

import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
UNCOUNTED = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}


class Size(NamedTuple):
    files: int
    lines: int
    tokens: int


# Per room of orchestrator/ (the modules beside the rooms together are ""), and of each other part as a whole.
BUDGET = {
    "": Size(16, 2_486, 12_467),
    "checks": Size(5, 1_083, 8_130),
    "cli": Size(31, 2_956, 20_313),
    "config": Size(6, 989, 6_962),
    "diagnosis": Size(7, 895, 6_259),
    "envs": Size(4, 418, 2_739),
    "export": Size(5, 617, 5_258),
    "fleet": Size(4, 737, 4_902),
    "launching": Size(7, 718, 4_991),
    "node": Size(1, 1, 1),
    "node/base": Size(9, 1_021, 5_589),
    "node/disk": Size(4, 362, 2_454),
    "node/hook": Size(3, 498, 3_147),
    "node/look": Size(5, 888, 6_489),
    "node/serve": Size(7, 832, 5_481),
    "node/stock": Size(11, 1_643, 12_338),
    "node/task": Size(9, 1_898, 12_849),
    "phases": Size(21, 4_137, 32_856),
    "planning": Size(6, 784, 5_481),
    "program": Size(6, 781, 5_889),
    "rehearsal": Size(3, 372, 2_147),
    "render": Size(16, 2_075, 16_171),
    "report": Size(5, 568, 5_297),
    "run": Size(9, 1_238, 9_099),
    "ssh": Size(7, 1_436, 9_886),
    "store": Size(9, 1_258, 7_932),
    "sync": Size(11, 2_017, 13_850),
    "tests": Size(281, 29_460, 223_670),
    "wire": Size(5, 1_291, 5_320),
    "worker_entry": Size(22, 1_965, 12_479),
}
TOTAL = Size(232, 33_999, 234_297)
# Modules in one folder.
CROWDED: dict[str, int] = {}
MODULES = 25


def room_of(path: Path) -> str:
    parts = path.relative_to(ROOT).parts
    if parts[0] != "orchestrator":
        return parts[0]
    return "" if len(parts) == 2 else "/".join(parts[1 : 3 if parts[1] == "node" and len(parts) > 3 else 2])


def sources() -> Iterator[Path]:
    for part in ("orchestrator", "worker_entry", "tests"):
        yield from sorted((ROOT / part).rglob("*.py"))


def tokens_of(path: Path) -> int:
    with path.open("rb") as file:
        return sum(token.type not in UNCOUNTED for token in tokenize.tokenize(file.readline))


def measured() -> dict[str, Size]:
    files: Counter[str] = Counter()
    lines: Counter[str] = Counter()
    tokens: Counter[str] = Counter()
    for path in sources():
        room = room_of(path)
        files[room] += 1
        lines[room] += path.read_bytes().count(b"\n")
        tokens[room] += tokens_of(path)
    return {room: Size(files[room], lines[room], tokens[room]) for room in sorted(files)}


def total(sizes: dict[str, Size]) -> Size:
    house = [size for room, size in sizes.items() if room not in {"tests", "worker_entry"}]
    return Size(*(sum(column) for column in zip(*house, strict=True)))


@pytest.fixture(scope="module")
def sizes() -> dict[str, Size]:
    return measured()


def test_no_room_is_larger_than_its_row(sizes: dict[str, Size]) -> None:
    above = {
        room: (size, BUDGET.get(room, "no row"))
        for room, size in sizes.items()
        if room not in BUDGET or any(now > most for now, most in zip(size, BUDGET[room], strict=True))
    }
    assert not above


def test_the_table_has_no_room_that_is_gone(sizes: dict[str, Size]) -> None:
    assert set(BUDGET) <= set(sizes)


def test_the_whole_is_within_its_bounds(sizes: dict[str, Size]) -> None:
    assert all(now <= most for now, most in zip(total(sizes), TOTAL, strict=True)), total(sizes)


def test_no_folder_is_crowded() -> None:
    modules = Counter(str(path.parent.relative_to(ROOT)) for path in (ROOT / "orchestrator").rglob("*.py"))
    above = {folder: count for folder, count in modules.items() if count > CROWDED.get(folder, MODULES)}
    assert not above


def table() -> str:
    """Return the rows of BUDGET, and TOTAL, as they are measured."""
    sizes = measured()
    rows = {**sizes, "total": total(sizes)}
    return "\n".join(f'    "{room}": Size({n.files}, {n.lines:_}, {n.tokens:_}),' for room, n in rows.items())


if __name__ == "__main__":
    print(table())
