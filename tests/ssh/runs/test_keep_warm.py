"""Standbys within a launch, before a restart, and for the next launch."""

from pathlib import Path

import pytest

from orchestrator.errors import ExitStatus
from tests.ssh.runs.desk import Desk, until

PROGRAM = "import torch\nimport os\nprint('I am', os.getpid(), {mark!r}, torch.MARK)\n"


@pytest.fixture
def torch(desk: Desk) -> tuple[str, ...]:
    """Return options of launches whose programs import a one-line fake framework."""
    folder = desk.folder / "packages"
    folder.mkdir()
    (folder / "torch.py").write_text("MARK = 'imported'\n")
    desk.timings = {"ahead": 0.1}
    return ("--skip-preflight", "--no-validate", "--env", f"PYTHONPATH={folder}")


def waiting(desk: Desk) -> set[int]:
    """Return the pids of standbys that have finished their imports."""
    states = (Path(host.state or "") for host in desk.cluster.hosts)
    folders = [folder.parent for state in states for folder in state.glob("standby/*/ready")]
    return {int((folder / "leader").read_text()) for folder in folders}


def pids(output: str) -> set[int]:
    return {int(line.partition("I am ")[2].split()[0]) for line in output.splitlines() if "I am" in line}


def test_relaunching_an_edited_program_reuses_its_imports(desk: Desk, torch: tuple[str, ...]) -> None:
    count = len(desk.cluster.hosts)
    warm = ("--hosts", str(desk.hosts), "--keep-warm", "10m", *torch)
    program = desk.script("train.py", PROGRAM.format(mark="first"))
    viewer = desk.start("launch", *warm, "--", program).ended()
    assert f"kept warm for 10 min: {count} tasks on " in viewer.stderr
    until("all have imported", lambda: len(waiting(desk)) == count)
    kept = waiting(desk)
    shown = desk.start("status", "--machines", "--hosts", str(desk.hosts)).ended()
    assert shown.stdout.count("1 task kept warm (") == count
    desk.script("train.py", PROGRAM.format(mark="second"))
    viewer = desk.start("launch", *warm, "--", program).ended()
    assert viewer.stdout.count("second imported") == count
    assert pids(viewer.stdout) == kept
    desk.script("train.py", "print('before')\nimport torch")
    viewer = desk.start("launch", *warm, "--", "train.py").ended()
    assert "nothing is kept warm: line 1 of train.py runs before its imports" in viewer.stderr
    until("all of the second have imported", lambda: len(waiting(desk)) == count)
    cleaned = desk.start("clean", "--hosts", str(desk.hosts)).ended()
    assert "kept warm, ended" in cleaned.stdout
    assert not waiting(desk)


def test_a_restart_uses_standbys_started_during_the_attempt(desk: Desk, torch: tuple[str, ...]) -> None:
    go = desk.folder / "go"
    lines = [
        "import torch",
        "import os, time",
        "print('I am', os.getpid(), 'loss: 0.5', flush=True)",
        "while os.environ['ORCHESTRATE_ATTEMPT'] == '1':",
        f"    assert not os.path.exists({str(go)!r})",
        "    time.sleep(0.01)",
    ]
    program = desk.script("train.py", "\n".join(lines))
    viewer = desk.start("launch", "--hosts", str(desk.hosts), "--max-restarts", "1", *torch, "--", program)
    until("the next tasks have imported", lambda: len(waiting(desk)) == len(desk.cluster.hosts))
    kept = waiting(desk)
    go.touch()
    assert viewer.wait() == ExitStatus.OK, viewer.stderr
    assert kept <= pids(viewer.stdout)
    until("nothing is left", lambda: not waiting(desk))
