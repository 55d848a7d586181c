"""The state folder is ours alone and on a local disk, or it is refused with the fix."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orchestrator.node.base import paths
from orchestrator.node.base.fault import NodeError


def refused(path: Path) -> NodeError:
    with pytest.raises(NodeError) as caught:
        paths.open_root(str(path))
    assert caught.value.kind == "state"
    assert caught.value.hint
    return caught.value


def test_it_is_made_with_its_parents_for_the_owner_alone(tmp_path: Path) -> None:
    root = tmp_path / "deep" / "er" / "state"
    made = paths.open_root(str(root))
    assert root.stat().st_mode & 0o777 == 0o700
    assert made.root == str(root)
    assert paths.open_root(str(root)).runs() == []


def test_the_default_is_in_var_tmp_and_a_planted_link_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nobodys = 10**9 + os.getpid()  # tests of another clone plant theirs at the same time
    monkeypatch.setattr(os, "getuid", lambda: nobodys)
    planted = Path(f"/var/tmp/orchestrate-{nobodys}")
    planted.symlink_to(tmp_path)
    try:
        with pytest.raises(NodeError) as caught:
            paths.open_root()
    finally:
        planted.unlink()
    assert "is not a folder" in caught.value.what


def test_what_others_may_enter_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "state"
    root.mkdir()
    root.chmod(0o750)
    error = refused(root)
    assert (error.why, error.hint) == ("its mode is 750, it must be 700", f"chmod 700 {root}")


def test_another_users_folder_is_refused(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("giving a folder away needs root")
    root = tmp_path / "state"
    root.mkdir(mode=0o700)
    os.chown(root, 65534, 65534)
    assert "belongs to uid 65534" in refused(root).why


MOUNTS = rb"""22 1 259:1 / / rw,relatime shared:1 - ext4 /dev/root rw
30 22 0:26 / /home rw - nfs4 server:/home rw,vers=4.2
31 30 0:27 / /home/with\040blank rw - xfs /dev/sdb rw
32 22 0:28 / /mnt rw - ext4 /dev/sdc rw
33 22 0:29 / /mnt rw - fuse.sshfs user@host:/ rw
34 22 0:30 / /back\134slash rw - tmpfs tmpfs rw
"""


@pytest.mark.parametrize(
    ("path", "kind", "remote"),
    [
        ("/var/tmp/x", "ext4", False),
        ("/home", "nfs4", True),
        ("/home/train/state", "nfs4", True),
        ("/homeless", "ext4", False),
        ("/home/with blank/x", "xfs", False),
        ("/mnt/x", "fuse.sshfs", True),
        ("/back\\slash/x", "tmpfs", False),
    ],
)
def test_the_file_system_is_that_of_the_innermost_and_latest_mount(
    path: str, kind: str, remote: bool
) -> None:
    assert paths.type_of(path, MOUNTS) == kind
    assert paths.is_remote(kind) is remote


def test_a_remote_file_system_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "filesystem", lambda _: "nfs4")
    assert "is on nfs4" in refused(tmp_path / "state").what


def test_the_layout_knows_tasks_by_name_and_hides_claims_in_the_making(tmp_path: Path) -> None:
    made = paths.open_root(str(tmp_path / "state"))
    assert made.task("r", "1", "worker/1") == made.task("r", "1", "worker-1")
    assert made.task("r", "1", "worker/1").task == "worker/1"
    for name in ("worker-0", ".worker-1.abc"):
        Path(made.attempt("r", "validate"), name).mkdir(parents=True)
    assert made.runs() == ["r"]
    assert made.attempts("r") == ["validate"]
    assert [folder.task for folder in made.tasks("r")] == ["worker/0"]
    assert made.tasks("unknown") == []
