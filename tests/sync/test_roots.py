"""The folder that counts as the code, and folders that never do."""

import json
import os
from pathlib import Path

import pytest

from orchestrator.cli.main import main
from orchestrator.errors import UsageError
from orchestrator.sync.listing import CodeRoot, find_root, list_files
from tests.sync.test_listing import git


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "users" / "ada"
    (home / "project" / "train").mkdir(parents=True)
    (home / ".local" / "state" / "orchestrate").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    return home


def state(home: Path) -> Path:
    return home / ".local" / "state" / "orchestrate" / "runs"


@pytest.mark.parametrize("place", [".", "../..", ".local/state/orchestrate", "/", "/etc", "/tmp", "/home"])
def test_home_and_system_folders_and_parents_of_our_state_are_refused(home: Path, place: str) -> None:
    with pytest.raises(UsageError, match="cannot be sent as code") as caught:
        find_root(home / place, None, state(home))
    assert caught.value.why
    assert "`mkdir`" in caught.value.hint


def test_in_a_repository_its_top_is_the_root(home: Path) -> None:
    git(home / "project", "init", "-q")
    expected = CodeRoot(home / "project", "train", from_git=True)
    assert find_root(home / "project" / "train", None, state(home)) == expected


def test_a_folder_no_plan_can_name_is_refused_unless_sent_alone(home: Path) -> None:
    git(home / "project", "init", "-q")
    here = home / "project" / os.fsdecode(b"b\xff")
    here.mkdir()
    with pytest.raises(UsageError, match="is not UTF-8"):
        find_root(here, None, state(home))
    assert find_root(here, ".", state(home)) == CodeRoot(here)


def test_a_folder_ignored_by_its_repository_is_its_own_root(home: Path) -> None:
    git(home / "project", "init", "-q")
    (home / "project" / ".gitignore").write_text("train/\n")
    here = home / "project" / "train"
    assert find_root(here, None, state(home)) == CodeRoot(here)


def test_a_home_folder_under_git_is_not_sent(home: Path) -> None:
    git(home, "init", "-q")
    assert find_root(home / "project", None, state(home)) == CodeRoot(home / "project")


def test_a_named_folder_is_the_root(home: Path) -> None:
    git(home / "project", "init", "-q")
    here = home / "project" / "train"
    (home / "other").mkdir(exist_ok=True)
    assert find_root(here, ".", state(home)) == CodeRoot(here)
    assert find_root(here, "..", state(home)) == CodeRoot(home / "project", "train")
    with pytest.raises(UsageError, match="does not hold"):
        find_root(here, "../../other", state(home))
    with pytest.raises(UsageError, match="there is no folder"):
        find_root(here, "../nothing", state(home))
    with pytest.raises(UsageError, match="cannot be sent as code"):
        find_root(here, "~", state(home))


def test_a_repository_git_cannot_open_is_not_a_plain_folder(tmp_path: Path) -> None:
    """Ignored data and secrets would be sent."""
    project = tmp_path / "pro ject"
    (project / "sub").mkdir(parents=True)
    (project / ".git").write_text("gitdir: /nowhere\n")
    for ask in (lambda: find_root(project / "sub", None, tmp_path / "state"), lambda: list_files(project)):
        with pytest.raises(UsageError, match="git does not open the repository") as caught:
            ask()
        assert "not a git repository: /nowhere" in caught.value.why
        assert caught.value.hint.startswith(f"`git -C '{project}")


@pytest.mark.parametrize("cloned", [True, False])
def test_without_git_a_repository_is_a_plain_folder_with_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, cloned: bool
) -> None:
    """A cron job has a short PATH, and a slim image no git."""
    (tmp_path / "sub").mkdir()
    if cloned:
        (tmp_path / ".git").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_root(tmp_path / "sub", None, tmp_path / "a" / "state").path == tmp_path / "sub"
    listing = list_files(tmp_path / "sub")
    assert (listing.paths, bool(listing.notes)) == ([], cloned)


def test_names_that_are_not_utf8_are_listed(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    project = home / "project"
    folder = project / os.fsdecode(b"caf\xe9")
    folder.mkdir(parents=True)
    (project / "hosts.toml").write_text('[[host]]\nname = "a"\nssh = "localhost"\n')
    for place in (project, folder):
        (place / "t.py").write_text("print(1)\n")
    monkeypatch.chdir(project)
    assert main(["launch", "--dry-run", "--json", "--", "t.py"]) == 0
    names = [row["path"] for row in json.loads(capsys.readouterr().out)["code"]["files"]]
    assert len(names) == 3
