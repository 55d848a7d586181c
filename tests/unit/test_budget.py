"""The size of the code base per folder, with bounds that only go down.

`python -m tests.unit.test_budget` prints today's figures. Lower a row when its folder becomes smaller; give
the reason in the commit message when you raise one.
"""

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


# Per room of orchestrator/ ("" for the modules outside rooms), and for each other part as a whole.
BUDGET = {
    "": Size(24, 3_480, 18_441),
    "checks": Size(5, 1_175, 8_834),
    "cli": Size(28, 2_042, 14_455),
    "config": Size(6, 1_046, 7_572),
    "diagnosis": Size(7, 1_012, 7_418),
    "envs": Size(6, 772, 5_383),
    "export": Size(4, 357, 2_944),
    "fleet": Size(5, 1_000, 6_881),
    "node": Size(1, 1, 1),
    "node/base": Size(11, 1_192, 6_683),
    "node/disk": Size(4, 397, 2_751),
    "node/hook": Size(5, 1_336, 9_347),
    "node/look": Size(5, 812, 6_015),
    "node/serve": Size(8, 1_153, 8_142),
    "node/stock": Size(11, 1_726, 13_180),
    "node/task": Size(13, 3_140, 22_898),
    "phases": Size(20, 4_898, 40_401),
    "planning": Size(7, 966, 7_311),
    "program": Size(8, 1_557, 12_480),
    "rehearsal": Size(3, 373, 2_156),
    "render": Size(17, 2_194, 17_993),
    "report": Size(7, 924, 8_383),
    "run": Size(9, 1_499, 11_400),
    "ssh": Size(7, 1_574, 11_018),
    "store": Size(10, 1_449, 9_550),
    "sync": Size(11, 2_115, 14_814),
    "tests": Size(267, 37_251, 293_182),
    "verbs": Size(25, 2_603, 19_358),
    "wire": Size(5, 1_335, 5_567),
    "worker_entry": Size(22, 1_871, 12_029),
}
TOTAL = Size(272, 42_128, 301_376)
# Modules in one folder.
CROWDED: dict[str, int] = {"orchestrator/verbs": 26}  # a module for each verb
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
    """Count an f-string as one token, as Python 3.11 does; later versions split it."""
    counted, depth = 0, 0
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            name = tokenize.tok_name[token.type]
            counted += depth == 0 and token.type not in UNCOUNTED
            depth += (name == "FSTRING_START") - (name == "FSTRING_END")
    return counted


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


def test_the_table_has_no_obsolete_rows(sizes: dict[str, Size]) -> None:
    assert set(BUDGET) <= set(sizes)


def test_the_total_is_within_its_bounds(sizes: dict[str, Size]) -> None:
    assert all(now <= most for now, most in zip(total(sizes), TOTAL, strict=True)), total(sizes)


def test_no_folder_is_crowded() -> None:
    modules = Counter(str(path.parent.relative_to(ROOT)) for path in (ROOT / "orchestrator").rglob("*.py"))
    above = {folder: count for folder, count in modules.items() if count > CROWDED.get(folder, MODULES)}
    assert not above


def table() -> str:
    """Return the rows of BUDGET, and TOTAL, as measured."""
    sizes = measured()
    rows = {**sizes, "total": total(sizes)}
    return "\n".join(f'    "{room}": Size({n.files}, {n.lines:_}, {n.tokens:_}),' for room, n in rows.items())


if __name__ == "__main__":
    print(table())
