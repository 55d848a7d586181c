"""What a job starts with is looked for on every host before anything is sent."""

from __future__ import annotations

import pytest

from orchestrator.errors import ExitStatus
from tests.ssh.runs.desk import Desk


def nothing_was_sent(desk: Desk) -> bool:
    return not desk.named("TreeSynced") and not desk.named("TaskStarted")


def test_a_program_that_no_host_has(desk: Desk) -> None:
    viewer = desk.launch("--", "trainer", "--fast")
    assert viewer.wait() == ExitStatus.CLUSTER, viewer.stderr
    assert ": has no program trainer" in viewer.stderr
    assert "the job is `trainer --fast`" in viewer.stderr
    assert nothing_was_sent(desk)


def test_a_script_of_the_hosts_that_none_of_them_has(desk: Desk) -> None:
    desk.script("train.py", "print('trained')\n")
    viewer = desk.launch("--", "python", "-u", "/nowhere/train.py", "--lr", "0 1")
    assert viewer.wait() == ExitStatus.CLUSTER, viewer.stderr
    assert ": has no /nowhere/train.py" in viewer.stderr
    assert "try: write train.py: it lies there" in viewer.stderr
    assert nothing_was_sent(desk)


def test_a_setup_may_know_the_program(desk: Desk, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("bin")
    (folder / "trainer").write_text("#!/bin/sh\necho trained\n")
    (folder / "trainer").chmod(0o755)
    desk.write_hosts(desk.cluster.hosts, job=f"[job]\nsetup = 'export PATH={folder}:$PATH'\n")
    viewer = desk.launch("--", "trainer")
    assert viewer.wait() == ExitStatus.OK, viewer.stderr


def test_a_path_that_only_this_machine_has_is_noted(desk: Desk) -> None:
    here, there = desk.folder / "here", desk.folder / "there"
    here.symlink_to("/proc/self/cwd/only-here")  # whoever stands in the folder of the code sees something
    there.mkdir()
    desk.script("only-here", "")
    viewer = desk.launch("--", "true", "--data", str(here), f"--more={there}", "--out", str(here))
    assert viewer.wait() == ExitStatus.OK, viewer.stderr
    assert viewer.stderr.count("note: O203") == 1
    assert f"the argument {here} exists on the machine of the launch, and not on " in viewer.stderr
    assert "$ORCHESTRATE_DATA/here (docs/lint.md#o203)" in viewer.stderr


def test_a_path_of_the_program_that_only_this_machine_has_is_noted(desk: Desk) -> None:
    home = desk.folder / "home"
    (home / "sets").mkdir(parents=True)
    desk.script("train.py", "import os\nDATA = os.path.expanduser('~/sets')\nOTHER = '~/nothing'\n")
    viewer = desk.launch("--", "train.py", HOME=str(home))
    assert viewer.wait() == ExitStatus.OK, viewer.stderr
    assert viewer.stderr.count("note: O203") == 1
    assert "O203 train.py, line 2: ~/sets exists on the machine of the launch, and not on " in viewer.stderr
    assert "$ORCHESTRATE_DATA/sets (docs/lint.md#o203)" in viewer.stderr
