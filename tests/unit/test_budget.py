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
    "": Size(23, 3_491, 19_789),
    "checks": Size(5, 1_154, 8_656),
    "cli": Size(30, 2_232, 14_707),
    "config": Size(6, 1_027, 7_332),
    "diagnosis": Size(7, 993, 7_155),
    "envs": Size(8, 792, 5_458),
    "export": Size(4, 379, 2_991),
    "fleet": Size(4, 789, 5_390),
    "node": Size(1, 1, 1),
    "node/base": Size(10, 1_066, 5_942),
    "node/disk": Size(4, 362, 2_454),
    "node/hook": Size(3, 742, 4_976),
    "node/look": Size(5, 851, 6_243),
    "node/serve": Size(7, 840, 5_503),
    "node/stock": Size(11, 1_658, 12_479),
    "node/task": Size(10, 2_149, 15_088),
    "phases": Size(22, 4_696, 37_945),
    "planning": Size(6, 829, 6_013),
    "program": Size(7, 1_008, 7_910),
    "rehearsal": Size(3, 373, 2_155),
    "render": Size(17, 2_218, 17_777),
    "report": Size(5, 629, 5_687),
    "run": Size(11, 1_508, 11_263),
    "ssh": Size(7, 1_461, 10_091),
    "store": Size(11, 1_523, 9_994),
    "sync": Size(11, 2_068, 14_166),
    "tests": Size(309, 35_157, 266_851),
    "verbs": Size(25, 2_283, 16_270),
    "wire": Size(5, 1_305, 5_385),
    "worker_entry": Size(22, 1_968, 12_515),
}
TOTAL = Size(268, 38_427, 268_820)
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
