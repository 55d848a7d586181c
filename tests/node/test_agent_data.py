"""Data that agents receive: in pieces, from a controller and from each other, whole or not at all."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import socket
import ssl
import struct
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from orchestrator.node.stock import peers
from orchestrator.sync import one_time_key
from tests.node.agent_client import OLD_PYTHON, AgentClient, AgentError
from tests.node.harness import names_in, until
from tests.node.lab import Lab

SIZE = 1000  # bytes of a piece
KEY = one_time_key()


@dataclass(frozen=True)
class Data:
    """Files laid end to end, as a controller describes them."""

    files: Mapping[str, bytes]

    @property
    def text(self) -> bytes:
        return b"".join(self.files.values())

    @property
    def pieces(self) -> list[bytes]:
        return [self.text[at : at + SIZE] for at in range(0, len(self.text), SIZE)]

    @property
    def digest(self) -> str:
        return hashlib.sha256(repr(self.files).encode()).hexdigest()[:32]

    @property
    def manifest(self) -> list[dict[str, Any]]:
        return [
            {"path": path, "mode": 0o644, "size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
            for path, data in self.files.items()
        ]


NOISE = random.Random(5).randbytes(10_000)
DATA = Data(
    {"files/a": NOISE[:4500], "files/empty": b"", "files/sub/b": NOISE[4500:4600], "tfds/c": NOISE[4600:]}
)


class Receiver:
    """An agent that is sent data."""

    def __init__(self, lab: Lab, name: str, data: Data = DATA, **options: Any) -> None:
        self.lab = lab
        self.data = data
        self.workdir = lab.folder / name
        self.state = lab.folder / f"state of {name}"
        self.agent: AgentClient = lab.agent(state=self.state, **options)
        self.plan = 0

    @property
    def folder(self) -> Path:
        return self.workdir / "data" / self.data.digest

    @property
    def whole(self) -> bool:
        """Whether each file is there, under its name, with its content."""
        return all((self.folder / path).read_bytes() == data for path, data in self.data.files.items())

    def look(self, *, thorough: bool = False) -> dict[str, Any]:
        asked: Any = {"workdir": str(self.workdir), "digest": self.data.digest, "thorough": thorough}
        return self.agent.request("data_look", **asked)

    def begin(self, *, key: str = KEY, serve: bool = False, manifest: Any = None) -> dict[str, Any]:
        fields: Any = {
            "workdir": str(self.workdir),
            "run": "r",
            "size": SIZE,
            "pieces": len(self.data.pieces),
        }
        asked: Any = {
            "digest": self.data.digest,
            "manifest": manifest or self.data.manifest,
            "ports": [],
            "serve": serve,
        }
        digests = b"".join(hashlib.sha256(piece).digest() for piece in self.data.pieces)
        return self.agent.request("data_begin", digests, key=key, **fields, **asked)

    def give(self, pieces: Sequence[int]) -> None:
        for piece in pieces:
            payload = self.data.pieces[piece]
            self.agent.request("data_piece", payload, digest=self.data.digest, piece=piece)
        wanted = set(pieces)
        until(lambda: wanted <= self.have())

    def take(self, host: str, port: int, pieces: Sequence[int]) -> list[dict[str, str]]:
        """Have it take pieces from a peer until that is over; what was wrong."""
        self.plan += 1
        source = {"host": host, "address": "127.0.0.1", "port": port, "pieces": list(pieces)}
        self.agent.request("data_peers", digest=self.data.digest, plan=self.plan, sources=[source])
        trouble: list[dict[str, str]] = []

        def over() -> bool:
            held = self.held()
            trouble.extend(held["trouble"])
            return bool(held["idle"] == self.plan)

        until(over)
        return trouble

    def held(self) -> dict[str, Any]:
        return self.agent.request("data_have", digest=self.data.digest)

    def have(self) -> set[int]:
        return pieces_of(self.held()["bits"])

    def seal(self) -> dict[str, Any]:
        return self.agent.request("data_seal", digest=self.data.digest)


def pieces_of(bits: str) -> set[int]:
    number = int(bits, 16)
    return {place for place in range(number.bit_length()) if number >> place & 1}


ALL = range(len(DATA.pieces))


def filled(lab: Lab, name: str, data: Data = DATA) -> Receiver:
    one = Receiver(lab, name, data)
    one.begin()
    one.give(range(len(data.pieces)))
    one.seal()
    return one


def test_pieces_in_any_order_become_files_once(lab: Lab) -> None:
    one = Receiver(lab, "a")
    assert one.look()["state"] == "absent"
    begun = one.begin()
    assert (begun["present"], pieces_of(begun["bits"])) == (False, set())
    one.give(list(reversed(ALL)))
    assert not one.folder.exists(), "it has its name before it is sealed"
    assert one.seal() == {"present": True, "path": str(one.folder)}
    assert one.whole
    assert {path.stat().st_mode & 0o777 for path in one.folder.rglob("*") if path.is_file()} == {0o644}
    assert one.look()["state"] == "whole"
    assert one.begin()["present"]
    assert names_in(one.workdir / "data") == [f".lock-{DATA.digest}", DATA.digest]


def test_what_is_not_complete_gets_no_name(lab: Lab) -> None:
    one = Receiver(lab, "a")
    one.begin()
    one.give([0, 1])
    with pytest.raises(AgentError, match="8 of 10 pieces are missing"):
        one.seal()
    assert one.look()["state"] == "absent"


def test_a_false_piece_ends_the_transfer_and_is_never_written(lab: Lab) -> None:
    one = Receiver(lab, "a")
    one.begin()
    one.agent.request("data_piece", bytes(SIZE), digest=DATA.digest, piece=3)
    with pytest.raises(AgentError, match="piece 3 is not what it should be"):
        one.seal()
    assert pieces_of(one.begin()["bits"]) == set()


def test_a_killed_transfer_goes_on_with_what_had_come(lab: Lab) -> None:
    victim = Receiver(lab, "a")
    victim.begin()
    victim.give([0, 2, 5])
    os.kill(victim.agent.pid, signal.SIGKILL)
    victim.agent.process.wait()
    heir = Receiver(lab, "a")
    assert pieces_of(heir.begin()["bits"]) == {0, 2, 5}
    heir.give([piece for piece in ALL if piece not in {0, 2, 5}])
    heir.seal()
    assert heir.whole


def test_what_a_killed_transfer_left_is_read_before_it_is_believed(lab: Lab) -> None:
    victim = Receiver(lab, "a")
    victim.begin()
    victim.give([0, 2])
    victim.agent.close()
    with (victim.workdir / "data" / f".incoming-{DATA.digest}" / "files" / "a").open("r+b") as file:
        file.write(b"x")
    heir = Receiver(lab, "a")
    assert pieces_of(heir.begin()["bits"]) == {2}


def test_a_damaged_file_is_found_and_only_its_pieces_come_again(lab: Lab) -> None:
    one = filled(lab, "a")
    path = one.folder / "files" / "sub" / "b"
    before = path.stat()
    path.write_bytes(b"?" * 100)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))  # the kernel's clock may not have ticked
    assert (one.look()["state"], one.look()["state"]) == ("damaged", "unsure")
    assert pieces_of(one.begin()["bits"]) == set(ALL) - {4}
    one.give([4])
    one.seal()
    assert one.whole
    assert one.look()["state"] == "whole"


def test_a_change_that_keeps_size_and_time_is_found_by_reading_all(lab: Lab) -> None:
    one = filled(lab, "a")
    path = one.folder / "files" / "a"
    before = path.stat()
    with path.open("r+b") as file:
        file.write(b"?")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert one.look()["state"] == "whole"
    looked = one.look(thorough=True)
    assert (looked["state"], looked["wrong"]) == ("damaged", ["files/a"])
    assert pieces_of(one.begin()["bits"]) == {5, 6, 7, 8, 9}


def test_another_machine_on_the_same_disk_finds_it_and_verifies_it_once(lab: Lab) -> None:
    filled(lab, "a")
    other = Receiver(lab, "a")
    other.agent = lab.agent(state=lab.folder / "state of another machine")
    assert other.look()["state"] == "unsure"
    assert other.begin()["present"]
    assert other.look()["state"] == "whole"


def test_files_of_other_data_are_linked_and_never_written_to(lab: Lab) -> None:
    old = filled(lab, "a")
    new = Receiver(lab, "a", Data({**DATA.files, "files/sub/b": b"new" * 100}))
    begun = pieces_of(new.begin()["bits"])
    assert begun == set(range(len(new.data.pieces))) - {
        4
    }  # in that one is the end of one file and the new one
    new.give([piece for piece in range(len(new.data.pieces)) if piece not in begun])
    new.seal()
    assert (new.folder / "files" / "a").samefile(old.folder / "files" / "a")
    assert (new.whole, old.whole) == (True, True)


def test_pieces_go_from_peer_to_peer_as_they_come(lab: Lab) -> None:
    one, two = Receiver(lab, "a"), Receiver(lab, "b")
    port = one.begin()["port"]
    two.begin()
    two.plan = 1
    source = {"host": "one", "address": "127.0.0.1", "port": port, "pieces": list(ALL)}
    two.agent.request("data_peers", digest=DATA.digest, plan=1, sources=[source])
    one.give([0, 1])
    until(lambda: two.have() == {0, 1})
    one.give(ALL[2:])
    until(lambda: two.held()["idle"] == 1)
    two.seal()
    assert two.whole


def test_one_that_has_all_serves_it(lab: Lab) -> None:
    one, two = filled(lab, "a"), Receiver(lab, "b")
    begun = one.begin(serve=True)
    assert pieces_of(begun["bits"]) == set(ALL)
    two.begin()
    assert two.take("one", begun["port"], ALL) == []
    two.seal()
    assert two.whole
    one.agent.request("data_drop", digest=DATA.digest)
    until(lambda: not answers(begun["port"]))
    assert one.look()["state"] == "whole"


def answers(port: int) -> bool:
    with socket.socket() as asked:
        return asked.connect_ex(("127.0.0.1", port)) == 0


def test_a_peer_that_is_gone_is_named_and_another_one_serves(lab: Lab) -> None:
    one, two, three = filled(lab, "a"), filled(lab, "b"), Receiver(lab, "c")
    ports = [one.begin(serve=True)["port"], two.begin(serve=True)["port"]]
    three.begin()
    os.kill(one.agent.pid, signal.SIGKILL)
    one.agent.process.wait()
    until(lambda: not answers(ports[0]))
    (trouble,) = three.take("one", ports[0], ALL)
    assert trouble["host"] == "one"
    assert three.take("two", ports[1], ALL) == []
    assert three.have() == set(ALL)


@pytest.mark.parametrize("key", [one_time_key(), None], ids=["another key", "no key"])
def test_a_stranger_is_given_nothing(lab: Lab, key: str | None) -> None:
    port = filled(lab, "a").begin(serve=True)["port"]
    if key is None:
        outside = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        outside.check_hostname, outside.verify_mode = False, ssl.CERT_NONE
    else:
        outside = peers.context(key, server=False)
        outside.verify_mode = ssl.CERT_NONE
    with socket.create_connection(("127.0.0.1", port), 5) as plain:
        assert taken(plain, outside) == b""


def taken(plain: socket.socket, outside: ssl.SSLContext) -> bytes:
    """What is given for the first piece."""
    try:
        with outside.wrap_socket(plain) as stream:
            stream.sendall(struct.pack(">Q", 0))
            return stream.recv(100)
    except OSError:
        return b""


@contextmanager
def false_peer(answer: bytes, key: str = KEY) -> Iterator[int]:
    """Somebody who has the key, and sends what he likes."""
    context = peers.context(key, server=True)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            try:
                plain, _ = listener.accept()
                with plain, context.wrap_socket(plain, server_side=True) as stream:
                    stream.recv(8)
                    stream.sendall(answer)
                    stream.recv(8)
            except OSError:
                pass

        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1]
        thread.join(20)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (struct.pack(">Q", SIZE) + bytes(SIZE), "piece 0 is not what it should be"),
        (struct.pack(">Q", 1 << 40), "a piece of 1099511627776 bytes was sent"),
        (struct.pack(">Q", 5) + b"short", "piece 0 is not what it should be"),
        (b"", "closed"),
    ],
    ids=["other bytes", "a terabyte", "too few", "nothing"],
)
def test_a_peer_that_lies_gets_nothing_into_the_data(lab: Lab, answer: bytes, why: str) -> None:
    one = Receiver(lab, "a")
    one.begin()
    with false_peer(answer) as port:
        (trouble,) = one.take("liar", port, [0])
    assert why in trouble["why"] or not answer
    assert one.have() == set()


def test_a_peer_with_another_key_is_not_believed(lab: Lab) -> None:
    one = Receiver(lab, "a")
    one.begin()
    with false_peer(struct.pack(">Q", SIZE) + DATA.pieces[0], one_time_key()) as port:
        (trouble,) = one.take("liar", port, [0])
    assert "certificate" in trouble["why"].lower()
    assert one.have() == set()


def test_without_a_key_nobody_is_served(lab: Lab) -> None:
    assert Receiver(lab, "a").begin(key="")["port"] == 0


@pytest.mark.parametrize("path", ["../x", "/tmp/x", "a/../../x", "a//b", ".", ""])
def test_a_name_that_leads_out_is_refused(lab: Lab, path: str) -> None:
    one = Receiver(lab, "a")
    manifest = [{**DATA.manifest[0], "path": path}, *DATA.manifest[1:]]
    with pytest.raises(AgentError):
        one.begin(manifest=manifest)
    assert names_in(lab.folder / "a" / "data") in (
        [f".incoming-{DATA.digest}", f".lock-{DATA.digest}"],
        [f".incoming-{DATA.digest}", f".incoming-{DATA.digest}.pieces", f".lock-{DATA.digest}"],
    )


def test_a_link_in_the_way_is_not_followed(lab: Lab) -> None:
    one = Receiver(lab, "a")
    outside = lab.folder / "outside"
    outside.mkdir()
    incoming = one.workdir / "data" / f".incoming-{DATA.digest}"
    incoming.mkdir(parents=True)
    (incoming / "files").symlink_to(outside)
    with pytest.raises(AgentError):
        one.begin()
    assert names_in(outside) == []


def test_a_disk_without_room_says_so_before_anything_comes(lab: Lab) -> None:
    one = Receiver(lab, "a")
    manifest = [{**entry, "size": 1 << 50} for entry in DATA.manifest]
    with pytest.raises(AgentError, match="has no room") as caught:
        one.begin(manifest=manifest)
    assert "orchestrate clean" in caught.value.hint
    assert not list((one.workdir / "data").glob(".incoming-*"))


def test_two_that_send_the_same_wait_for_each_other(lab: Lab) -> None:
    one, two = Receiver(lab, "a"), Receiver(lab, "a")
    one.begin()
    fields = {"workdir": str(two.workdir), "run": "r", "size": SIZE, "pieces": len(DATA.pieces), "key": KEY}
    digests = b"".join(hashlib.sha256(piece).digest() for piece in DATA.pieces)
    waiting = two.agent.send(
        "data_begin", digests, digest=DATA.digest, manifest=DATA.manifest, ports=[], serve=False, **fields
    )
    one.give(ALL)
    assert waiting not in two.agent.replies
    one.seal()
    assert two.agent.reply(waiting)[0]["present"]


def test_a_peer_that_hangs_up_does_no_harm_to_who_serves_it(lab: Lab) -> None:
    one = Receiver(lab, "a")
    port = one.begin()["port"]
    for _ in range(5):  # it asks, and is gone before the answer
        with socket.create_connection(("127.0.0.1", port), 5) as plain:
            stream = peers.context(KEY, server=False).wrap_socket(plain)
            stream.sendall(struct.pack(">Q", 0))
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            stream.close()
    one.give(ALL)
    one.seal()
    assert one.whole


@pytest.mark.skipif(OLD_PYTHON is None, reason="there is no Python 3.8 on this machine")
def test_an_old_python_takes_and_gives(lab: Lab) -> None:
    one, two, three = Receiver(lab, "a"), Receiver(lab, "b", python=OLD_PYTHON), Receiver(lab, "c")
    port = one.begin()["port"]
    one.give(ALL)
    given = two.begin()["port"]
    assert two.take("one", port, ALL) == []
    three.begin()
    assert three.take("two", given, ALL) == []
    three.seal()
    two.seal()
    assert (two.whole, three.whole) == (True, True)
