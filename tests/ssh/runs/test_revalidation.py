"""Validations are remembered for unchanged hosts; anything doubtful is validated again."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from orchestrator.errors import ExitStatus
from tests.ssh.runs.desk import Desk

CHECK = "validate = 'python check.py'"
FAILS = "import os, sys; sys.exit(os.path.exists(os.path.join({folder!r}, 'broken')))\n"


def validated(
    desk: Desk, *options: str, status: ExitStatus = ExitStatus.OK, skip: str = "--skip-preflight"
) -> list[str]:
    """Launch, and return the hosts that ran a local validation."""
    desk.start("launch", "--hosts", str(desk.hosts), *skip.split(), *options, "--", "true").ended(status)
    logs = sorted((desk.run_folder() / "logs" / "validate").glob("*.log"))
    names = [host.name for host in desk.cluster.hosts]
    return [names[int(path.stem.rpartition("-")[2])] for path in logs]


def messages(desk: Desk) -> Sequence[str]:
    return (desk.folder / f"err-{desk._count}").read_text().splitlines()


def environments(desk: Desk) -> list[Path]:
    """Create a separate Python for each host."""
    folders = [Path(host.workdir).parent / "venv" for host in desk.cluster.hosts]
    text = desk.hosts.read_text()
    for folder, host in zip(folders, desk.cluster.hosts, strict=True):
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
        head, _, tail = text.partition(f'name = "{host.name}"')
        first, _, rest = tail.partition("python = ")
        text = (
            f'{head}name = "{host.name}"{first}python = "{folder}/bin/python"\n{rest.partition(chr(10))[2]}'
        )
    desk.hosts.write_text(text)
    return folders


def installed(folder: Path) -> None:
    """Create the files that an installer leaves for a package."""
    info = folder / "lib" / f"python3.{sys.version_info.minor}" / "site-packages" / "extra-1.0.dist-info"
    info.mkdir()
    (info / "RECORD").write_text("extra/__init__.py,,\n")


def test_unchanged_hosts_are_not_validated_again(desk: Desk) -> None:
    names = [host.name for host in desk.cluster.hosts]
    desk.write_hosts(desk.cluster.hosts, job=f"[job]\n{CHECK}\n")
    folders = environments(desk)
    desk.script("check.py", FAILS.format(folder=str(desk.folder)))
    changed = ("--validate", "changed")

    assert validated(desk) == names
    files = sum(path.is_file() for path in desk.project.rglob("*"))
    assert {event["files"] for event in desk.named("TreeSynced")} == {files}  # without worker_entry's
    assert validated(desk) == names, "a command of the user's own was taken as read unasked"
    assert validated(desk, *changed) == []
    (line,) = [line for line in messages(desk) if "ago, unchanged" in line]
    assert line.startswith("rehearsal-[01-02]: validated ")
    assert line.endswith(" s ago, unchanged")
    (event,) = desk.named("ValidationStood")
    assert event["hosts"] == names

    installed(folders[1])
    assert validated(desk, *changed, skip="") == names[1:]  # preflight has queried the same state
    assert any(line.startswith(f"{names[0]}: validated ") for line in messages(desk))
    assert validated(desk, "--validate", "always") == names
    assert validated(desk, "--no-validate") == []
    assert not any("validated" in line for line in messages(desk))

    # A failed validation is not remembered, and invalidates earlier ones.
    (desk.folder / "broken").touch()
    assert validated(desk, "--validate", "always", status=ExitStatus.RUN_FAILED) == names
    (desk.folder / "broken").unlink()
    assert validated(desk, *changed) == names

    desk.script("check.py", "pass\n")
    assert validated(desk, *changed) == names, "another check"
