"""Programs that differ by role: each task's program, its end, and errors before the start."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import orchestrator
from orchestrator.events import LogLine, TaskExited
from tests.local.here import inventory
from tests.verbs import call

WORKER = """
import os, socket
while True:
    try:
        peer = socket.create_connection(os.environ["ORCHESTRATE_SERVICE"].rsplit(":", 1))
        break
    except ConnectionRefusedError:
        pass
print(os.environ["ORCHESTRATE_ROLE"], os.environ["ORCHESTRATE_SIZE"], peer.recv(9).decode())
open(os.environ["CHECKPOINT"], "w").close()
"""
EVALUATOR = """
import os, sys, time
while not os.path.exists(os.environ["CHECKPOINT"]):
    time.sleep(0.02)
print(os.environ["ORCHESTRATE_ROLE"], "evaluates", *sys.argv[1:])
"""
SERVICE = """
import os, socket
host, port = os.environ["ORCHESTRATE_HOSTS"].split(",")[int(os.environ["ORCHESTRATE_RANK"])].rsplit(":", 1)
with socket.create_server((host, int(port))) as server:
    while True:
        server.accept()[0].send(b"data")
"""
ROLES = """
[role.evaluator]
command = "evaluate.py --once"
[job]
framework = "none"
evaluator_timeout = 60
"""
PROGRAMS = {"train.py": WORKER, "evaluate.py": EVALUATOR, "serve.py": SERVICE}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Four hosts that are this machine, two of which train, with a program for each role."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "code").mkdir()
    monkeypatch.chdir(tmp_path / "code")
    for name, text in PROGRAMS.items():
        Path(name).write_text(text)
    with inventory(tmp_path, "a", "b", "watcher", "server") as hosts:
        watcher, server = 'role = "evaluator"\n', 'role = "service"\ncommand = "serve.py"\n'
        text = hosts.replace('"watcher"\n', f'"watcher"\n{watcher}').replace(
            '"server"\n', f'"server"\n{server}'
        )
        Path("hosts.toml").write_text(ROLES + text)
        yield tmp_path


def launched(folder: Path, **options: object) -> orchestrator.RunHandle:
    env = {"CHECKPOINT": str(folder / "checkpoint")}
    given = {"command": ["train.py"], "env": env, "preflight": False, "validate": False, **options}
    run = orchestrator.launch(**given)  # type: ignore[arg-type]
    assert run.wait(check=True).status == 0
    return run


def printed(run: orchestrator.RunHandle) -> set[tuple[str, str]]:
    return {(event.task, event.text) for event in run.events() if isinstance(event, LogLine)}


OUTPUT = {
    ("worker/0", "worker 2 data"),
    ("worker/1", "worker 2 data"),
    ("evaluator/0", "evaluator evaluates --once"),
}


def test_each_role_runs_its_program_and_a_replay_does_too(folder: Path) -> None:
    run = launched(folder)
    assert printed(run) == OUTPUT
    assert {"watcher: evaluate.py --once", "server: serve.py"} <= {*run._folder.read_plan().notes}
    ends = {event.task: event for event in run.events() if isinstance(event, TaskExited)}
    assert [ends[task].stopped for task in ("worker/0", "evaluator/0", "service/0")] == [False, False, True]

    text = Path("hosts.toml").read_text()
    Path("hosts.toml").write_text(text.replace("evaluate.py --once", "evaluate.py --twice"))
    other = launched(folder)
    assert ("evaluator/0", "evaluator evaluates --twice") in printed(other)
    found = json.loads(call(["runs", "--json", "--diff", run.id, other.id], Path.cwd(), folder / "state").out)
    differing = {one["what"]: (one["a"], one["b"]) for one in found["differences"]}
    assert differing["command of watcher"] == ("evaluate.py --once", "evaluate.py --twice")

    again = orchestrator.launch(replay=run.id)
    assert again.wait(check=True).status == 0
    assert printed(again) == OUTPUT


@pytest.mark.parametrize(
    ("old", "new", "words", "texts"),
    [
        (
            "evaluate.py --once",
            "evaluat.py",
            ["train.py"],
            ["the command of watcher", "evaluat.py does not exist"],
        ),
        (
            "evaluate.py --once",
            "./serve.py | tee",
            ["train.py"],
            ["[role.evaluator], command: contains", "no shell"],
        ),
        ("evaluate.py", "evaluate.py", [], ["there is no command for a,b", "server,watcher have one"]),
        ('role = "service"\ncommand = "serve.py"', 'role = "service"', ["train.py"], ["server is a service"]),
        ("[role.evaluator]", "[role.evaluater]", ["train.py"], ["did you mean [role.evaluator]"]),
        ("[role.evaluator]", "[role.chief]", ["train.py"], ["[role.chief]: applies to no host"]),
    ],
)
def test_a_wrong_command_is_refused_before_anything_starts(
    folder: Path, old: str, new: str, words: list[str], texts: list[str]
) -> None:
    Path("hosts.toml").write_text(Path("hosts.toml").read_text().replace(old, new))
    done = call(["launch", *(["--", *words] if words else [])], Path.cwd(), folder / "state")
    assert done.status == 2, done.err
    assert all(text in done.err for text in texts), done.err
    assert not (folder / "state" / "orchestrate" / "runs").exists()


def test_a_broken_script_of_a_role_is_reported_with_a_fix(folder: Path) -> None:
    Path("evaluate.py").write_text("def f(:")
    done = call(["launch", "--", "train.py"], Path.cwd(), folder / "state")
    assert "error: the command of watcher: evaluate.py, line 1" in done.err
    Path("evaluate.sh").write_text("exit 0")
    text = Path("hosts.toml").read_text().replace("evaluate.py --once", "evaluate.sh --once")
    Path("hosts.toml").write_text(text)
    done = call(["launch", "--", "train.py"], Path.cwd(), folder / "state")
    assert 'try: `command = "bash evaluate.sh --once"`' in done.err


def test_dry_run_and_export_show_the_program_of_each_role(folder: Path) -> None:
    shown = call(["launch", "--dry-run", "--", "train.py"], Path.cwd(), folder / "state")
    assert [line.split(None, 1)[1] for line in shown.out.splitlines() if line.startswith("  run ")] == [
        "python3 train.py",
        "python3 train.py",
        "python3 evaluate.py --once",
        "python3 serve.py",
    ]
    assert "evaluator/0 after 60 s at most" in shown.out
    made = call(["export", "--plain", "slurm", "--", "train.py"], Path.cwd(), folder / "state")
    assert "--roles worker=2,evaluator=1,service=1" in made.out, made.err
    assert "service) exec python3 serve.py; esac" in made.out
    refused = call(["export", "slurm", "--", "train.py"], Path.cwd(), folder / "state")
    assert "the nodes of a job have no roles" in refused.err
