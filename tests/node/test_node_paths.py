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


def test_another_users_folder_is_refused(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("giving a folder away needs root")
    root = tmp_path / "state"
    root.mkdir(mode=0o700)
    os.chown(root, 65534, 65534)
    assert "belongs to uid 65534" in refused(root).why


def test_a_remote_file_system_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert paths.filesystem("/proc/self") == "proc"
    for kind in ("nfs4", "fuse.sshfs"):
        monkeypatch.setattr(paths, "filesystem", lambda _, kind=kind: kind)
        assert f"is on {kind}" in refused(tmp_path / "state").what
    for kind in ("fuse.fuse-overlayfs", "xfs"):
        monkeypatch.setattr(paths, "filesystem", lambda _, kind=kind: kind)
        paths.open_root(str(tmp_path / "state"))
