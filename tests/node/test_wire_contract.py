"""Every operation of a real agent, encoded and decoded with the controller's types."""

import hashlib
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
import pytest

from orchestrator import wire
from orchestrator.checks import PACKAGES
from orchestrator.envs import uv
from orchestrator.node.serve.ops import OPS
from orchestrator.node.stock.manifest import Manifest
from orchestrator.sync.conversation import one_time_key
from tests.exclusive import exclusive
from tests.node.agent_client import AgentClient
from tests.node.harness import until
from tests.node.lab import Lab
from tests.ports import free_port
from tests.wheels import wheel

R = TypeVar("R", bound=wire.Reply)
PLAN = '{"name": "é"}'

# Fields that the controller does not read: a task's state file is sent unchanged, and the rest is for people
# who inspect a node.
_STATE = ("run", "attempt", "task", "start_ticks", "incarnation")
NOT_READ = {
    *(f"{place}.{field}" for place in ("news.state", "states.runs[].tasks[].state") for field in _STATE),
    *(f"start.{field}" for field in ("already", "started", "state")),
    "news.kind",
}


def unread(raw: object, read: object, place: str = "") -> Iterator[str]:
    """Return the fields that the agent sent and the controller's type lacks."""
    if isinstance(raw, Mapping) and isinstance(read, msgspec.Struct):
        for name, value in raw.items():
            if hasattr(read, name):
                yield from unread(value, getattr(read, name), f"{place}.{name}")
            else:
                yield f"{place}.{name}"
    elif isinstance(raw, Sequence) and isinstance(read, Sequence) and not isinstance(raw, str):
        for one, other in zip(raw, read, strict=True):
            yield from unread(one, other, f"{place}[]")


@dataclass(frozen=True)
class Said:
    """One message of an agent: a reply to a request, or an update on a task."""

    request: wire.Request[Any]
    header: dict[str, Any]
    payload: bytes


