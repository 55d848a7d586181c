"""The Python API on this machine, in programs, threads, notebooks, and pytest, without any output."""

import asyncio
import logging
import os
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import orchestrator
from orchestrator.events import LogLine, Outcome, RunEnded, RunPlanned, TaskExited, TaskStarted, decode
from orchestrator.store import runs
from tests import verbs
from tests.local.here import inventory
from tests.processes import called

ROOT = Path(__file__).parents[2]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with code, and two hosts that are this machine; any output fails the test."""
    (tmp_path / "code").mkdir()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path / "code")
    with inventory(tmp_path, "here", "there") as hosts:
        (tmp_path / "code" / "hosts.toml").write_text(hosts)
        yield tmp_path / "code"


@pytest.fixture(autouse=True)
def quiet(capfd: pytest.CaptureFixture[str]) -> Iterator[None]:
    yield
    assert capfd.readouterr() == ("", "")


def start(*command: str, **options: object) -> orchestrator.RunHandle:
    return orchestrator.launch(command, preflight=False, validate=False, **options)  # type: ignore[arg-type]


def test_a_run_from_launch_to_pulled_output(folder: Path) -> None:
    run = start("sh", "-c", "echo $GREETING; echo weights > model", name="night", env={"GREETING": "hello"})
    events = list(run.events())
    first, last = events[0], events[-1]
    assert isinstance(first, RunPlanned)
    assert (first.run, first.name) == (run.id, "night")
    assert isinstance(last, RunEnded)
    assert last.outcome is Outcome.SUCCEEDED
    assert [one.text for one in events if isinstance(one, LogLine)] == ["hello", "hello"]
    assert {one.host for one in events if isinstance(one, TaskStarted)} == {"here", "there"}
    assert run.wait(check=True) == run.stop() == run.ended == last

    again = orchestrator.open("night")
    assert again == run
    replayed = [stamped.event for stamped in again.stamped()]
    assert sorted(map(repr, replayed)) == sorted(map(repr, events))  # more lines may have arrived by then
    shown = verbs.call(["tail", run.id, "--json", "--notes", "-n", "all"], folder, folder.parent / "state")
    assert [decode(line.encode()).event for line in shown.out.splitlines()] == replayed
    assert run.pull(all_hosts=True, to=folder / "got") == [folder / "got" / "here", folder / "got" / "there"]
    assert (folder / "got" / "there" / "model").read_text() == "weights\n"
    assert "<html" in run.report(folder / "page.html").read_text()
    with pytest.raises(orchestrator.UsageError, match="no task"):
        run.stacks()
    with pytest.raises(orchestrator.OrchestrateError):
        run.pull("-h")
    assert not [name for name in ("paramiko", "fabric") if logging.getLogger(name).handlers]


@pytest.mark.usefixtures("folder")
def test_a_run_outlives_the_program_that_started_it_and_its_keeper() -> None:
    program = (
        "import orchestrator as o; run = o.launch(['sleep', '600'], preflight=False, validate=False)\n"
        "for event in run.events():\n"
        "    if type(event).__name__ == 'TaskStarted': break\n"
        "print(run.id)"
    )
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = called([sys.executable, "-c", program], env=environ, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr
    run = orchestrator.open()
    assert (run.id, done.stderr) == (done.stdout.strip(), "")
    with pytest.raises(TimeoutError):
        run.wait(0)
    stacks = run.stacks()
    assert {host for host, _ in stacks.tasks} == {"here", "there"}
    verbs.kill_keeper(run.folder)
    assert run.ended is None
    assert run.stop(now=True).outcome is Outcome.STOPPED
    with pytest.raises(orchestrator.RunError):
        run.wait(check=True)


@pytest.mark.usefixtures("folder")
def test_a_run_works_in_a_thread_and_with_a_running_event_loop() -> None:
    """As in a notebook, which runs an event loop in its main thread and has no terminal."""

    async def cell() -> None:
        ended = await asyncio.to_thread(start("sh", "-c", "exit 3").wait)
        assert (ended.outcome, ended.status) == (Outcome.FAILED, 1)
        run = start("true")
        exits = [event.code for event in run.events() if isinstance(event, TaskExited)]
        assert exits == [0, 0]

    asyncio.run(cell())
    ended: list[RunEnded] = []
    thread = threading.Thread(target=lambda: ended.append(start("true").wait()))
    thread.start()
    thread.join(60)
    assert [end.status for end in ended] == [0]


@pytest.mark.usefixtures("folder")
def test_hosts_can_be_queried_without_a_run() -> None:
    answers = orchestrator.execute(["sh", "-c", "echo out; echo err >&2; exit 3"], exclude="there")
    assert answers == {"here": orchestrator.HostAnswer("here", 3, "out\n", "err\n")}
    findings = orchestrator.preflight(hosts="hosts.toml")
    assert not findings.failed
    assert {check.host for check in findings.checks} >= {"here", "there"}
    assert {(pair.source, pair.target) for pair in findings.pairs} >= {("here", "there"), ("there", "here")}


def test_mistakes_are_raised_before_anything_starts(folder: Path) -> None:
    wrong: list[Callable[[], object]] = [
        lambda: orchestrator.launch(["none.py"]),
        lambda: orchestrator.launch(["true"], hosts="none.toml"),
        lambda: orchestrator.launch(["true"], only="nobody"),
        lambda: orchestrator.launch(["true"], max_restarts=-1),
        lambda: orchestrator.launch("train.py"),
        lambda: orchestrator.execute([]),
        lambda: orchestrator.open("nothing"),
        lambda: orchestrator.open(""),
        lambda: orchestrator.launch(["--help"]),
        lambda: orchestrator.launch(["--ephocs=3"]),
        lambda: orchestrator.launch(["tr\0ue"]),
        lambda: orchestrator.launch(["true", "\udcff"]),
        lambda: orchestrator.launch(["true"], env={"A": "\0"}),
        lambda: orchestrator.launch(["true"], env={"A=B": "1"}),
        lambda: orchestrator.launch(["true"], name="a\nb"),
        lambda: orchestrator.launch(["true"], hang_timeout=float("nan")),
        lambda: orchestrator.execute(["echo", "\0"]),
    ]
    for call in wrong:
        with pytest.raises(orchestrator.UsageError):
            call()
    types: list[Callable[..., object]] = [
        lambda: orchestrator.launch(5),  # type: ignore[arg-type]
        lambda: orchestrator.launch([b"true"]),  # type: ignore[list-item]
        lambda: orchestrator.launch(["true"], max_restarts="3"),  # type: ignore[arg-type]
        lambda: orchestrator.launch(["true"], hosst="hosts.toml"),  # type: ignore[call-arg]
        lambda: orchestrator.launch(["true"], env={"A": 1}),  # type: ignore[dict-item]
        lambda: orchestrator.launch(["true"], validate="sometimes"),  # type: ignore[arg-type]
        lambda: orchestrator.execute(["true"], hosts=5),  # type: ignore[arg-type]
        lambda: orchestrator.open(5),  # type: ignore[arg-type]
    ]
    for call in types:
        with pytest.raises((TypeError, ValueError)):
            call()
    assert not (folder.parent / "state" / "orchestrate" / "runs").exists()


@pytest.mark.usefixtures("folder")
def test_local_failures_raise_our_own_error(tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    os.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    for call in (lambda: orchestrator.launch(["true"]), orchestrator.preflight, orchestrator.open):
        with pytest.raises(orchestrator.OrchestrateError, match=r"this machine|no run yet"):
            call()


def test_no_passphrase_prompt_without_a_terminal(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "secret", "-f", str(folder / "key")], check=True
    )
    (folder / "far.toml").write_text(f'[[host]]\nssh = "gpu-01.invalid"\nidentity = "{folder}/key"\n')
    for call in (lambda: start("true", hosts="far.toml"), lambda: orchestrator.preflight(hosts="far.toml")):
        with pytest.raises(orchestrator.UsageError, match=f"without a terminal.* {folder}/key"):
            call()


def test_importing_the_package_loads_nothing_else() -> None:
    code = (
        "import sys, orchestrator\n"
        "assert not {'msgspec', 'argparse', 'orchestrator.api'} & set(sys.modules)\n"
        "assert all(hasattr(orchestrator, name) for name in orchestrator.__all__)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


CONSUMER = """
from typing import assert_type

