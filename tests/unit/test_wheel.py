"""What a user installs: the wheel alone, in an environment of its own."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, text=True, timeout=60)
    (built,) = folder.glob("*.whl")
    return built


def test_it_holds_all_of_the_code_and_nothing_else(wheel: Path) -> None:
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    packages = ("orchestrator", "worker_entry")
    ours = {str(path.relative_to(ROOT)) for package in packages for path in (ROOT / package).rglob("*.py")}
    assert held >= ours
    assert {name.partition("/")[0] for name in held} == {name.partition("/")[0] for name in ours}
    assert not [name for name in held if name.endswith(".pyc")]


def test_it_installs_and_runs(wheel: Path, tmp_path: Path) -> None:
    """Without a network: the dependencies are lent by the environment the tests run in."""
    empty = tmp_path / "empty"
    venv.create(empty, symlinks=True)
    python = empty / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check"]
    subprocess.run(
        [*pip, "install", "--quiet", "--no-index", "--no-deps", str(wheel)],
        check=True,
        timeout=60,
        cwd=tmp_path,
    )
    (packages,) = empty.glob("lib/python*/site-packages")
    # A path in a .pth file is searched last and its own .pth files are not read: the wheel is what runs.
    (packages / "lent.pth").write_text(sysconfig.get_path("purelib") + "\n")

    where = subprocess.check_output(
        [python, "-c", "import orchestrator; print(orchestrator.__file__)"], text=True, cwd=tmp_path
    )
    assert Path(where.strip()).is_relative_to(packages)
    shown = subprocess.run(
        [empty / "bin" / "orchestrate", "--help"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=60,
        check=False,
    )
    assert shown.returncode == 0, shown.stderr
    assert "launch" in shown.stdout
    assert shown.stderr == ""
