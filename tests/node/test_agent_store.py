"""Folders that agents receive in pieces, from a controller and from each other; and work folders."""

import hashlib
import os
import random
import re
import signal
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from orchestrator.node.stock import peers
from orchestrator.node.stock.manifest import BLOB, Manifest, blobs_of
from orchestrator.sync.conversation import one_time_key
from tests.node.agent_client import AgentClient, AgentError
from tests.node.harness import link, names_in, until
from tests.node.lab import Lab

DIGEST = "0123456789abcdef0123456789abcdef"
KEY = one_time_key()
NASTY = [
    "plain.py",
    "sub folder/with space.py",
    "quo'te\"s $(x) `y`.txt",
    "new\nline",
    "-rf",
    "é/ü.txt",
    "bad\udcff\udcfebytes",
    ".hidden/.file",
    "a" * 200,
    "deep/" * 40 + "file",
]
NOISE = random.Random(5)
DATA = {f"files/{name}": NOISE.randbytes(20_000) for name in "abcdefghij"} | {"empty": b"", "tfds/x": b"x"}

Files = dict[str, bytes]


def manifest_of(files: Files, links: dict[str, str] | None = None, executable: str = "") -> Manifest:
    rows: list[list[Any]] = [
        [
            name,
            0o755 if name == executable else 0o644,
            len(data),
            "".join(hashlib.sha256(data[at : at + BLOB]).hexdigest() for at in blobs_of(len(data))),
        ]
        for name, data in files.items()
    ]
    rows += [[name, target] for name, target in (links or {}).items()]
    return Manifest(sorted(rows, key=lambda row: str(row[0])))


class Receiver:
    """An agent that receives a folder."""

    def __init__(self, lab: Lab, name: str, files: Files = DATA, **options: Any) -> None:
        self.files = files
        self.manifest = manifest_of(files, options.pop("links", None), options.pop("executable", ""))
        self.path = lab.folder / name / options.pop("room", "data") / options.pop("digest", DIGEST)
        self.mutable = options.pop("mutable", False)
        state = options.pop("state", lab.folder / f"state of {name}")
        self.agent: AgentClient = options.pop("agent", None) or lab.agent(state=state, **options)

    @property
    def whole(self) -> bool:
        return all((self.path / path).read_bytes() == data for path, data in self.files.items())

    @property
    def every(self) -> range:
        return range(len(self.manifest.pieces))

    def look(self) -> dict[str, Any]:
        return self.agent.request("store_look", path=str(self.path))

    def fields(self, *, serve: bool = False) -> dict[str, Any]:
        place = {"path": str(self.path), "mutable": self.mutable, "pieces": len(self.every)}
        return {**place, "run": "r", "ports": [], "serve": serve, "key": KEY}

    def begin(self, *, serve: bool = False) -> dict[str, Any]:
        return self.agent.request("store_begin", self.manifest.encode(), **self.fields(serve=serve))

    def content(self, piece: int) -> bytes:
        names = [file.path for file in self.manifest.files]
        blobs = self.manifest.pieces[piece]
        return b"".join(self.files[names[blob.file]][blob.at : blob.at + blob.size] for blob in blobs)

    def put(self, pieces: Sequence[int]) -> None:
        payload = b"".join(map(self.content, pieces))
        self.agent.request("store_put", payload, path=str(self.path), pieces=list(pieces))

    def give(self, pieces: Sequence[int]) -> None:
        self.put(pieces)
        until(lambda: set(pieces) <= self.have())

    def take(self, port: int, pieces: Sequence[int]) -> str:
        """Let it fetch pieces from a peer until that ends; return the error."""
        self.held(source={"host": "peer", "address": "127.0.0.1", "port": port, "pieces": list(pieces)})
        until(lambda: self.held()["idle"])
        return str(self.held()["trouble"])

    def held(self, **more: Any) -> dict[str, Any]:
        return self.agent.request("store_have", path=str(self.path), **more)

    def have(self) -> set[int]:
        return pieces_of(self.held()["bits"])

    def seal(self) -> dict[str, Any]:
        return self.agent.request("store_seal", path=str(self.path))


