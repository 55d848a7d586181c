"""The wheel as a user installs it, in a separate environment."""

import email
import json
import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


REPOSITORY = "https://example.org/team/orchestrate"


def build(target: str, folder: Path, source: Path = ROOT, repository: str | None = REPOSITORY) -> Path:
    environ = {key: value for key, value in os.environ.items() if key != "ORCHESTRATE_REPOSITORY"}
    environ |= {} if repository is None else {"ORCHESTRATE_REPOSITORY": repository}
    command = [sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", str(folder)]
    subprocess.run(command, cwd=source, env=environ, check=True, capture_output=True, text=True, timeout=60)
    (built,) = folder.glob("*.whl" if target == "wheel" else "*.tar.gz")
    return built


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("wheel", tmp_path_factory.mktemp("dist"))


def names(wheel: Path) -> set[str]:
    return {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}


def metadata(wheel: Path) -> email.message.Message:
    held = zipfile.ZipFile(wheel)
    (name,) = (one for one in held.namelist() if one.endswith(".dist-info/METADATA"))
    return email.message_from_bytes(held.read(name))


@pytest.mark.parametrize("target", ["wheel", "sdist"])
def test_a_second_build_has_the_same_bytes(target: str, tmp_path: Path) -> None:
    first, second = (build(target, tmp_path / name) for name in ("first", "second"))
    assert first.read_bytes() == second.read_bytes()


def test_the_wheel_contains_all_of_the_code_and_nothing_else(wheel: Path) -> None:
    held = names(wheel)
    ours = {str(path.relative_to(ROOT)) for path in (ROOT / "orchestrator").rglob("*.py")}
    shipped = {
        f"orchestrator/_shipped/{path.relative_to(ROOT)}" for path in (ROOT / "worker_entry").rglob("*.py")
    }
    typed = {"orchestrator/py.typed", "orchestrator/_shipped/worker_entry/py.typed"}
    digits = {f"orchestrator/_shipped/worker_entry/data/digits.{kind}" for kind in ("csv.gz", "txt")}
    pages = {f"orchestrator/{path.relative_to(ROOT)}" for path in (ROOT / "docs").iterdir()}
    tables = {"orchestrator/hosts.example.toml", "orchestrator/diagnosis/rules.toml"}
    names_of_pages = "layout.html", "live.js", "macros.html", "page.css", "page.html", "several.html"
    tables |= {f"orchestrator/report/{name}" for name in names_of_pages}
    assert held == ours | shipped | typed | digits | pages | tables


def test_an_sdist_is_complete_and_builds_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    sdist = build("sdist", tmp_path / "sdist")
    subprocess.run(["tar", "xzf", sdist, "-C", tmp_path], check=True)
    (unpacked,) = tmp_path.glob("orchestrate_tf-*")
    listed = subprocess.run(
        ["git", "ls-files", "-z", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, check=True
    )
    tracked = {name for name in listed.stdout.decode().split("\0") if name and (ROOT / name).is_file()}
    missing = {name for name in tracked if not name.startswith(".ci/") and not (unpacked / name).is_file()}
    assert not missing
    again = build("wheel", tmp_path / "wheel", unpacked, repository=None)
    assert names(again) == names(wheel)
    assert metadata(again).as_string() == metadata(wheel).as_string()
    assert f"]({REPOSITORY}/blob/HEAD/docs/install.md)" in metadata(wheel).as_string()


def test_the_wheel_installs_and_runs(wheel: Path, tmp_path: Path) -> None:
    """Offline: dependencies come from the environment that runs the tests."""
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
    # Paths from a .pth file are searched last, and their .pth files are ignored, so the wheel is what runs.
    (packages / "lent.pth").write_text(sysconfig.get_path("purelib") + "\n")

    where = subprocess.check_output(
        [python, "-c", "import orchestrator; print(orchestrator.__file__)"], text=True, cwd=tmp_path
    )
    assert Path(where.strip()).is_relative_to(packages)
    environ = {**os.environ, "HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "state")}

    def orchestrate(*words: str) -> str:
        """Return the output of the installed command."""
        command = [str(empty / "bin" / "orchestrate"), *words]
        output: str = subprocess.check_output(
            command, stderr=subprocess.STDOUT, text=True, cwd=tmp_path, env=environ, timeout=60
        )
        return output

    assert "launch" in orchestrate("--help")
    assert orchestrate("init", "--example") == (ROOT / "hosts.example.toml").read_text(encoding="utf-8")

    # worker_entry is found within the package, even if another package has that name.
    (packages / "worker_entry.py").write_text("raise AssertionError('another worker_entry')\n")
    (tmp_path / "hosts.toml").write_text('[[host]]\nssh = "local"\naddress = "127.0.0.1"\n')
    planned = json.loads(orchestrate("launch", "--dry-run", "--json", "--", "--epochs", "3"))
    assert planned["tasks"][0]["argv"][1:] == ["-m", "worker_entry", "--epochs", "3"]
    code = "from orchestrator.sync.contents import read_builtin; print(read_builtin().digest)"
    digests = {
        subprocess.check_output([python, "-c", code], text=True, cwd=folder, env=environ)
        for python, folder in ((sys.executable, ROOT), (empty / "bin" / "python", tmp_path))
    }
    assert len(digests) == 1
