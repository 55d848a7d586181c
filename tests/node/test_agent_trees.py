"""Trees: sent as tar, verified, sealed; and the work folders that are copied from them."""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
import time
from pathlib import Path
from typing import Any

import pytest

from orchestrator.node.look import share
from tests.node.agent_client import AgentClient, AgentError
from tests.node.harness import link, names_in
from tests.node.lab import Lab

DIGEST = "0123456789abcdef0123456789abcdef"
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

Files = dict[str, bytes]
Entries = list[dict[str, Any]]


def manifest(files: Files, links: dict[str, str] | None = None, executable: str = "") -> Entries:
    entries: Entries = [
        {
            "path": name,
            "mode": 0o755 if name == executable else 0o644,
            "sha256": hashlib.sha256(data).hexdigest(),
        }
        for name, data in files.items()
    ]
    entries += [{"path": name, "link": target} for name, target in (links or {}).items()]
    return sorted(entries, key=lambda entry: str(entry["path"]))


def tar(files: Files, links: dict[str, str] | None = None, executable: str = "") -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", encoding="utf-8", errors="surrogateescape") as made:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            member.mode = 0o755 if name == executable else 0o600
            made.addfile(member, io.BytesIO(data))
        for name, target in (links or {}).items():
            member = tarfile.TarInfo(name)
            member.type = tarfile.SYMTYPE
            member.linkname = target
            made.addfile(member)
    return out.getvalue()


def begin(
    lab: Lab, agent: AgentClient, entries: Entries, along: bytes = b"", *, digest: str = DIGEST
) -> dict[str, Any]:
    fields: dict[str, Any] = {"workdir": str(lab.workdir), "digest": digest, "reuse": True}
    return agent.request("tree_begin", along, manifest=entries, **fields)


def put(
    lab: Lab, agent: AgentClient, entries: Entries, data: bytes, *, digest: str = DIGEST
) -> dict[str, Any]:
    """Begin a tree and send its tar, several chunks under way at a time."""
    begin(lab, agent, entries, digest=digest)
    chunk = 10_000
    asked = [
        agent.send(
            "tree_tar",
            data[at : at + chunk],
            workdir=str(lab.workdir),
            digest=digest,
            more=at + chunk < len(data),
        )
        for at in range(0, len(data), chunk)
    ]
    for request in asked[:-1]:
        assert agent.reply(request)[0]["received"] == chunk
    return agent.reply(asked[-1])[0]


def seal(lab: Lab, agent: AgentClient, digest: str = DIGEST) -> dict[str, Any]:
    return agent.request("tree_seal", workdir=str(lab.workdir), digest=digest)


def make_tree(
    lab: Lab, agent: AgentClient, files: Files, digest: str, links: dict[str, str] | None = None
) -> None:
    put(lab, agent, manifest(files, links), tar(files, links), digest=digest)
    assert seal(lab, agent, digest)["ok"]


def tree(lab: Lab, digest: str = DIGEST) -> Path:
    return lab.workdir / "trees" / digest


def make(lab: Lab, agent: AgentClient, *digests: str) -> Path:
    return Path(
        agent.request("work_make", workdir=str(lab.workdir), run=lab.run, digests=list(digests))["work"]
    )


def read_all(folder: Path) -> Files:
    files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_a_tree_arrives_byte_by_byte_whatever_its_names(lab: Lab) -> None:
    agent = lab.agent()
    files = {name: f"{n}".encode() * (n * 5000) for n, name in enumerate(NASTY)}
    links = {"link": "plain.py", "dangling": "/nowhere/\udcff", "é/up": "../plain.py"}
    assert not tree(lab).exists()
    entries = manifest(files, links, executable="-rf")
    sent = put(lab, agent, entries, tar(files, links, executable="-rf"))
    assert sent == {"files": len(files) + len(links), "bytes": sum(map(len, files.values()))}
    assert not tree(lab).exists()  # not before it is sealed
    assert seal(lab, agent)["ok"]
    assert tree(lab).exists()
    assert read_all(tree(lab)) == files
    assert link(str(tree(lab) / "dangling")) == "/nowhere/\udcff"
    modes = {name: (tree(lab) / name).stat().st_mode & 0o777 for name in ("-rf", "plain.py")}
    assert modes == {"-rf": 0o755, "plain.py": 0o644}
    assert names_in(lab.workdir / "trees") == [DIGEST]


def test_an_empty_tree_is_a_tree(lab: Lab) -> None:
    agent = lab.agent()
    put(lab, agent, [], tar({}))
    assert seal(lab, agent)["ok"]
    assert tree(lab).exists()


