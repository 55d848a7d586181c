"""The files that belong to a tree, with git and without."""

import hashlib
import os
import socket
import subprocess
from collections.abc import Callable
from io import FileIO
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import UsageError
from orchestrator.sync import contents, listing
from orchestrator.sync.contents import Contents
from orchestrator.sync.listing import git_state, list_files
from tests.sync.trees import read_tree


def write(root: Path, *paths: str) -> None:
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(f"content of {path}")


def git(root: Path, *words: str) -> None:
    who = ["-c", "user.name=t", "-c", "user.email=t@example", "-c", "protocol.file.allow=always"]
    subprocess.run(["git", *who, *words], cwd=root, check=True, capture_output=True)


def paths(tree: Contents) -> list[str]:
    return [str(row[0]) for row in tree.manifest.rows]


def test_a_file_that_grows_while_it_is_read_has_one_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log next to the code used to get two for its 8 bytes, so that every host refused the manifest."""
    log = tmp_path / "run.log"
    log.write_text("a line\n\n")
    real = hashlib.sha256

    def then_grow(data: bytes) -> Any:
        with log.open("a") as file:
            file.write("more")
        return real(data)

    monkeypatch.setattr(hashlib, "sha256", then_grow)
    assert read_tree(tmp_path).manifest.rows == [["run.log", 0o644, 8, real(b"a line\n\n").hexdigest()]]


@pytest.fixture(params=["git", "plain"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    root = tmp_path / "a'; echo foo"
    root.mkdir()
    if request.param == "git":
        git(root, "init", "-q")
    return root


def lines(*text: str) -> str:
    return "\n".join(text) + "\n"


RULES: list[tuple[str, dict[str, str], list[str], list[str], list[str]]] = [
    ("a folder", {".gitignore": "data/\n"}, [], ["a.py"], ["data/x", "d/data/y/z"]),
    ("anchored", {".gitignore": "/data\n"}, [], ["d/data/y"], ["data/x"]),
    ("negated", {".gitignore": lines("*.csv", "!keep.csv")}, [], ["keep.csv"], ["a.csv", "d/b.csv"]),
    ("a folder of its own word", {"d/.gitignore": "*\n"}, [], ["a"], ["d/x"]),
    ("ours", {".orchestrateignore": "*.h5\n"}, [], ["a.py"], ["m.h5", "d/m.h5"]),
    ("ours with a page break", {".orchestrateignore": "# models\x0cm.h5\r\nx\n"}, [], ["m.h5"], ["x"]),
    ("ours of Notepad", {".orchestrateignore": "\ufeff*.h5\r\n"}, [], ["a.py"], ["m.h5"]),
    ("of Notepad", {".gitignore": "\ufeff*.h5\r\n"}, [], ["a.py"], ["m.h5"]),
    ("the job's", {}, ["*.tmp", "/out/"], ["a.py", "d/out/x"], ["b.tmp", "out/y"]),
    ("no folder of an excluded folder", {".gitignore": lines("d/", "!d/keep")}, [], ["a"], ["d/keep"]),
]


@pytest.mark.parametrize(
    ("ignore_files", "job", "kept", "left_out"), [rule[1:] for rule in RULES], ids=[rule[0] for rule in RULES]
)
def test_ignore_rules(
    root: Path, ignore_files: dict[str, str], job: list[str], kept: list[str], left_out: list[str]
) -> None:
    write(root, *kept, *left_out)
    for name, text in ignore_files.items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(text)
    files = {name for name, text in ignore_files.items() if text != "*\n"}
    assert paths(read_tree(root, job)) == sorted([*kept, *files])


def test_odd_names_are_listed_unchanged(root: Path) -> None:
    odd = ["ü.py", "two words", "it's", 'a"b', "new\nline", "back\\slash", "-dash", "*", "[x]", "d\x01e"]
    write(root, *odd)
    (root / os.fsdecode(b"latin-\xe9")).write_text("x")
    assert paths(read_tree(root)) == sorted([*odd, os.fsdecode(b"latin-\xe9")])


def test_links_modes_and_special_files(root: Path) -> None:
    write(root, "a.py", "run.sh")
    (root / "run.sh").chmod(0o700)
    (root / "link").symlink_to("a.py")
    (root / "dangling").symlink_to("/no/such/../place")
    (root / "folder").mkdir()
    (root / "to-folder").symlink_to("folder")
    os.mkfifo(root / "pipe")
    with socket.socket(socket.AF_UNIX) as sock:
        here = Path.cwd()
        os.chdir(root)  # a socket's path must be short
        try:
            sock.bind("sock")
        finally:
            os.chdir(here)
        tree = read_tree(root)
    found = {row[0]: list(row[1:]) for row in tree.manifest.rows}
    assert sorted(found) == ["a.py", "dangling", "link", "run.sh", "to-folder"]
    assert found["dangling"] == ["/no/such/../place"]
    assert [path for path, row in found.items() if row[0] == 0o755] == ["run.sh"]


def test_an_unreadable_file_is_an_error(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(root, "a.py", "secret.py")

    def refuse(path: str) -> FileIO:
        if path.endswith("/secret.py"):  # root can read everything
            raise PermissionError(13, "Permission denied")
        return FileIO(path)

    monkeypatch.setattr(contents, "FileIO", refuse)
    with pytest.raises(UsageError) as caught:
        read_tree(root)
    assert caught.value.what == "cannot read secret.py"
    assert caught.value.why == "Permission denied"
    assert ".orchestrateignore" in caught.value.hint


def test_an_unreadable_file_is_an_error_before_a_run_waits_for_its_hosts(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(root, "a.py", "secret.py")
    monkeypatch.setattr(os, "access", lambda path, _: not path.endswith("secret.py"))
    with pytest.raises(UsageError, match=r"cannot read secret\.py"):
        list_files(root)


def test_an_unreadable_folder_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not an error of this machine, although the search for an environment's files hits it first."""
    write(tmp_path, "a.py", "private/b")

    def refusing(call: Callable[..., Any]) -> Callable[..., Any]:
        def refuse(path: Any, *given: Any, **more: Any) -> Any:
            if "private" in str(path):
                raise PermissionError(13, "Permission denied", str(path))
            return call(path, *given, **more)

        return refuse

    for name in ("stat", "scandir"):
        monkeypatch.setattr(os, name, refusing(getattr(os, name)))
    with pytest.raises(UsageError, match="cannot read private/"):
        list_files(tmp_path)