class Asker:
    """Sends requests to a real agent as the controller does."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.agent: AgentClient = lab.agent()
        self.asked: set[str] = set()
        self.unread: set[str] = set()
        self.messages: list[Said] = []

    def __call__(self, request: wire.Request[R], payload: bytes = b"") -> R:
        number = self.agent.send(request.OP, payload, **msgspec.to_builtins(request))
        raw, data = self.agent.reply(number)
        assert len(data) <= request.PAYLOAD
        reply = wire.answer(request, raw, data)
        self.unread |= {f"{request.OP}{place}" for place in unread(raw, reply)}
        self.asked.add(request.OP)
        self.messages.append(Said(request, {"id": number, "ok": True, "result": raw}, data))
        if isinstance(request, wire.Follow) and request.tasks[0].task == "worker/0":
            self._follow = request
        return reply

    def start(self, *argv: str, task: str = "worker/0") -> wire.Started:
        spec = self._spec(*(argv or ("sleep", "1000")))
        return self(wire.Start(run=self.lab.run, attempt="1", task=task, plan=PLAN, spec=spec))

    def standby(self, *argv: str, imports: Sequence[str]) -> wire.Standbys:
        spec = msgspec.structs.replace(self._spec(sys.executable, *argv), imports=imports)
        return self(wire.Standby(specs=[spec], spare=False))

    def _spec(self, *argv: str) -> wire.Spec:
        return wire.Spec(
            argv=argv,
            env={"A": "b"},
            cwd=str(self.lab.folder),
            setup=None,
            python=sys.executable,
            grace=5.0,
            port=free_port(),
            endless=False,
            fence=None,
            lifeline=3600.0,
            stacks=True,
            log_cap=1 << 20,
            address="127.0.0.1",
            interfaces=["GLOO_SOCKET_IFNAME"],
        )

    def news(self, kind: type[wire.News]) -> wire.News:
        """Return the next update of a kind from the followed tasks."""
        read: list[wire.News] = []

        def come() -> bool:
            read[:] = [wire.news(header, payload) for header, payload in self.agent.stream]
            return any(isinstance(one, kind) for one in read)

        self.agent.until(come)
        for (raw, _), one in zip(self.agent.stream, read, strict=True):
            self.unread |= {f"news{place}" for place in unread(raw, one)}
        self.messages += [Said(self._follow, dict(header), payload) for header, payload in self.agent.stream]
        return next(one for one in reversed(read) if isinstance(one, kind))


@pytest.fixture
def ask(lab: Lab) -> Asker:
    return Asker(lab)


def _tasks(ask: Asker) -> None:
    run = ask.lab.run
    assert ask(wire.States(run=None)).runs == ()
    assert ask(wire.Keep(run=run, who="me", plan=PLAN)).granted
    code = "import os; os.write(1, b'hello\\n'); open(os.environ['ORCHESTRATE_REPORT'], 'a').write('{}\\n')"
    assert ask.start(sys.executable, "-c", f"{code}; import time; time.sleep(600)").pid
    assert ask(wire.Follow(run=run, attempt="1", tasks=[wire.From("worker/0", 0, 0)])).missing == ()
    assert ask(wire.Follow(run=run, attempt="1", tasks=[wire.From("ps/0", 0, 0)])).missing == ("ps/0",)
    ask(wire.Unfollow(target=0))
    ask.news(wire.LogNews)
    ask.agent.until(lambda: ask.agent.log("worker/0") == b"hello\n")
    ask.news(wire.ReportNews)
    ask(wire.Type(run=run, attempt="1", task="worker/0", typed="0a", terminal=(24, 80)))  # it has none
    (task,) = ask(wire.Stacks(run=run)).tasks
    assert any("write" in one.text or "<module>" in one.text for one in task.processes)
    (lives,) = ask(wire.VitalsAsk(run=run, attempt="1")).tasks
    assert (lives.task, lives.memory > 0) == ("worker/0", True)
    assert lives.memory > 1_000_000
    (known,) = ask(wire.States(run=run)).runs
    assert (known.plan, known.tasks[0].state.state) == (PLAN, wire.TaskPhase.RUNNING)
    assert ask(wire.CleanLook()).alive == (run,)
    assert ask(wire.Stop(run=run, grace=5.0, kill=True, final=True)).asked == ("worker/0",)
    assert not ask(wire.States(run=run, wait=60.0)).tasks[0].alive
    ask.agent.until(lambda: ask.agent.states("worker/0")[-1]["state"] == "exited")
    state = ask.news(wire.StateNews)
    assert isinstance(state, wire.StateNews)
    assert (state.state.state.final, state.state.want) == (True, wire.Want.KILL)
    stray = os.posix_spawnp(
        "sleep", ["sleep", "9"], {**os.environ, "ORCHESTRATE_TASK": f"{run}/1/worker/0/a"}
    )
    assert [one.pid for one in ask(wire.Sweep(run=run)).killed] == [stray]
    os.waitpid(stray, 0)
    with exclusive("clean"):
        ask(wire.Clean(**_clean(ask)))


def _clean(ask: Asker) -> dict[str, Any]:
    wish: dict[str, Any] = {"older": 0.0, "shared": True, "work": True, "dry": False}
    return {"workdir": str(ask.lab.workdir), "alive": [], "known": [], **wish}


def _look(ask: Asker) -> None:
    workdir, port, nonce = str(ask.lab.workdir), free_port(), "n0nce"
    assert ask(wire.Ping()).time_ns > 0
    asked = wire.Facts(
        python=sys.executable,
        r=True,
        workdir=workdir,
        packages=PACKAGES,
        setup="true",
        env={"A": "b"},
        programs={"a": ["true"]},
    )
    assert ask(asked).python.ok
    assert ask(msgspec.structs.replace(asked, env={})).digest == ask(asked).digest  # `env` does not count
    assert ask(wire.Gpus(seconds=5.0)).gpus == ()
    ask(wire.Share(workdir=workdir, nonce=nonce, host="a", step="write"))
    assert ask(wire.Share(workdir=workdir, nonce=nonce, host="a", step="read")).hosts == ("a",)
    listen = wire.Listen(run=ask.lab.run, ports=[port], nonce=nonce, host="a", large=1 << 16)
    assert ask(listen).listening == (port,)
    target = wire.ProbeTarget("a", "127.0.0.1", port)
    (probed,) = ask(wire.Probe(nonce=nonce, timeout=5.0, targets=[target], large=1 << 16)).results
    assert (probed.tcp, probed.large) == (True, True)
    ask(wire.Unlisten())
    imports = wire.Imports(
        python=sys.executable, setup=None, env={}, modules=["json", "no_such_module"], gpus=True
    )
    imported = ask(imports)
    assert [one.name for one in imported.modules] == ["json", "no_such_module"]
    assert imported.modules[1].error == "ModuleNotFoundError: No module named 'no_such_module'"
    assert imported.signal is None
    assert ask(_killed(ask.lab)).signal == signal.SIGKILL
    ports = {str(port): "worker/0"}
    lease = wire.Lease(run=ask.lab.run, owner="me", machine="", since=1.0, ports=ports)
    assert ask(lease).conflicts == ()
    other = Asker(ask.lab)
    (conflict,) = other(msgspec.structs.replace(lease, run="other", owner="you")).conflicts
    assert (conflict.port, conflict.owner) == (port, "me")
    machine = f"127.9.{port >> 8}.{port & 255}"  # nobody else's
    place = wire.JoinQueue(run=ask.lab.run, owner="me", machine=machine, since=2.0, go=False)
    assert not ask(place).ahead
    assert not ask(msgspec.structs.replace(place, go=True)).ahead
    earlier = msgspec.structs.replace(place, run="other", since=1.0, go=True)
    assert other(earlier).ahead == (wire.Ahead(since=2.0, run=ask.lab.run, owner="me"),)
    (busy,) = other(wire.Listen(run="other", ports=[port], nonce=nonce, host="a")).busy
    assert isinstance(busy.holder, wire.Lessee)


def _killed(lab: Lab) -> wire.Imports:
    """Make an import kill its process, as a library for another processor does."""
    (lab.folder / "fatal.py").write_text("import os\nos.kill(os.getpid(), 9)\n")
    path = {"PYTHONPATH": str(lab.folder)}
    return wire.Imports(python=sys.executable, setup=None, env=path, modules=["fatal"])


def _begin(path: str, manifest: Manifest, **more: Any) -> wire.StoreBegin:
    pieces = len(manifest.pieces)
    return wire.StoreBegin(path=path, mutable=False, pieces=pieces, run="r", **more)


def _store(ask: Asker) -> None:
    workdir, digest = str(ask.lab.workdir), "ab" * 16
    manifest = Manifest([["a.py", 0o644, 1, hashlib.sha256(b"1").hexdigest()]])
    path, text = f"{workdir}/trees/{digest}", manifest.encode()
    look = wire.StoreLook(path=path)
    assert ask(look).state is wire.StoreState.ABSENT
    begin = _begin(path, manifest, key=one_time_key())
    begun = ask(begin, text)
    assert (begun.present, begun.bits) == (False, "0")
    ask(wire.StoreDrop(path=path))
    assert ask(begin, text).incoming is not None
    source = wire.StoreSource("gone", "127.0.0.1", free_port(), [0])
    ask(wire.StoreHave(path=path, count=1, source=source))
    while not ask(wire.StoreHave(path=path, count=1)).idle:
        pass
    assert ask(wire.StoreHave(path=path, count=1)).trouble
    ask(wire.StorePut(path=path, pieces=[0]), b"1")
    ask(wire.StoreSeal(path=path))
    assert ask(look).state is wire.StoreState.WHOLE
    assert ask(begin, text).present
    newer = Manifest([["a.py", 0o644, 1, hashlib.sha256(b"2").hexdigest()]])
    second = f"{workdir}/trees/{'cd' * 16}"
    assert ask(_begin(second, newer), newer.encode()).base == path
    ask(wire.StoreDrop(path=second, remove=True))
    made = ask(wire.WorkMake(workdir=workdir, run=ask.lab.run, digest=digest, also=[], data=[]))
    assert (made.made, made.missing) == (True, ())
    assert ask(wire.WorkMake(workdir=workdir, run="r2", digest="cd", also=[], data=[])).missing == ("cd",)
    (ask.lab.workdir / "runs" / ask.lab.run / "work" / "ckpt-rank_1.pt").touch()
    on_top = wire.WorkMake(workdir=workdir, run=ask.lab.run, digest=digest, also=[], user="r2")
    assert (ask(on_top).made, ask(on_top).missing) == (False, ())
    looked = ask(wire.WorkLook(workdir=workdir, run=ask.lab.run, user="r2"))
    assert looked == wire.WorkLooked(there=True, alive=(ask.lab.run,), owned=("ckpt-rank_1.pt",))
    for program in ("sh", "no-such"):
        paths = (workdir, "/no such", "~/", "~/no such")
        needs = wire.JobNeeds(program=program, python=sys.executable, setup="true", paths=paths)
        made = ask(wire.WorkMake(workdir=workdir, run=program, digest=digest, also=[], needs=needs))
        assert made.had == wire.Had(program=made.made, paths=(1, 3))
        assert made.made == (program == "sh") == (ask.lab.workdir / "runs" / program / "work").exists()


def _files(ask: Asker) -> None:
    target = ask.lab.folder / "results"
    absent = ask(wire.FilesList(path=str(target)))
    assert (absent.kind, absent.payload) == ("", b"")
    (target / "d").mkdir(parents=True)
    (target / "x").write_text("12")
    (target / os.fsdecode(b"\xff")).symlink_to("x")
    listed = ask(wire.FilesList(path=str(target)))
    rows = [json.loads(line) for line in listed.payload.split(b"\n")]
    assert {(row[0], row[1]) for row in rows} == {("d", "folder"), ("x", "file"), ("\udcff", "link")}
    (listed_as,) = [(row[2], row[3], row[6]) for row in rows if row[0] == "x"]
    some = ask(wire.FilesList(path=str(target), holding="y")).payload
    assert json.loads(some)[0] == "d"
    parts = json.dumps([("x", 1, 1, *listed_as), ("gone", 0, 1, 1, 0, 0)]).encode()
    got = ask(wire.FilesGet(root=listed.root, parts=2, growing=False), parts)
    assert (got.payload, got.gone, got.grown) == (b"2", (1,), ())
    sizes = json.dumps([("x", 1), ("x", 3), ("x", 0)]).encode()
    digests = ask(wire.FilesDigest(root=listed.root), sizes).digests
    assert digests == (hashlib.sha256(b"1").hexdigest(), None, hashlib.sha256().hexdigest())


def _command(ask: Asker) -> None:
    assert ask(wire.Exec(argv=("sh", "-c", "exit 3"))).status == 3
    missing = ask(wire.Exec(argv=("/none",)))
    assert (missing.status, missing.error) == (127, "/none: No such file or directory")
    ask(wire.ExecEnd())


def _envs(ask: Asker) -> None:
    wheels = ask.lab.folder / "wheels"
    wheels.mkdir()
    wheel(wheels, "small", "1.0", "")
    workdir, name, tool = str(ask.lab.workdir), "ab" * 8, str(uv.binary())
    assert not ask(wire.EnvLook(workdir=workdir, name=name)).ready
    python = ask(wire.EnvFind(uv=tool, python="/usr/bin/python3"))
    make = wire.EnvMake(
        workdir=workdir, name=name, uv=tool, interpreter=python.path, index=None, wheels=str(wheels)
    )
    made = ask(make, b"small==1.0\n")
    assert made.versions
    assert not ask(make, b"small==1.0\n").versions
    steps = ask(wire.EnvProgress(workdir=workdir, name=name))
    assert (steps.step, steps.done) == ("", 0)  # no build is running any more
    assert ask(wire.EnvLook(workdir=workdir, name=name)).ready


def _standby(ask: Asker) -> None:
    (ask.lab.folder / "train.py").write_text("print(1)")
    ask.standby("train.py", imports=["decimal"])
    until(lambda: any(ask.lab.state.glob("standby/*/ready")), what="it has imported")
    assert ask(wire.StandbyKeep(seconds=60.0, owner="me", machine=ask.lab.run)).waiting[0].memory
    assert ask(wire.States(run=None)).standbys[0].command.endswith("train.py")
    assert ask.standby("-c", "print(1)", imports=["decimal"]).why
    cleaned = wire.Clean(
        workdir=str(ask.lab.workdir), alive=[], known=[], older=0.0, shared=False, work=False, dry=False
    )
    assert ask(cleaned).standbys == 1


STORIES: Sequence[Callable[[Asker], None]] = (_tasks, _look, _store, _files, _command, _envs, _standby)


def test_operations_and_types_match_one_to_one() -> None:
    assert sorted(request.OP for request in wire.Request.__subclasses__()) == sorted(OPS)


def test_hello_is_decoded(lab: Lab) -> None:
    hello = lab.agent().hello
    read = wire.read(hello, wire.Hello, "hello")
    assert read.state == str(lab.state)
    assert {f"hello{place}" for place in unread(hello, read)} <= NOT_READ
    unusable = lab.agent(state="/proc/none").hello
    error = wire.read(unusable, wire.Hello, "hello").state_error
    assert error is not None
    assert error.kind == "state"


def test_every_reply_of_every_operation_is_decoded(ask: Asker) -> None:
    for story in STORIES:
        story(ask)
    assert ask.asked == set(OPS)
    assert ask.unread <= NOT_READ


def test_an_error_is_decoded(ask: Asker) -> None:
    number = ask.agent.send("states", run="../x")
    ask.agent.until(lambda: number in ask.agent.replies)
    error = wire.read(ask.agent.replies[number][0]["error"], wire.Failure, "an error")
    assert error.what == "not a name for a run: '../x'"