def test_an_unchanged_digest_needs_nothing(lab: Lab) -> None:
    first, second = lab.agent(), lab.agent()
    for agent in (first, second):
        put(lab, agent, manifest({"a": b"1"}), tar({"a": b"1"}))
    assert seal(lab, first) == {"ok": True, "already": False}
    assert seal(lab, second) == {"ok": True, "already": True}
    assert names_in(lab.workdir / "trees") == [DIGEST]


def test_many_hosts_may_seal_one_tree_on_a_shared_folder_at_once(lab: Lab) -> None:
    files = {f"{n}.txt": bytes([n]) * 1000 for n in range(50)}
    agents = [lab.agent() for _ in range(4)]
    for agent in agents:
        put(lab, agent, manifest(files), tar(files))
    asked = [agent.send("tree_seal", workdir=str(lab.workdir), digest=DIGEST) for agent in agents]
    sealed = [agent.reply(request)[0] for agent, request in zip(agents, asked, strict=True)]
    assert [one["ok"] for one in sealed] == [True] * 4
    assert sum(not one["already"] for one in sealed) == 1
    assert read_all(tree(lab)) == files
    assert names_in(lab.workdir / "trees") == [DIGEST]


def test_two_hosts_may_replace_one_damaged_tree_on_a_shared_folder_at_once(lab: Lab) -> None:
    """The one that is later finds that of the other, and takes neither it nor its name away."""
    files = {"train.py": b"print(1)", "large": os.urandom(16 << 20)}
    entries, sent = manifest(files), tar(files)
    hosts = [lab.agent(state=lab.folder / f"state {number}") for number in range(4)]
    put(lab, hosts[0], entries, sent)
    seal(lab, hosts[0])
    for number in range(8):
        (tree(lab) / "train.py").chmod(0o666)  # others may write there: it has to be replaced
        for agent in hosts:
            put(lab, agent, entries, sent)
        work = {"run": f"{lab.run}-{number}", "also": [], "data": []}
        asked = [
            agent.send("tree_seal", workdir=str(lab.workdir), digest=DIGEST, work=work) for agent in hosts
        ]
        sealed = [agent.reply(request)[0] for agent, request in zip(hosts, asked, strict=True)]
        assert sorted(one["already"] for one in sealed) == [False, True, True, True]
        assert [one["work"]["missing"] for one in sealed] == [[], [], [], []]
        assert read_all(tree(lab)) == files
        assert not [name for name in names_in(tree(lab).parent) if name.startswith((".gone", ".incoming"))]


@pytest.mark.parametrize(
    ("sent", "links", "wrong"),
    [
        ({"a": b"1", "b": b"CORRUPT"}, {}, r"b: other content \(7 bytes\)"),
        ({"a": b"1"}, {}, "b: missing"),
        ({"a": b"1", "b": b"2", "c/d": b"3"}, {}, "c/d: not in the manifest"),
        ({"a": b"1"}, {"b": "a"}, "b: not a file"),
    ],
    ids=["corrupt", "missing", "more", "link"],
)
def test_a_tree_that_is_not_what_was_sent_is_refused_by_name(
    lab: Lab, sent: Files, links: dict[str, str], wrong: str
) -> None:
    agent = lab.agent()
    entries = manifest({"a": b"1", "b": b"2"})
    put(lab, agent, entries, tar(sent, links))
    with pytest.raises(AgentError, match=wrong) as caught:
        seal(lab, agent)
    assert caught.value.kind == "tree"
    assert not tree(lab).exists()
    put(lab, agent, entries, tar({"a": b"1", "b": b"2"}))  # and can be sent again
    assert seal(lab, agent)["ok"]


@pytest.mark.parametrize("path", ["../file", "/etc/passwd", "a/../../b"])
def test_a_manifest_that_leaves_the_tree_is_refused(lab: Lab, path: str) -> None:
    agent = lab.agent()
    put(lab, agent, manifest({path: b""}), tar({}))
    with pytest.raises(AgentError, match="out of the tree"):
        seal(lab, agent)


@pytest.mark.parametrize(
    ("data", "wrong"),
    [(tar({"l": b""}), "l: not a symbolic link"), (tar({}, {"l": "other"}), "l: a link to other")],
    ids=["file", "other"],
)
def test_a_wrong_link_is_named(lab: Lab, data: bytes, wrong: str) -> None:
    agent = lab.agent()
    put(lab, agent, manifest({}, {"l": "target"}), data)
    with pytest.raises(AgentError, match=wrong):
        seal(lab, agent)