# --- git only ---


def test_the_git_description_of_the_code(root: Path) -> None:
    assert not any(git_state(root))  # no commit, or no git
    if (root / ".git").exists():
        (root / "a").write_text("1\n")
        git(root, "add", ".")
        git(root, "commit", "-qm", "a")
        git(root, "checkout", "-qb", "a\u3000b")
        (root / "a").write_text("2\n")
        commit, branch, diff = git_state(root)
        assert (len(commit), branch) == (40, "a\u3000b")
        assert diff.endswith("-1\n+2\n")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    root = tmp_path / "repository"
    root.mkdir()
    git(root, "init", "-q")
    return root


def commit(root: Path) -> None:
    git(root, "add", "-A", "-f")
    git(root, "commit", "-qm", "x")


def test_tracked_files_that_are_ignored_or_deleted(repository: Path) -> None:
    write(repository, "a.py", "tracked.log", "gone.py", "untracked-later")
    commit(repository)
    (repository / ".gitignore").write_text("*.log\n")
    (repository / "gone.py").unlink()
    write(repository, "new.py", "new.log")
    assert paths(read_tree(repository)) == [".gitignore", "a.py", "new.py", "tracked.log", "untracked-later"]


def test_git_settings_in_the_environment_apply(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container sets safe.directory there; a hook's GIT_DIR names a different repository."""
    write(repository, "a.py", "a.tmp")
    (tmp_path / "ignored").write_text("*.tmp\n")
    given = {"COUNT": "1", "KEY_0": "core.excludesFile", "VALUE_0": str(tmp_path / "ignored")}
    for name, value in given.items():
        monkeypatch.setenv(f"GIT_CONFIG_{name}", value)
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    assert paths(read_tree(repository)) == ["a.py"]


def test_submodules(repository: Path, tmp_path: Path) -> None:
    library = tmp_path / "library"
    library.mkdir()
    git(library, "init", "-q")
    write(library, "lib.py", "deep/x.py")
    commit(library)
    git(repository, "submodule", "add", "-q", str(library), "vendor/lib")
    write(repository, "vendor/lib/untracked.py")
    nested = repository / "nested"
    nested.mkdir()
    git(nested, "init", "-q")
    write(nested, "n.py")
    expected = [".gitmodules", "nested/n.py"]
    expected += [f"vendor/lib/{name}" for name in ("deep/x.py", "lib.py", "untracked.py")]
    assert paths(read_tree(repository)) == expected
    git(repository, "commit", "-qm", "x")
    git(repository, "submodule", "deinit", "-q", "-f", "vendor/lib")
    tree = read_tree(repository)
    assert paths(tree) == [".gitmodules", "nested/n.py"]
    assert "vendor/lib is a submodule that is not checked out" in tree.notes[0]


# --- digest ---

CHANGES: list[tuple[str, Callable[[Path], object], bool]] = [
    ("content", lambda root: (root / "a.py").write_text("other"), True),
    ("a new file", lambda root: (root / "c.py").write_text(""), True),
    ("the mode", lambda root: (root / "a.py").chmod(0o755), True),
    ("a name", lambda root: (root / "a.py").rename(root / "A.py"), True),
    ("only the time", lambda root: os.utime(root / "a.py", (1, 1)), False),
    ("an empty folder", lambda root: (root / "empty").mkdir(), False),
]


@pytest.mark.parametrize(
    ("change", "differs"), [change[1:] for change in CHANGES], ids=[change[0] for change in CHANGES]
)
def test_the_digest_tells_trees_apart(
    tmp_path: Path, change: Callable[[Path], object], *, differs: bool
) -> None:
    write(tmp_path, "a.py", "b")
    (tmp_path / "l").symlink_to("a.py")
    (tmp_path / "m").symlink_to("b")
    before = read_tree(tmp_path)
    change(tmp_path)
    after = read_tree(tmp_path)
    assert (before.digest != after.digest) is differs


def test_changes_since_the_tree_was_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.sync.contents._KEPT", 0)
    write(tmp_path, "same", "edited", "removed", "new-mode")
    tree = read_tree(tmp_path)
    assert tree.changed() == []
    (tmp_path / "edited").write_text("CONTENT OF EDITED"[: len("content of edited")])
    (tmp_path / "removed").unlink()
    (tmp_path / "new-mode").chmod(0o755)
    write(tmp_path, "added")  # not part of the tree, so no reason to fail
    assert tree.changed() == ["edited", "removed"]


@pytest.mark.parametrize(
    ("made", "most", "what"),
    [({"big.bin": 50 * 10**9}, 100_000, "10 GB"), ({"d/a": 1, "d/b": 1}, 2, "2 files")],
)
def test_oversized_trees_are_refused_before_they_are_read(
    root: Path, monkeypatch: pytest.MonkeyPatch, made: dict[str, int], most: int, what: str
) -> None:
    """A sparse file of 50 GB used to be read for minutes, and 200,000 files were listed completely."""
    monkeypatch.setattr(listing, "MOST_FILES", most)
    write(root, "train.py")
    for path, length in made.items():
        (root / path).parent.mkdir(exist_ok=True)
        with (root / path).open("wb") as file:
            file.truncate(length)
    with pytest.raises(UsageError, match=f"has more than {what}") as caught:
        list_files(root)
    assert next(iter(made)).partition("/")[0] in caught.value.why
    assert list_files(root, ["big.bin", "d"]).paths == ["train.py"]