import orchestrator
from orchestrator import HostAnswer, RunHandle
from orchestrator.events import RunEnded, TaskProgressed
from orchestrator.model import Inventory
from orchestrator.requests import LaunchRequest


def train(rate: float) -> float | None:
    run: RunHandle = orchestrator.launch(["train.py", f"--lr={rate}"], hosts="hosts.toml", spares=1)
    loss: float | None = None
    for event in run.events():
        match event:
            case TaskProgressed(task="worker/0"):
                loss = event.loss
            case RunEnded():
                assert_type(event.cause, str)
    end: RunEnded = run.wait(timeout=1.5, check=True)
    assert end.status == 0 and orchestrator.open(run.id).ended
    answers: dict[str, HostAnswer] = orchestrator.execute(["uptime"], only="gpu-01")
    return loss if orchestrator.preflight().good and answers else None


orchestrator.launch(["x.py"], hosst="hosts.toml")
orchestrator.launch(["x.py"], max_restarts="3")
LaunchRequest(inventory=Inventory(()), command="x.py")
LaunchRequest(command=("x.py",))
orchestrator.nothing()
"""


def test_the_api_type_checks_in_a_typed_program(tmp_path: Path) -> None:
    (tmp_path / "consumer.py").write_text(CONSUMER)
    options = ("--strict", "--follow-imports=silent", "--no-incremental", "--config-file=")
    environ = {**os.environ, "MYPYPATH": str(ROOT)}
    done = called([sys.executable, "-m", "mypy", *options, "consumer.py"], cwd=tmp_path, env=environ)
    mistakes = [line for line in done.stdout.splitlines() if "error:" in line]
    assert len(mistakes) == 5, done.stdout
    for word, mistake in zip(
        ("hosst", "max_restarts", "command", "inventory", "nothing"), mistakes, strict=True
    ):
        assert word in mistake


STANDARD = sysconfig.get_path("stdlib")


def interrupted(call: Callable[[], object], at: tuple[str, int] | None = None) -> list[tuple[str, int]]:
    """Call with a KeyboardInterrupt where Python first reaches a line; return the lines it reached.

    The standard library is excluded: tracing can raise where no signal would, with a lock held (functools).
    """
    seen: dict[tuple[str, int], None] = {}

    def trace(frame: FrameType, event: str, _value: object) -> Any:
        if event == "line":
            line = (frame.f_code.co_filename, frame.f_lineno)
            seen[line] = None
            if line == at:
                sys.settrace(None)
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        assert at is not None
    finally:
        sys.settrace(before)
    return [line for line in seen if not line[0].startswith((STANDARD, "<frozen"))]


def held() -> list[str]:
    """Return locks and FIFOs of runs that this process has open."""
    links = (f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd"))
    paths = [os.readlink(link) for link in links if os.path.lexists(link)]
    return [path for path in paths if path.endswith(("keeper.lock", "/control"))]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # for git, within Popen
def test_an_interrupt_at_any_line_of_a_launch_leaves_no_half_created_run(folder: Path) -> None:
    """At each line that creates a run, and at a sample of those that plan it (EVERY_LINE: at all)."""
    done: set[str] = set()
    before = held()  # from other tests in this process

    def check() -> None:
        assert held() == before
        assert not any((folder.parent / "state" / "orchestrate" / "runs").glob(".new/*"))
        for run in runs():
            if run.run not in done:
                done.add(run.run)
                handle = orchestrator.open(run.run)
                assert run.has_keeper() or handle.ended is not None, run
                handle.stop(now=True)

    def begin() -> object:
        return start("sleep", "600", hosts="hosts.toml")

    def look() -> object:
        return next(orchestrator.open().stamped())

    begin()  # all imports are done
    for at in interrupted(look):
        interrupted(look, at)
        assert held() == before
    lines = interrupted(begin)
    check()
    first = next(place for place, (file, _) in enumerate(lines) if file.endswith("orchestrator/unbroken.py"))
    every = "EVERY_LINE" in os.environ
    for at in lines if every else (*lines[: first - 20 : 25], *lines[first - 20 :]):
        interrupted(begin, at)
        check()
    assert len(done) > 3


def test_the_text_of_an_error_includes_all_its_parts() -> None:
    """A notebook shows nothing else."""
    with pytest.raises(orchestrator.UsageError) as raised:
        orchestrator.launch(["trian.py"])
    assert str(raised.value) == "\n  ".join(
        [raised.value.what, f"why: {raised.value.why}", f"try: {raised.value.hint}"]
    )
    assert str(orchestrator.HostError("gpu-02", "refused", kind="", why="a\nb")) == (
        "gpu-02: refused\n  why: a\n    b"
    )