def pieces_of(bits: str) -> set[int]:
    number = int(bits, 16)
    return {place for place in range(number.bit_length()) if number >> place & 1}


def filled(lab: Lab, name: str, files: Files = DATA, **options: Any) -> Receiver:
    one = Receiver(lab, name, files, **options)
    if not one.begin()["present"]:
        one.put(one.every)
        one.seal()
    return one


def make_tree(
    lab: Lab, agent: AgentClient, files: Files, digest: str, links: dict[str, str] | None = None
) -> None:
    filled(lab, lab.workdir.name, files, agent=agent, digest=digest, room="trees", links=links)


def read_all(folder: Path) -> Files:
    files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_a_folder_arrives_unchanged_whatever_its_names(lab: Lab) -> None:
    files = {name: name.encode(errors="surrogateescape") * 7 for name in NASTY} | {"empty": b""}
    files["large"] = NOISE.randbytes(BLOB + 5)
    one = filled(lab, "a", files, links={"link": "/nowhere", "sub folder/up": ".."}, executable="-rf")
    assert read_all(one.path) == files
    assert (link(str(one.path / "link")), link(str(one.path / "sub folder/up"))) == ("/nowhere", "..")
    assert [(one.path / name).stat().st_mode & 0o777 for name in ("-rf", "plain.py")] == [0o755, 0o644]
    assert names_in(one.path.parent) == [DIGEST]
    assert one.begin()["present"]


def test_an_incomplete_transfer_gets_no_final_name_and_is_resumed(lab: Lab) -> None:
    one = Receiver(lab, "a")
    one.begin()
    one.give([0, 2])
    with pytest.raises(AgentError, match="9 of 11 pieces are missing"):
        one.seal()
    assert not one.path.exists()
    os.kill(one.agent.pid, signal.SIGKILL)
    one.agent.process.wait()
    heir = Receiver(lab, "a")
    assert pieces_of(heir.begin()["bits"]) == {0, 2}
    incoming = heir.path.with_name(f".incoming-{DIGEST}")
    heir.agent.request("store_drop", path=str(heir.path))
    (incoming / "files" / "a").unlink()  # it is verified before it is trusted
    third = Receiver(lab, "a")
    third.begin()
    third.put(third.every)
    third.seal()
    assert third.whole
    assert names_in(third.path.parent) == [DIGEST]


@pytest.mark.parametrize("spoil", ["mode", "folder", "owner"])
def test_files_writable_by_others_are_replaced(lab: Lab, spoil: str) -> None:
    one = filled(lab, "a", room="trees")
    file = one.path / "files" / "b"
    match spoil:
        case "mode":
            file.chmod(0o666)
        case "folder":
            file.parent.chmod(0o777)
        case _:
            if os.geteuid():
                pytest.skip("another owner needs root")
            os.chown(file, 65534, 65534)
    assert not one.begin()["present"]
    one.put(one.every)
    one.seal()
    assert one.whole
    assert one.begin()["present"]


def test_a_second_machine_on_the_same_disk_finds_the_folder_and_verifies_it_once(lab: Lab) -> None:
    filled(lab, "a")
    other = Receiver(lab, "a", state=lab.folder / "other state")
    assert other.look()["state"] == "unsure"
    assert other.begin()["present"]
    assert other.look()["state"] == "whole"


