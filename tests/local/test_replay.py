"""`launch --replay` repeats a run, or reports what cannot be reproduced."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

import orchestrator
from orchestrator.events import LogLine
from orchestrator.model import EnvironmentPlan
from orchestrator.store.known import write_lock
from tests.local.here import inventory
from tests.verbs import call

GIT = ("git", "-c", "user.name=a", "-c", "user.email=a@example.org")
PROGRAM = """
import os, pathlib
print(os.environ['GREETING'], pathlib.Path(os.environ['ORCHESTRATE_DATA'], 'set').read_text())
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A project with data, and two hosts that are this machine."""
    (tmp_path / "code").mkdir()
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "set").write_text("numbers")
    (tmp_path / "code" / "train.py").write_text(PROGRAM)
    data = f'[data]\npaths = ["{tmp_path}/data/set"]\n[job]\nframework = "none"\nsecrets = ["TOKEN"]\n'
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("TOKEN", "secret")
    monkeypatch.chdir(tmp_path / "code")
    with inventory(tmp_path, "here", "there") as hosts:
        (tmp_path / "code" / "hosts.toml").write_text(data + hosts)
        for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "one"]):
            subprocess.run([*GIT, *words], check=True)
        (tmp_path / "code" / "notes").write_text("not committed")
        yield tmp_path


def lines(run: orchestrator.RunHandle) -> list[str]:
    texts = [event.text for event in run.events() if isinstance(event, LogLine)]
    assert run.wait(check=True).status == 0
    return texts


def first() -> orchestrator.RunHandle:
    run = orchestrator.launch(
        ["train.py"], preflight=False, validate=False, env={"GREETING": "hello"}, name="night"
    )
    assert lines(run) == ["hello numbers"] * 2
    return run


def test_a_run_can_be_replayed_after_its_code_was_edited(folder: Path) -> None:
    run = first()
    (folder / "code" / "train.py").write_text("raise SystemExit('another program')")
    (folder / "code" / "more.py").write_text("")
    again = orchestrator.launch(replay="night")
    assert lines(again) == ["hello numbers"] * 2
    assert again._folder.read_code() == run._folder.read_code()  # including git's description
    old, new = (one._folder.read_plan() for one in (run, again))
    assert (new.tree, new.data_digest, new.name) == (old.tree, old.data_digest, "night")
    assert [task.argv for task in new.tasks] == [task.argv for task in old.tasks]

    shutil.rmtree(folder / "here" / "work" / "trees")
    shutil.rmtree(folder / "there" / "work" / "trees")
    kept = orchestrator.launch(replay=run.id)  # the code fetched by an earlier replay
    assert lines(kept) == ["hello numbers"] * 2
    shown = call(["launch", "--replay", run.id, "--dry-run"], folder / "code", folder / "state")
    assert (shown.status, "train.py" in shown.out) == (0, True), shown.err

    asked = orchestrator.launch(replay=again.id, other_ports=True)  # from the current hosts
    assert lines(asked) == ["hello numbers"] * 2
    plan = asked._folder.read_plan()
    assert plan.admission.other_ports
    assert [note for note in plan.notes if "replay" in note] == [f"a replay of run {again.id}"]

    (folder / "code" / "train.py").write_text(PROGRAM)
    after = orchestrator.launch(["train.py"], continues=asked.id, validate=False, env={"GREETING": "hello"})
    assert lines(after) == ["hello numbers"] * 2
    anew = orchestrator.launch(replay=after.id)
    assert lines(anew) == ["hello numbers"] * 2
    without = f"without the files of run {asked.id} that it continued"
    assert f"a replay of run {after.id}, {without}" in anew._folder.read_plan().notes


def test_all_that_is_not_reproducible_is_listed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = first()
    (folder / "code" / "train.py").write_text("print('edited')")
    (folder / "data" / "set").write_text("other numbers")
    monkeypatch.delenv("TOKEN")
    plan = run._folder.read_plan()
    run._folder.write_plan(replace(plan, environment=EnvironmentPlan("0123456789abcdef")))
    write_lock("0123456789abcdef", "idna==3.7")  # a damaged one
    for name in ("here", "there"):
        shutil.rmtree(folder / name / "work" / "trees")
    with pytest.raises(orchestrator.UsageError) as caught:
        orchestrator.launch(replay=run.id, only="here")
    reasons = caught.value.why.split("\n")
    assert [line.split(":")[0] for line in reasons] == [
        *("its hosts", "its code", "its packages", "its data", "its secrets")
    ]
    assert reasons[0].endswith("worker/[0-1], and would be worker/0")
    table = (folder / "code" / "hosts.toml").read_text()
    (folder / "code" / "hosts.toml").write_text(table.replace('"local"', '"no.invalid"', 1))
    with pytest.raises(orchestrator.UsageError) as caught:
        orchestrator.launch(replay=run.id)
    assert "here could not be reached" in caught.value.why
    assert orchestrator.open() == run  # nothing was started

    for options in ({"env": {"A": "b"}}, {"max_restarts": 0}, {"preflight": False}):
        with pytest.raises(orchestrator.UsageError, match="--replay"):
            orchestrator.launch(replay=run.id, **options)
    with pytest.raises(orchestrator.UsageError):
        orchestrator.launch(["train.py"], replay=run.id)
