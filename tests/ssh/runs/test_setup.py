"""`orchestrate setup`, and launches that need an environment: real SSH servers, real uv, handmade wheels."""

import hashlib
import json
import os
import platform
import shutil
import sys
import tarfile
from pathlib import Path

import pytest

from tests.ssh.runs.desk import Desk
from tests.wheels import wheel

pytestmark = pytest.mark.timeout(400)
LAUNCH = ("launch", "--skip-preflight", "--no-validate", "--hosts")
LIMIT = 150.0  # seconds; two hosts create environments of thousands of files at once
NO_INDEX = "http://127.0.0.1:9/simple"  # nothing listens there


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    folder = tmp_path / "wheelhouse"
    folder.mkdir()
    wheel(folder, "small", "1.0", "answer = 42\n")
    return folder


def write(desk: Desk, *lines: str) -> None:
    desk.write_hosts(desk.cluster.hosts, job="\n".join(("[env]", *lines)), python="")


def offline(desk: Desk, wheels: Path) -> dict[str, str]:
    """The controller's index is a folder; that of the hosts does not respond."""
    for number, _ in enumerate(desk.cluster.hosts, 1):
        settings = desk.cluster.folder / f"home-{number}" / ".config" / "uv" / "uv.toml"
        settings.parent.mkdir(parents=True, exist_ok=True)
        settings.write_text(f'index-url = "{NO_INDEX}"\n')
    return {
        "UV_DEFAULT_INDEX": wheels.as_uri(),
        "PIP_INDEX_URL": wheels.as_uri(),
        "UV_HTTP_RETRIES": "0",
        "XDG_CACHE_HOME": str(desk.folder / "cache"),
    }


def environments(desk: Desk) -> list[Path]:
    folders = [Path(host.workdir).expanduser() / "envs" for host in desk.cluster.hosts]
    return [path for folder in folders for path in folder.glob("*") if not path.name.startswith(".")]


def test_hosts_without_an_index_get_packages_from_the_controller(desk: Desk, wheels: Path) -> None:
    write(desk, 'packages = ["small"]')
    setup = ("setup", "--hosts", str(desk.hosts))
    first = desk.start(*setup, **offline(desk, wheels)).ended(limit=LIMIT)
    assert "2 hosts ready with the environment" in first.stdout
    assert first.stderr.count("rehearsal-[01-02]: environment created in") == 1
    assert len(environments(desk)) == 2
    again = desk.start(*setup, "--json", **offline(desk, wheels)).ended()
    events = [json.loads(line) for line in again.stdout.splitlines()]
    assert [event["reused"] for event in events if event["event"] == "EnvironmentMade"] == [True, True]

    # A host is replaced; a launch creates the environment again.
    shutil.rmtree(Path(desk.cluster.hosts[1].workdir).expanduser())
    script = desk.script("use.py", "import small, sys; print('answer', small.answer, sys.prefix)")
    viewer = desk.start(*LAUNCH, str(desk.hosts), "--", script, **offline(desk, wheels)).ended(limit=LIMIT)
    assert viewer.stderr.count("environment created in") == 1
    assert viewer.stdout.count("answer 42") == 2
    assert all(str(path) in viewer.stdout for path in environments(desk))
    phases = [event["phase"] for event in desk.named("PhaseEnded")]
    assert phases.index("connect") < phases.index("setup") < phases.index("stage")


def test_a_user_s_own_python_is_left_alone(desk: Desk, wheels: Path) -> None:
    write(desk, 'packages = ["small"]', 'via = "controller"')
    text = desk.hosts.read_text().replace("[[host]]", f'[[host]]\npython = "{sys.executable}"', 1)
    desk.hosts.write_text(text)
    viewer = desk.start("setup", "--hosts", str(desk.hosts), **offline(desk, wheels)).ended(limit=LIMIT)
    assert viewer.stdout.startswith("1 host ready")
    assert "with their own `python`" in viewer.stdout
    assert len(environments(desk)) == 1


def test_nonexistent_packages_end_setup_before_any_host_is_contacted(desk: Desk, wheels: Path) -> None:
    write(desk, 'packages = ["nosuch>=1"]')
    viewer = desk.start("setup", "--hosts", str(desk.hosts), **offline(desk, wheels)).ended(3, limit=LIMIT)
    assert "error: cannot resolve the packages of [env]" in viewer.stderr
    assert "nosuch" in viewer.stderr
    assert "Traceback" not in viewer.stderr