def test_files_of_other_folders_are_linked_and_never_modified(lab: Lab) -> None:
    one = filled(lab, "a")
    files = {**DATA, "files/b": NOISE.randbytes(20_000)}
    two = Receiver(lab, "a", files, agent=one.agent, digest="ff")
    begun = two.begin()
    assert begun["base"] == str(one.path)
    missing = set(two.every) - pieces_of(begun["bits"])
    assert len(missing) == 1
    two.put(sorted(missing))
    two.seal()
    assert (one.whole, two.whole) == (True, True)
    assert (one.path / "files" / "c").stat().st_ino == (two.path / "files" / "c").stat().st_ino
    for digest, cut in (("01", ""), ("02", "[]")):  # as after a power failure
        for note in (lab.folder / "state of a" / "stock" / "data").iterdir():
            note.write_text(cut)
        assert not Receiver(lab, "a", files, agent=one.agent, digest=digest).begin()["present"]


def test_a_folder_modified_by_tasks_is_replaced_as_a_whole(lab: Lab) -> None:
    one = filled(lab, "a", {"x": b"1", "y": b"2"}, mutable=True)
    (one.path / "more").write_text("of a task")
    two = filled(lab, "a", {"x": b"1", "y": b"3"}, mutable=True, agent=one.agent)
    assert read_all(two.path) == two.files
    (two.path / "more").write_text("again")
    filled(lab, "a", two.files, mutable=True, agent=one.agent)
    fields: dict[str, Any] = {"path": str(two.path), "remove": True}
    two.agent.request("store_drop", one.manifest.encode(), **fields)
    assert two.path.exists()  # it is a different file
    two.agent.request("store_drop", two.manifest.encode(), **fields)
    (kept,) = two.path.parent.iterdir()
    assert (kept.name, names_in(kept)) == (f".replaced-{DIGEST}", ["more", "x", "y"])


def test_many_hosts_can_fill_one_shared_folder_at_once(lab: Lab) -> None:
    one, *others = (Receiver(lab, "a", state=lab.folder / f"state {number}") for number in range(4))
    one.begin()
    asked = [two.agent.send("store_begin", two.manifest.encode(), **two.fields()) for two in others]
    one.put(one.every)
    one.seal()
    for two, request in zip(others, asked, strict=True):
        assert two.agent.reply(request)[0]["present"]
    assert names_in(one.path.parent) == [DIGEST]


def answers(port: int) -> bool:
    with socket.socket() as asked:
        return asked.connect_ex(("127.0.0.1", port)) == 0


def test_a_lost_peer_is_named_and_another_one_serves(lab: Lab) -> None:
    one, two, three = filled(lab, "a"), filled(lab, "b"), Receiver(lab, "c")
    ports = [one.begin(serve=True)["port"], two.begin(serve=True)["port"]]
    three.begin()
    os.kill(one.agent.pid, signal.SIGKILL)
    one.agent.process.wait()
    until(lambda: not answers(ports[0]))
    assert three.take(ports[0], range(11))
    assert three.take(ports[1], range(11)) == ""
    assert three.have() == set(range(11))


@pytest.mark.parametrize("key", [one_time_key(), None], ids=["another key", "no key"])
def test_a_stranger_receives_nothing(lab: Lab, key: str | None) -> None:
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
    """Return the reply to a request for the first piece."""
    try:
        with outside.wrap_socket(plain) as stream:
            stream.sendall(struct.pack(">Q", 0))
            return stream.recv(100)
    except OSError:
        return b""


@contextmanager
def false_peer(answer: bytes, key: str, more: Callable[[], bytes] = bytes) -> Iterator[int]:
    """Run a peer that sends arbitrary data."""
    context = peers.context(key, server=True)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            try:
                plain, _ = listener.accept()
                with plain, context.wrap_socket(plain, server_side=True) as stream:
                    stream.recv(8)
                    stream.sendall(answer)
                    stream.sendall(more())
                    stream.recv(8)
            except OSError:
                pass

        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1]
        thread.join(20)


