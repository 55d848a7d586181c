"""Whatever a node sends: at most one error, nothing changed or run on the controller, others unharmed."""

from collections.abc import Iterator

import pytest

from orchestrator.wire import Request
from tests.hostile import rows_stores, rows_takeover, rows_wire, rows_words
from tests.hostile.ground import Ground, on_the_ground
from tests.hostile.play import play, wrong
from tests.hostile.row import Row

ROWS = (*rows_wire.rows(), *rows_words.rows(), *rows_stores.rows(), *rows_takeover.rows())

# Operations that no verb requests soon or waits for, or that are decoded like others:
# tests/local/test_lies.py, tests/sync and tests/fuzz.py cover some of these.
ELSEWHERE = (
    *("exec_end", "imports", "ping", "standby", "standby_keep", "store_drop"),
    *("join_queue", "store_put", "store_seal", "type", "unfollow", "unlisten", "vitals_ask", "work_look"),
)


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    with on_the_ground(tmp_path_factory.mktemp("hostile")) as made:
        yield made


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_a_lie_does_no_harm(ground: Ground, row: Row) -> None:
    found = wrong(ground, row, play(ground, row))
    assert not found, f"{row.lie}\n{found}"


def test_the_table_covers_every_operation_without_duplicates() -> None:
    """Each operation that a verb requests has a lie, and no row appears twice."""
    assert len({row.id for row in ROWS}) == len(ROWS) > 60
    lied = "\n".join(row.lie for row in ROWS)
    untouched = {request.OP for request in Request.__subclasses__() if f"op == {request.OP!r}" not in lied}
    assert untouched == set(ELSEWHERE)