def mirror(folder: Path) -> str:
    """A mock of uv's download server with one Python, an archive of this machine's."""
    version = platform.python_version()
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    archive = folder / "python.tar.gz"
    with tarfile.open(archive, "w:gz", compresslevel=1) as tar:
        tar.add(Path(sys._base_executable).resolve(), f"python/bin/{name}")  # type: ignore[attr-defined]
        for entry in sorted(Path(os.__file__).parent.iterdir()):
            if entry.name not in {"site-packages", "dist-packages", "test", "idlelib", "ensurepip"}:
                tar.add(entry, f"python/lib/{name}/{entry.name}", filter=_is_source)
    facts = {
        "arch": {"family": platform.machine(), "variant": None},
        "os": "linux",
        "libc": "gnu",
        "name": "cpython",
        "prerelease": "",
        "variant": None,
        "build": None,
        **dict(zip(("major", "minor", "patch"), sys.version_info[:3], strict=True)),
        "url": archive.as_uri(),
        "sha256": hashlib.sha256(archive.read_bytes()).hexdigest(),
    }
    index = folder / "pythons.json"
    index.write_text(json.dumps({f"cpython-{version}-linux-{platform.machine()}-gnu": facts}))
    return str(index)


def _is_source(info: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if info.name.endswith(("__pycache__", ".a")) or info.issym() else info


def test_hosts_without_a_suitable_python_receive_one(desk: Desk, wheels: Path, tmp_path: Path) -> None:
    write(desk, 'packages = ["small"]')
    env = {**offline(desk, wheels), "UV_PYTHON_DOWNLOADS_JSON_URL": mirror(tmp_path)}
    for number, _ in enumerate(desk.cluster.hosts, 1):
        with (desk.cluster.folder / f"home-{number}" / ".config" / "uv" / "uv.toml").open("a") as file:
            file.write('python-preference = "only-managed"\n')  # as if they had none
    viewer = desk.start("setup", "--hosts", str(desk.hosts), **env).ended(limit=LIMIT)
    minor = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert f"orchestrate installs Python {minor} in the working folder" in viewer.stderr
    script = desk.script("use.py", "import small, sys; print('base', sys.base_prefix)")
    viewer = desk.start(*LAUNCH, str(desk.hosts), "--", script, **env).ended(limit=LIMIT)
    assert viewer.stdout.count("/data/") == 2, viewer.stdout


HEADER = """\
#!/usr/bin/env -S uv run --script
# /// script
# requires-python = ">=3.9"
# dependencies = [
#     "small",  # from the index
# ]
# ///
import small, sys
print("answer", small.answer, sys.prefix, *sys.argv[1:])
"""


def test_a_script_header_defines_its_environment(desk: Desk, wheels: Path) -> None:
    """Unless hosts.toml sets another; launching it with `uv run` is equivalent."""
    desk.write_hosts(desk.cluster.hosts, python="")
    desk.script("use.py", HEADER)
    for command in (["python", "use.py", "7"], ["uv", "run", "--script", "use.py", "7"]):
        viewer = desk.start(*LAUNCH, str(desk.hosts), "--", *command, **offline(desk, wheels)).ended(
            limit=LIMIT
        )
        assert viewer.stdout.count("answer 42") == viewer.stdout.count(" 7\n") == 2
        assert "the environment has the packages in the header of use.py: small" in viewer.stderr
        assert all(str(path) in viewer.stdout for path in environments(desk))
    (made,) = {path.name for path in environments(desk)}

    desk.script("use.py", HEADER.replace('"small"', '"small >= 1.0"'))
    write(desk, 'packages = ["small"]')
    viewer = desk.start(*LAUNCH, str(desk.hosts), "--", "use.py", **offline(desk, wheels)).ended(limit=LIMIT)
    assert f"the packages in the header of use.py are not used: {desk.hosts} has its [env]" in viewer.stderr
    names = {path.name for path in environments(desk)}
    assert names > {made}, "the first one may be in use"
    assert len(names) == 2
