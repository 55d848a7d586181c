"""The same over real sshd's: what only they bring along, and a choice of the other lies."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from orchestrator.rehearsal import Cluster
from tests.hostile import test_table as table
from tests.hostile.ground import Ground, on_the_ground
from tests.hostile.play import play, wrong
from tests.hostile.row import LOST, PROTOCOL, Row, Verb, when

_NOISE = r"b'\x1b]0;owned\x07\x1b[2J\xff\xe2\x80\xae error: x\n'"


def _rows() -> Iterator[Row]:
    endless = (
        "def on_and_on():\n    while True: os.write(2, b'x' * 65536)\n"
        "threading.Thread(target=on_and_on, daemon=True).start()"
    )
    yield Row("words on stderr without end", Verb.PREFLIGHT, when("hello", endless), 0, "")
    noisy = f"os.write(2, {_NOISE} * 1000)\ntext({_NOISE})\nheader = None"
    yield Row("noise in the place of a hello", Verb.PREFLIGHT, when("hello", noisy), 3, PROTOCOL)
    yield Row("gone with words", Verb.PREFLIGHT, when("hello", f"os.write(2, {_NOISE})\nleave()"), 3, "liar")
    byte_by_byte = (
        "for byte in frames.encode({**header, 'result': result}): write(bytes([byte]))\nheader = None"
    )
    yield Row("a byte at a time", Verb.STATUS, when("states", byte_by_byte), 0, "running")
    twice = '\'{"id": %d, "ok": true, "ok": false, "result": 1, "error": 2}\' % header["id"]'
    yield Row(
        "keys twice", Verb.STATUS, when("states", f"text(({twice}).encode())\nheader = None"), 0, PROTOCOL
    )
    yield Row("an answer twice", Verb.STACKS, when("stacks", "say({**header, 'result': result})"), 0, "")
    yield Row("gone in an answer", Verb.EXEC, when("exec", "leave()"), 3, LOST)


# Those that go another way over SSH: rsync, logs in mass, take-over by inventory.
_TOO = (
    "a_folder_for_a_shell",
    "an_incoming_folder_that_is_an_option",
    "a_line_of_10_MB",
)
ROWS = (*_rows(), *(row for row in table.ROWS if any(name in row.id for name in _TOO)))


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    with Cluster(2) as cluster:
        ways = {
            name: f'ssh = "{host.ssh}"\nssh_config = "{host.ssh_config}"\naddress = "{host.address}"'
            for name, host in zip(("good", "liar"), cluster.hosts, strict=True)
        }
        with on_the_ground(tmp_path_factory.mktemp("hostile"), ways) as made:
            yield made


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_a_lie_does_no_harm_over_ssh(ground: Ground, row: Row) -> None:
    found = wrong(ground, row, play(ground, row))
    assert not found, f"{row.lie}\n{found}"