def test_wrong_files_are_counted_and_the_first_shown(lab: Lab) -> None:
    agent = lab.agent()
    put(lab, agent, manifest({f"{n:02}": b"" for n in range(20)}), tar({}))
    with pytest.raises(AgentError, match=r"^tree: 20 files.*00: missing.*04: missing; \.\.\."):
        seal(lab, agent)


def test_the_mode_of_a_file_of_its_own_is_set_and_that_of_a_shared_one_refused(lab: Lab) -> None:
    agent = lab.agent()
    incoming = Path(begin(lab, agent, manifest({"own": b"x", "shared": b"x"}))["incoming"])
    for name in ("own", "shared"):
        (incoming / name).write_bytes(b"x")
        (incoming / name).chmod(0o600)
    os.link(incoming / "shared", lab.workdir / "elsewhere")
    with pytest.raises(AgentError, match="shared: mode 600 instead of 644"):
        seal(lab, agent)
    assert (incoming / "own").stat().st_mode & 0o777 == 0o644
    assert (lab.workdir / "elsewhere").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "along",
    [
        b"no stream",
        tar({"b": b"2"})[:700],
        tar({"c": b"3"}),
        tar({"../b": b"2"}),
    ],
    ids=["garbage", "cut", "another", "outside"],
)
def test_what_comes_along_is_not_taken_where_it_is_not_what_is_missing(lab: Lab, along: bytes) -> None:
    agent = lab.agent()
    make_tree(lab, agent, {"a": b"1"}, "aa")
    begun = begin(lab, agent, manifest({"a": b"1", "b": b"2"}), along, digest="bb")
    assert begun["missing"] == [1]
    assert names_in(Path(begun["incoming"])) == ["a"]
    assert names_in(lab.workdir / "trees") == [Path(begun["incoming"]).name, "aa"]


@pytest.mark.parametrize("more", [{}, {"a": b"1"}], ids=["exactly", "more"])
def test_what_comes_along_is_taken_where_it_is_all_that_is_missing(lab: Lab, more: Files) -> None:
    agent = lab.agent()
    make_tree(lab, agent, {"a": b"1"}, "aa")
    along = tar({"b": b"2", **more})
    assert begin(lab, agent, manifest({"a": b"1", "b": b"2"}), along, digest="bb")["made"]
    assert read_all(tree(lab, "bb")) == {"a": b"1", "b": b"2"}
    assert (tree(lab, "bb") / "a").samefile(tree(lab, "aa") / "a")


def test_what_comes_along_is_compared_with_the_manifest(lab: Lab) -> None:
    agent = lab.agent()
    with pytest.raises(AgentError, match="b: other content"):
        begin(lab, agent, manifest({"b": b"2"}), tar({"b": b"x"}), digest="bb")
    assert not tree(lab, "bb").exists()


def test_what_was_changed_back_is_found_in_an_old_tree(lab: Lab) -> None:
    agent = lab.agent()
    base = {f"{n}": bytes([n]) for n in range(40)}
    for number in range(5):
        make_tree(lab, agent, {**base, "edited": b"%d" % number}, f"a{number}")
    back = manifest({**base, "edited": b"1", "new": b"new"})
    begun = begin(lab, agent, back, digest="bb")
    assert begun["base"] is None  # no tree has another version of what is missing
    assert [back[place]["path"] for place in begun["missing"]] == ["new"]
    incoming = Path(begun["incoming"])
    assert (incoming / "edited").samefile(tree(lab, "a1") / "edited")
    assert (incoming / "7").samefile(tree(lab, "a4") / "7")


@pytest.mark.parametrize(
    "text", ["", "{", '{"tree": 7}', '{"tree": "TREE", "manifest": 7}', '{"tree": "TREE"', "\xff"]
)
def test_a_damaged_note_of_a_tree_lends_nothing(lab: Lab, text: str) -> None:
    agent = lab.agent()
    make_tree(lab, agent, {"a": b"1"}, "aa")
    (note,) = (path for path in lab.folder.rglob("aa") if path.parent.name == "trees" and path.is_file())
    note.write_text(text.replace("TREE", str(tree(lab, "aa"))))
    assert begin(lab, agent, manifest({"a": b"1"}), digest="bb")["missing"] == [0]


def test_the_newest_tree_is_the_base(lab: Lab) -> None:
    agent = lab.agent()
    bases = []
    for digest in ("aa", "bb", "cc"):
        files = {"a": digest.encode()}
        bases.append(begin(lab, agent, manifest(files), digest=digest)["base"])
        make_tree(lab, agent, files, digest)
    assert bases == [None, str(tree(lab, "aa")), str(tree(lab, "bb"))]


