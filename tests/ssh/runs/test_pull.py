"""Training output is copied to the controller without overwriting the user's files."""

from pathlib import Path

import pytest

from orchestrator.errors import ExitStatus
from orchestrator.sync.listing import list_files
from tests.ssh.runs.desk import Desk, Viewer

TRAIN = """
import json, os, pathlib
index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
for step in (1, 2):
    folder = pathlib.Path("checkpoints", f"step {step}")
    folder.mkdir(parents=True)
    (folder / "weights").write_bytes(bytes([index + 1]) * 100_000 * step)
os.symlink("step 2", "checkpoints/latest")
pathlib.Path("logs").mkdir()
pathlib.Path("logs/events").write_text(f"of {index}")
pathlib.Path("settings.json").write_text("changed by the training")
print("done")
"""


@pytest.fixture
def trained(desk: Desk) -> str:
    """A finished run that wrote different output on each host."""
    desk.script("train.py", TRAIN)
    desk.script("settings.json", "{}")
    (desk.project / "package").mkdir()
    desk.script("package/model.py", "x = 1\n")
    desk.launch("--", "train.py").ended()
    return desk.run_id()


def pull(desk: Desk, *words: str) -> Viewer:
    viewer = desk.start("pull", *words, "--hosts", str(desk.hosts))
    viewer.wait()
    return viewer


def files(folder: Path) -> set[str]:
    found = (path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir())
    return {str(path.relative_to(folder)) for path in found} - {".orchestrate-pull.json", ".gitignore"}


WRITTEN = {
    "checkpoints/step 1/weights",
    "checkpoints/step 2/weights",
    "checkpoints/latest",
    "logs/events",
    "settings.json",
}


def test_pull_copies_output_and_repeats_only_what_changed(desk: Desk, trained: str) -> None:
    first = pull(desk)
    assert first.process.returncode == ExitStatus.OK, first.stderr
    assert first.stdout.strip() == trained
    folder = desk.project / trained
    assert files(folder) == WRITTEN  # not the code
    assert not [path for path in list_files(desk.project).paths if path.startswith(trained)]
    assert not (folder / "package").exists()
    assert (folder / "checkpoints" / "latest").readlink() == Path("step 2")
    work = desk.node_work(desk.cluster.hosts[0], trained)
    (work / "logs" / "events").write_text("of 0, and more")
    again = pull(desk)
    assert "1 file, 14 B in" in again.stderr
    assert f"{len(WRITTEN) - 1} were here already" in again.stderr
    assert (folder / "logs" / "events").read_text() == "of 0, and more"


def test_no_file_of_the_user_is_overwritten(desk: Desk, trained: str) -> None:
    mine = desk.project / "mine"
    (mine / "logs").mkdir(parents=True)
    (mine / "logs" / "events").write_text("my own")
    (mine / "checkpoints").symlink_to(desk.project)
    refused = pull(desk, trained, "--to", "mine")
    assert refused.process.returncode == ExitStatus.USAGE
    assert "error: will not overwrite what is in mine" in refused.stderr
    assert "checkpoints, logs/events" in refused.stderr
    assert (mine / "logs" / "events").read_text() == "my own"
    assert files(mine) == {"logs/events", "checkpoints"}
    assert pull(desk, trained, "checkpoints", "--to", "other").process.returncode == ExitStatus.OK
    (desk.project / "other" / "checkpoints" / "step 1" / "weights").write_text("I changed it")
    assert "checkpoints/step 1/weights" in pull(desk, trained, "--to", "other").stderr


def test_pull_can_copy_a_part_from_any_host(desk: Desk, trained: str) -> None:
    pull(desk, trained, "*/step 2", "--from", "worker/1", "--to", "one")
    assert files(desk.project / "one") == {"checkpoints/step 2/weights"}
    assert (desk.project / "one" / "checkpoints" / "step 2" / "weights").read_bytes() == b"\2" * 200_000
    everywhere = pull(desk, trained, "logs", "--all", "--to", "all")
    assert everywhere.process.returncode == ExitStatus.OK
    names = [host.name for host in desk.cluster.hosts]
    assert [(desk.project / "all" / name / "logs" / "events").read_text() for name in names] == [
        "of 0",
        "of 1",
    ]
    assert pull(desk, trained, ".", "--to", "dot").process.returncode == ExitStatus.OK
    assert files(desk.project / "dot") == WRITTEN
    code = pull(desk, trained, "train.py", "package", "--to", "code")
    assert code.process.returncode == ExitStatus.OK
    assert files(desk.project / "code") == {"train.py", "package/model.py"}
    outside = desk.folder / "backup"
    outside.mkdir()
    (outside / "__0_0.distcp").write_text("kept elsewhere")
    for shard, lacks in ((0, False), (1, True)):
        (outside / ".metadata").write_bytes(b"\x8c\x0c__%d_0.distcp\x94" % shard)
        more = pull(desk, trained, str(outside), "checkpoints/latest", "--to", "more")
        assert ("lacks backup/__1_0.distcp, a part of a checkpoint: --all fetches" in more.stderr) == lacks
    held = {"backup/.metadata", "backup/__0_0.distcp", "checkpoints/latest/weights"}
    assert files(desk.project / "more") == held


MISTAKES = [
    (["RUN", "chekpoints"], "holds checkpoints, logs, "),
    (["RUN", "--from", "worker/7"], "it has worker/0 ("),
    (["RUN", ""], "error: an argument of orchestrate pull is empty"),
    (["RUN", "logs", "--to", "train.py"], "error: train.py is not a folder"),
    (["RUN", "logs", "--all", "--to", "train.py"], "error: train.py is not a folder"),
    (["RUN", "../../.."], "leads out of the run's work folder"),
]


def test_mistakes_are_reported_with_the_available_choices(desk: Desk, trained: str) -> None:
    for words, message in MISTAKES:
        refused = pull(desk, *[word.replace("RUN", trained) for word in words])
        assert refused.process.returncode == ExitStatus.USAGE, refused.stderr
        assert message.replace("RUN", trained) in refused.stderr
        assert "Traceback" not in refused.stderr
        assert not (desk.project / trained).exists()
