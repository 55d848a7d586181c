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
    "": Size(17, 2_399, 11_895),
    "checks": Size(4, 1_030, 7_234),
    "cli": Size(35, 3_665, 23_909),
    "config": Size(7, 1_359, 9_472),
    "diagnosis": Size(7, 1_054, 7_594),
    "envs": Size(5, 599, 3_781),
    "export": Size(5, 691, 5_724),
    "fleet": Size(4, 839, 5_427),
    "frameworks": Size(5, 213, 991),
    "launching": Size(8, 794, 4_958),
    "node": Size(2, 58, 376),
    "node/base": Size(12, 1_299, 6_938),
    "node/disk": Size(6, 458, 2_904),
    "node/hook": Size(8, 678, 4_088),
    "node/look": Size(9, 1_104, 7_478),
    "node/serve": Size(8, 825, 5_085),
    "node/stock": Size(10, 1_622, 11_876),
    "node/task": Size(13, 2_526, 16_840),
    "node/tidy": Size(3, 427, 3_036),
    "phases": Size(28, 5_202, 39_825),
    "planning": Size(7, 971, 6_251),
    "program": Size(8, 921, 6_729),
    "rehearsal": Size(4, 426, 2_497),
    "render": Size(19, 2_548, 19_778),
    "run": Size(11, 1_433, 10_320),
    "ssh": Size(9, 1_690, 11_401),
    "store": Size(12, 1_400, 8_495),
    "sync": Size(13, 2_407, 16_083),
    "tests": Size(349, 39_988, 295_837),
    "wire": Size(13, 1_557, 6_991),
    "worker_entry": Size(23, 2_000, 12_683),
}
TOTAL = Size(292, 40_195, 267_976)
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