def member(name: str, kind: bytes, target: str = "") -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as made:
        info = tarfile.TarInfo(name)
        info.type, info.linkname = kind, target
        made.addfile(info)
    return out.getvalue()


def through_a_link() -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as made:
        link = tarfile.TarInfo("out")
        link.type, link.linkname = tarfile.SYMTYPE, "/tmp"
        made.addfile(link)
        made.addfile(tarfile.TarInfo("out/escaped"), io.BytesIO())
    return out.getvalue()


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (tar({"../escaped": b""}), "points out of its folder"),
        (tar({"a/../../escaped": b""}), "points out of its folder"),
        (tar({"/tmp/escaped": b""}), "points out of its folder"),
        (through_a_link(), "something else is in its place"),
        (member("pipe", tarfile.FIFOTYPE), "only files"),
        (member("device", tarfile.CHRTYPE), "only files"),
        (member("hard", tarfile.LNKTYPE, "/etc/passwd"), "only files"),
        (tar({"a": b"1"})[:1024] + tar({"a": b"2"}), "it comes twice"),
        (b"no tar at all" * 1000, "damaged"),
        (tar({"a": b"1" * 100_000})[:50_000], "damaged"),
    ],
    ids=[
        "dotdot",
        "inner dotdot",
        "absolute",
        "through a link",
        "fifo",
        "device",
        "hard link",
        "twice",
        "garbage",
        "cut",
    ],
)
def test_a_tar_stream_that_would_harm_is_refused(lab: Lab, data: bytes, said: str) -> None:
    agent = lab.agent()
    with pytest.raises(AgentError, match=said):
        put(lab, agent, manifest({"a": b"1"}), data)
    assert not list(lab.workdir.parent.rglob("escaped"))
    assert not Path("/tmp/escaped").exists()
    assert put(lab, agent, manifest({"a": b"1"}), tar({"a": b"1"}))  # the next stream is a new one
    assert seal(lab, agent)["ok"]


def test_a_refused_stream_answers_each_of_its_chunks(lab: Lab) -> None:
    agent = lab.agent()
    begin(lab, agent, [])
    fields: dict[str, Any] = {"workdir": str(lab.workdir), "digest": DIGEST}
    asked = [agent.send("tree_tar", b"garbage" * 10_000, more=n < 19, **fields) for n in range(20)]
    agent.until(lambda: set(asked) <= set(agent.replies))
    assert not agent.replies[asked[-1]][0]["ok"]


