"""Folders that agents receive in pieces, from a controller and from each other; and work folders."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import socket
import ssl
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from orchestrator.node.look import share
from orchestrator.node.stock import peers
from orchestrator.node.stock.manifest import BLOB, Manifest, blobs_of
from orchestrator.sync import one_time_key
from tests.node.agent_client import OLD_PYTHON, AgentClient, AgentError
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
    """An agent that is sent a folder."""

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

    def look(self, *, thorough: bool = False) -> dict[str, Any]:
        return self.agent.request("store_look", path=str(self.path), thorough=thorough)

    def fields(self, **more: Any) -> dict[str, Any]:
        pieces = len(self.manifest.pieces)
        fields = {
            "mutable": self.mutable,
            "pieces": pieces,
            "run": "r",
            "ports": [],
            "serve": False,
            "key": KEY,
        }
        return {"path": str(self.path), **fields, **more}

    def begin(self, **more: Any) -> dict[str, Any]:
        return self.agent.request("store_begin", self.manifest.encode(), **self.fields(**more))

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
        """Have it take pieces from a peer until that is over; what was wrong."""
        self.follow(port, pieces)
        until(lambda: self.held()["idle"])
        return str(self.held()["trouble"])

    def follow(self, port: int, pieces: Sequence[int]) -> None:
        self.held(source={"host": "peer", "address": "127.0.0.1", "port": port, "pieces": list(pieces)})

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


def tree(lab: Lab, digest: str = DIGEST) -> Path:
    return lab.workdir / "trees" / digest


def make(lab: Lab, agent: AgentClient, digest: str) -> Path:
    return Path(agent.request("work_make", workdir=str(lab.workdir), run=lab.run, digest=digest)["work"])


def read_all(folder: Path) -> Files:
    files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_a_folder_arrives_byte_by_byte_whatever_its_names(lab: Lab) -> None:
    files = {name: name.encode(errors="surrogateescape") * 7 for name in NASTY} | {"empty": b""}
    files["large"] = NOISE.randbytes(BLOB + 5)
    one = filled(lab, "a", files, links={"link": "/nowhere", "sub folder/up": ".."}, executable="-rf")
    assert read_all(one.path) == files
    assert (link(str(one.path / "link")), link(str(one.path / "sub folder/up"))) == ("/nowhere", "..")
    assert [(one.path / name).stat().st_mode & 0o777 for name in ("-rf", "plain.py")] == [0o755, 0o644]
    assert names_in(one.path.parent) == [DIGEST]
    assert one.begin()["present"]


def test_what_is_not_complete_gets_no_name_and_is_gone_on_with(lab: Lab) -> None:
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
    (incoming / "files" / "a").unlink()  # it is read before it is believed
    third = Receiver(lab, "a")
    third.begin()
    third.put(third.every)
    third.seal()
    assert third.whole
    assert names_in(third.path.parent) == [DIGEST]


def test_a_false_piece_ends_the_transfer_and_is_never_written(lab: Lab) -> None:
    one = Receiver(lab, "a")
    one.begin()
    one.agent.request("store_put", bytes(20_000), path=str(one.path), pieces=[1])
    with pytest.raises(AgentError, match="piece 1 is not what it should be"):
        one.seal()


def test_damage_is_found_and_only_its_pieces_come_again(lab: Lab) -> None:
    one = filled(lab, "a")
    (one.path / "files" / "b").write_bytes(b"damaged")
    (one.path / "files" / "c").unlink()
    assert one.look() | {"free": 0} == {
        "path": str(one.path), "state": "damaged", "wrong": ["files/b", "files/c"], "free": 0,
    }  # fmt: skip
    missing = set(one.every) - pieces_of(one.begin()["bits"])
    assert len(missing) == 2
    one.put(sorted(missing))
    one.seal()
    assert one.whole
    before = (one.path / "files" / "b").stat()
    (one.path / "files" / "b").write_bytes(bytes(20_000))
    os.utime(one.path / "files" / "b", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert [one.look()["state"], one.look(thorough=True)["state"]] == ["whole", "damaged"]


@pytest.mark.parametrize("spoil", ["mode", "folder", "owner"])
def test_what_others_could_write_is_replaced(lab: Lab, spoil: str) -> None:
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


def test_another_machine_on_the_same_disk_finds_it_and_verifies_it_once(lab: Lab) -> None:
    filled(lab, "a")
    other = Receiver(lab, "a", state=lab.folder / "other state")
    assert other.look()["state"] == "unsure"
    assert other.begin()["present"]
    assert other.look()["state"] == "whole"


def test_files_of_other_folders_are_linked_and_never_written_to(lab: Lab) -> None:
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
    for text in ("", "[]", '{"path": 7}', "x" * 99):
        for note in (lab.folder / "state of a" / "stock" / "data").iterdir():
            note.write_text(text)
        assert not Receiver(lab, "a", files, agent=one.agent, digest=f"{len(text):02x}").begin()["present"]


def test_a_folder_that_tasks_write_is_replaced_as_a_whole(lab: Lab) -> None:
    one = filled(lab, "a", {"x": b"1", "y": b"2"}, mutable=True)
    (one.path / "more").write_text("of a task")
    two = filled(lab, "a", {"x": b"1", "y": b"3"}, mutable=True, agent=one.agent)
    assert read_all(two.path) == two.files
    fields: dict[str, Any] = {"path": str(two.path), "remove": True}
    two.agent.request("store_drop", one.manifest.encode(), **fields)
    assert two.path.exists()  # it is something else
    two.agent.request("store_drop", two.manifest.encode(), **fields)
    assert names_in(two.path.parent) == []


def test_many_hosts_may_fill_one_shared_folder_at_once(lab: Lab) -> None:
    one, *others = (Receiver(lab, "a", state=lab.folder / f"state {number}") for number in range(4))
    one.begin()
    asked = [two.agent.send("store_begin", two.manifest.encode(), **two.fields()) for two in others]
    one.put(one.every)
    one.seal()
    for two, request in zip(others, asked, strict=True):
        assert two.agent.reply(request)[0]["present"]
    assert names_in(one.path.parent) == [DIGEST]


def test_pieces_go_from_peer_to_peer_as_they_come(lab: Lab) -> None:
    one, two = Receiver(lab, "a"), Receiver(lab, "b")
    port = one.begin()["port"]
    two.begin()
    two.follow(port, list(two.every))
    one.give([0, 1])
    until(lambda: two.have() == {0, 1})
    one.give(list(one.every)[2:])
    until(lambda: two.held()["idle"])
    two.seal()
    assert two.whole


def test_one_that_has_all_serves_it(lab: Lab) -> None:
    one, two = filled(lab, "a"), Receiver(lab, "b")
    begun = one.begin(serve=True)
    assert pieces_of(begun["bits"]) == set(range(11))
    two.begin()
    assert two.take(begun["port"], range(11)) == ""
    two.seal()
    assert two.whole
    one.agent.request("store_drop", path=str(one.path))
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
    assert three.take(ports[0], range(11))
    assert three.take(ports[1], range(11)) == ""
    assert three.have() == set(range(11))


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
        (struct.pack(">Q", 20_000) + bytes(20_000), "piece 1 is not what it should be"),
        (struct.pack(">Q", 1 << 40), "a piece of 1099511627776 bytes was sent"),
    ],
    ids=["other bytes", "a terabyte"],
)
def test_a_peer_that_lies_gets_nothing_into_the_data(lab: Lab, answer: bytes, why: str) -> None:
    one = Receiver(lab, "a")
    one.begin()
    with false_peer(answer) as port:
        trouble = one.take(port, [1])
    assert why in trouble
    assert one.have() == set()


def test_a_peer_with_another_key_is_not_believed(lab: Lab) -> None:
    one = Receiver(lab, "a")
    one.begin()
    with false_peer(struct.pack(">Q", 20_000) + one.content(1), one_time_key()) as port:
        trouble = one.take(port, [1])
    assert "certificate" in trouble.lower()
    assert one.have() == set()


@pytest.mark.parametrize("path", ["../x", "/tmp/x", ""])
def test_a_name_that_leads_out_is_refused(lab: Lab, path: str) -> None:
    one = Receiver(lab, "a")
    one.manifest = manifest_of({path: b"x"})
    with pytest.raises(AgentError):
        one.begin()
    assert not one.path.parent.exists()


def test_a_link_in_the_way_is_not_followed(lab: Lab) -> None:
    one = Receiver(lab, "a")
    outside = lab.folder / "outside"
    outside.mkdir()
    incoming = one.path.with_name(f".incoming-{DIGEST}")
    incoming.mkdir(parents=True)
    (incoming / "files").symlink_to(outside)
    one.begin()
    one.put(one.every)
    one.seal()
    assert one.whole
    assert names_in(outside) == []


@pytest.mark.skipif(OLD_PYTHON is None, reason="there is no Python 3.8 on this machine")
def test_an_old_python_takes_and_gives(lab: Lab) -> None:
    one, two, three = Receiver(lab, "a"), Receiver(lab, "b", python=OLD_PYTHON), Receiver(lab, "c")
    port = one.begin()["port"]
    one.give(range(11))
    given = two.begin()["port"]
    assert two.take(port, range(11)) == ""
    three.begin()
    assert three.take(given, range(11)) == ""
    three.seal()
    two.seal()
    assert (two.whole, three.whole) == (True, True)


def two_trees(lab: Lab, agent: AgentClient) -> None:
    for digest, files in (
        ("aa", {"a": b"1", "both": b"first", "sub/x": b"x"}),
        ("bb", {"b": b"2", "both": b"second", "sub/y": b"y"}),
    ):
        make_tree(lab, agent, files, digest, {"link": "a"} if digest == "aa" else {})


def test_work_is_a_copy_of_the_tree(lab: Lab) -> None:
    agent = lab.agent()
    two_trees(lab, agent)
    work = make(lab, agent, "aa")
    assert work == lab.workdir / "runs" / lab.run / "work"
    assert read_all(work) == {"a": b"1", "both": b"first", "sub/x": b"x"}
    assert link(str(work / "link")) == "a"
    (work / "a").write_bytes(b"changed by the run")
    assert (tree(lab, "aa") / "a").read_bytes() == b"1"
    assert make(lab, lab.agent(), "bb") == work  # nothing in it is touched again
    assert (work / "a").read_bytes() == b"changed by the run"


def test_many_hosts_may_make_one_work_folder_at_once(lab: Lab) -> None:
    agents = [lab.agent() for _ in range(4)]
    two_trees(lab, agents[0])
    fields: dict[str, Any] = {"workdir": str(lab.workdir), "run": lab.run, "digest": "aa"}
    asked = [agent.send("work_make", **fields) for agent in agents]
    assert len({agent.reply(request)[0]["work"] for agent, request in zip(agents, asked, strict=True)}) == 1
    assert names_in(lab.workdir / "runs" / lab.run) == ["trees", "work"]


def test_no_work_is_made_while_a_tree_is_missing(lab: Lab) -> None:
    agent = lab.agent()
    two_trees(lab, agent)
    fields: dict[str, Any] = {"workdir": str(lab.workdir), "run": lab.run}
    made = agent.request("work_make", digest="aa", also=["bb", "cc"], **fields)
    assert made["missing"] == ["cc"]
    assert not Path(made["work"]).exists()
    assert agent.request("work_make", digest="aa", also=["bb"], **fields)["missing"] == []
    assert Path(made["work"]).is_dir()


def test_hosts_that_share_a_folder_see_each_others_names(lab: Lab, tmp_path: Path) -> None:
    a, b = lab.agent(), lab.agent()
    fields: dict[str, Any] = {"workdir": str(lab.workdir), "nonce": "n1"}
    other: dict[str, Any] = {"workdir": str(tmp_path / "elsewhere"), "nonce": "n1"}
    a.request("share_write", host="gpu-01", **fields)
    b.request("share_write", host="gpu-02", **fields)
    b.request("share_write", host="gpu-03", **other)
    assert a.request("share_read", **fields) == {"hosts": ["gpu-01", "gpu-02"]}
    assert b.request("share_read", **other) == {"hosts": ["gpu-03"]}
    assert b.request("share_read", workdir=str(lab.workdir), nonce="n2") == {"hosts": []}
    a.request("share_clean", **fields)
    b.request("share_clean", **fields)
    assert names_in(lab.workdir) == []


def test_a_clock_that_is_ahead_takes_no_look_for_an_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrong time zone: neither our own mark nor that of another host is removed."""
    share.write(None, {"workdir": str(tmp_path), "nonce": "n1", "host": "gpu-01"})  # type: ignore[arg-type]
    now = time.time() + 7200
    monkeypatch.setattr(time, "time", lambda: now)
    for nonce in ("n1", "n2"):
        share.write(None, {"workdir": str(tmp_path), "nonce": nonce, "host": "gpu-02"})  # type: ignore[arg-type]
    assert names_in(tmp_path / ".share-n1") == ["gpu-01", "gpu-02"]
    assert names_in(tmp_path / ".share-n2") == ["gpu-02"]