@pytest.mark.parametrize(
    ("answer", "key", "why"),
    [
        (struct.pack(">Q", 20_000) + bytes(20_000), KEY, "piece 1 is not what it should be"),
        (struct.pack(">Q", 1 << 40), KEY, "a piece of 1099511627776 bytes was sent"),
        (struct.pack(">Q", 20_000) + DATA["files/b"], one_time_key(), "certificate"),
    ],
    ids=["other bytes", "a terabyte", "another key"],
)
def test_a_lying_peer_cannot_corrupt_the_data(lab: Lab, answer: bytes, key: str, why: str) -> None:
    one = Receiver(lab, "a")
    one.begin()
    with false_peer(answer, key) as port:
        trouble = one.take(port, [1])
    assert why in trouble.lower()
    assert one.have() == set()


def test_a_peer_does_not_send_a_truncated_file(lab: Lab) -> None:
    one, two = filled(lab, "a"), Receiver(lab, "b")
    port = one.begin(serve=True)["port"]
    os.truncate(one.path / "files" / "b", 100)
    two.begin()
    # The connection was reset because the rest of the request had not been read.
    assert re.search("closed the connection|reset by peer", two.take(port, [1]))
    assert two.take(port, [2]) == ""
    assert two.have() == {2}


def test_a_piece_is_forwarded_while_it_arrives(lab: Lab) -> None:
    one = Receiver(lab, "a")
    port = one.begin()["port"]
    passed_on = threading.Event()

    def rest() -> bytes:
        assert passed_on.wait(20)
        return struct.pack(">Q", 0) + struct.pack(">Q", 10_000) + DATA["files/b"][10_000:]

    first = struct.pack(">Q", 10_000) + DATA["files/b"][:10_000]
    with (
        false_peer(first, KEY, rest) as source,
        socket.create_connection(("127.0.0.1", port), 5) as plain,
        peers.context(KEY, server=False).wrap_socket(plain) as stream,
    ):
        stream.sendall(struct.pack(">2Q", 1, 1))
        one.held(source={"host": "peer", "address": "127.0.0.1", "port": source, "pieces": [1]})
        assert received(stream, 10_000) == DATA["files/b"][:10_000]
        passed_on.set()
        assert received(stream, 10_000) == DATA["files/b"][10_000:]
    until(lambda: one.have() == {1})


def received(stream: ssl.SSLSocket, size: int) -> bytes:
    """Receive the next bytes of a piece, in parts of any length."""
    data = b""
    with stream.makefile("rb") as file:
        while len(data) < size:
            data += file.read(struct.unpack(">Q", file.read(8))[0])
    return data


def test_the_work_folder_is_a_copy_of_the_tree(lab: Lab) -> None:
    def make(agent: AgentClient, digest: str) -> Path:
        return Path(agent.request("work_make", workdir=str(lab.workdir), run=lab.run, digest=digest)["work"])

    agent = lab.agent()
    files = {"a": b"1", "sub/x": b"x" * (BLOB + 1), "empty": b""}
    make_tree(lab, agent, files, "aa", {"link": "a"})
    (lab.workdir / "trees" / "aa" / "a").chmod(0o755)
    make_tree(lab, agent, {"a": b"2"}, "bb")
    work = make(agent, "aa")
    assert work == lab.workdir / "runs" / lab.run / "work"
    assert read_all(work) == files
    assert link(str(work / "link")) == "a"
    for name in files:
        copy, original = (work / name).stat(), (lab.workdir / "trees" / "aa" / name).stat()
        assert (copy.st_mode, copy.st_mtime_ns) == (original.st_mode, original.st_mtime_ns)
    (work / "a").write_bytes(b"changed by the run")
    assert (lab.workdir / "trees" / "aa" / "a").read_bytes() == b"1"
    (lab.workdir / "trees" / "bb" / "a").unlink()  # as a cleanup of old files does
    missing = agent.request("work_make", workdir=str(lab.workdir), run=lab.run, digest="bb")["missing"]
    assert missing == ["bb"]
    make_tree(lab, agent, {"a": b"2"}, "bb")
    assert make(lab.agent(), "bb") == work  # its files are not touched again
    assert (work / "a").read_bytes() == b"changed by the run"