def test_a_workdir_that_cannot_be_written_is_an_error_of_its_own(lab: Lab, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    workdir = str(tmp_path / "file")
    with pytest.raises(AgentError) as caught:
        lab.agent().request("tree_begin", workdir=workdir, digest=DIGEST, manifest=[], reuse=True)
    assert (caught.value.kind, caught.value.why) == ("workdir", "Not a directory")


@pytest.mark.parametrize("digest", ["", "..", "a/b", "ABC", "../../etc"])
def test_only_a_digest_names_a_tree(lab: Lab, digest: str) -> None:
    with pytest.raises(AgentError, match="not a digest"):
        begin(lab, lab.agent(), [], digest=digest)


def two_trees(lab: Lab, agent: AgentClient) -> None:
    for digest, files in (
        ("aa", {"a": b"1", "both": b"first", "sub/x": b"x"}),
        ("bb", {"b": b"2", "both": b"second", "sub/y": b"y"}),
    ):
        make_tree(lab, agent, files, digest, {"link": "a"} if digest == "aa" else {})


def test_work_is_a_copy_of_the_trees_and_the_first_wins(lab: Lab) -> None:
    agent = lab.agent()
    two_trees(lab, agent)
    work = make(lab, agent, "aa", "bb")
    assert work == lab.workdir / "runs" / lab.run / "work"
    assert read_all(work) == {"a": b"1", "b": b"2", "both": b"first", "sub/x": b"x", "sub/y": b"y"}
    assert link(str(work / "link")) == "a"
    (work / "a").write_bytes(b"changed by the run")
    assert (tree(lab, "aa") / "a").read_bytes() == b"1"


def test_work_is_made_once_and_nothing_in_it_is_touched_again(lab: Lab) -> None:
    agent = lab.agent()
    two_trees(lab, agent)
    work = make(lab, agent, "aa")
    (work / "a").unlink()
    (work / "checkpoint").write_bytes(b"precious")
    assert make(lab, lab.agent(), "aa", "bb") == work
    assert read_all(work) == {"both": b"first", "sub/x": b"x", "checkpoint": b"precious"}


@pytest.mark.parametrize("along", [True, False])
def test_the_folder_of_a_run_is_made_with_the_tree(lab: Lab, *, along: bool) -> None:
    """In one step with what came along, else with the seal."""
    agent, files = lab.agent(), {"main.py": b"1", "pkg/a.py": b"2"}
    fields: dict[str, Any] = {
        "workdir": str(lab.workdir),
        "digest": DIGEST,
        "work": {"run": lab.run, "also": []},
    }
    sent = tar(files) if along else b""
    begun = agent.request("tree_begin", sent, manifest=manifest(files), reuse=True, **fields)
    if not along:
        assert "work" not in begun
        agent.request("tree_tar", tar(files), workdir=str(lab.workdir), digest=DIGEST, more=False)
        begun = agent.request("tree_seal", **fields)
    made = begun["work"]
    assert (made["made"], made["missing"]) == (True, [])
    assert read_all(Path(made["work"])) == files == read_all(tree(lab))
    again = agent.request("work_make", workdir=str(lab.workdir), run=lab.run, digests=[DIGEST])
    assert again == {**made, "made": False}


def test_the_folder_of_a_run_is_not_made_while_another_tree_is_missing(lab: Lab) -> None:
    agent, files = lab.agent(), {"main.py": b"1"}
    fields: dict[str, Any] = {
        "workdir": str(lab.workdir),
        "digest": DIGEST,
        "work": {"run": lab.run, "also": ["bb"]},
    }
    begun = agent.request("tree_begin", tar(files), manifest=manifest(files), reuse=True, **fields)
    assert begun["made"]
    assert (begun["work"]["made"], begun["work"]["missing"]) == (False, ["bb"])
    assert not Path(begun["work"]["work"]).exists()


def test_what_a_run_is_told_of_is_looked_at_before_anything_is_made(lab: Lab) -> None:
    agent, files = lab.agent(), {"main.py": b"1"}
    for told in ({"run": "../x", "also": []}, {"run": lab.run, "also": ["../x"]}):
        fields: dict[str, Any] = {"workdir": str(lab.workdir), "digest": DIGEST, "work": told}
        with pytest.raises(AgentError, match="x"):
            agent.request("tree_begin", tar(files), manifest=manifest(files), reuse=True, **fields)
        assert not tree(lab).exists()


def test_many_hosts_may_make_one_work_folder_at_once(lab: Lab) -> None:
    agents = [lab.agent() for _ in range(4)]
    two_trees(lab, agents[0])
    fields: dict[str, Any] = {"workdir": str(lab.workdir), "run": lab.run, "digests": ["aa", "bb"]}
    asked = [agent.send("work_make", **fields) for agent in agents]
    assert len({agent.reply(request)[0]["work"] for agent, request in zip(agents, asked, strict=True)}) == 1
    assert names_in(lab.workdir / "runs" / lab.run) == ["trees", "work"]


def test_no_work_is_made_while_a_tree_is_missing(lab: Lab) -> None:
    agent = lab.agent()
    two_trees(lab, agent)
    fields: dict[str, Any] = {"workdir": str(lab.workdir), "run": lab.run}
    made = agent.request("work_make", digests=["aa"], also=["bb", "cc"], **fields)
    assert made["missing"] == ["cc"]
    assert not Path(made["work"]).exists()
    assert agent.request("work_make", digests=["aa"], also=["bb"], **fields)["missing"] == []
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
    agent = lab.agent()
    for name, hours in (
        ("trees/.incoming-aa-1", 25),
        ("trees/.incoming-bb-1", 23),
        (".share-x", 2),
        (".share-y", 0.5),
    ):
        (lab.workdir / name).mkdir(parents=True)
        then = time.time() - hours * 3600
        os.utime(lab.workdir / name, (then, then))
    incoming = begin(lab, agent, [])["incoming"]
    agent.request("share_write", workdir=str(lab.workdir), nonce="z", host="h")
    assert names_in(lab.workdir / "trees") == sorted([".incoming-bb-1", Path(incoming).name])
    assert names_in(lab.workdir) == [".share-y", ".share-z", "trees"]


@pytest.mark.parametrize("field", ["digests", "also"])
def test_a_tree_is_a_digest_and_no_way_out_of_the_folder(lab: Lab, field: str) -> None:
    agent, outside = lab.agent(), lab.folder / "outside"
    outside.mkdir()
    for name in ("../../outside", str(outside), "..", "", "7E", "aa\n", 7):
        asked: dict[str, Any] = {"digests": [], "also": [], field: [name]}
        with pytest.raises(AgentError, match="not a digest"):
            agent.request("work_make", workdir=str(lab.workdir), run=lab.run, **asked)
    assert not (lab.workdir / "runs").exists()