def test_what_was_given_up_long_ago_is_removed(lab: Lab) -> None:
    """By whoever comes next: an agent that was killed could not clean up."""
    one = Receiver(lab, lab.workdir.name, {"a": b"1"}, room="trees")
    for name, hours in (
        ("trees/.incoming-aa-1", 25),
        ("trees/.incoming-bb-1", 23),
        (".share-x", 2),
        (".share-y", 0.5),
    ):
        (lab.workdir / name).mkdir(parents=True)
        then = time.time() - hours * 3600
        os.utime(lab.workdir / name, (then, then))
    incoming = one.begin()["incoming"]
    one.agent.request("share_write", workdir=str(lab.workdir), nonce="z", host="h")
    assert names_in(lab.workdir / "trees") == sorted(
        [".incoming-bb-1", Path(incoming).name, f".lock-{DIGEST}"]
    )
    assert names_in(lab.workdir) == [".share-y", ".share-z", "trees"]


@pytest.mark.parametrize("field", ["digest", "also"])
def test_a_tree_is_a_digest_and_no_way_out_of_the_folder(lab: Lab, field: str) -> None:
    agent, outside = lab.agent(), lab.folder / "outside"
    outside.mkdir()
    for name in ("../../outside", str(outside), "..", "", "7E", "aa\n", 7):
        asked: dict[str, Any] = {"digest": name, "also": []}
        if field == "also":
            asked = {"digest": "aa", "also": [name]}
        with pytest.raises(AgentError, match="not a digest"):
            agent.request("work_make", workdir=str(lab.workdir), run=lab.run, **asked)
    assert not (lab.workdir / "runs").exists()
