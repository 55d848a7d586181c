"""The [env] table: its lock, and the wheels for hosts without an index."""

import contextlib
import importlib.metadata
import os
import platform
import re
import subprocess
import venv
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from orchestrator.config.load import parse
from orchestrator.envs import Platform, available, lock, specifier, uv, wheels, with_python
from orchestrator.envs.lock import Lock, overrides_of
from orchestrator.envs.platforms import fit
from orchestrator.envs.script import of_script
from orchestrator.errors import ClusterError, HostError, Trouble, UsageError
from orchestrator.model import Environment, EnvironmentPlan, Via
from orchestrator.node.stock.uv import environment as environment_of
from orchestrator.phases.setup import _Maker
from orchestrator.program.invocation import without_uv
from orchestrator.verbs.environment import locked
from tests.wheels import wheel

HOST = '[[host]]\nssh = "a"\n'
DEBIAN = Platform("x86_64", "glibc 2.36", "3.11.2")


def test_every_key_of_env_and_no_key() -> None:
    index = "https://packages.example/simple"
    keys = (
        'requirements = "pyproject.toml"\npackages = ["wandb>=0.17"]\nextras = ["gpu"]\n'
        f'python = "3.12"\nindex = "{index}"\nvia = "controller"\n'
    )
    made, usual = (parse(f"{HOST}[env]\n{text}").environment for text in (keys, ""))
    assert made == Environment("pyproject.toml", ("wandb>=0.17",), ("gpu",), "3.12", index, Via.CONTROLLER)
    assert usual is not None
    assert {"tf-keras", "tensorflow-cpu"} <= {re.split(r"[<>=~;]", line)[0] for line in usual.packages}


@pytest.mark.parametrize(
    ("listing", "overrides"),
    [
        ("tensorflow\ntf-keras", []),
        ("tensorflow_cpu==2.20\ntensorflow-datasets", ["tensorflow; sys_platform == 'never'"]),
        (
            "tensorflow-cpu; platform_machine == 'x86_64'\ntensorflow; platform_machine != 'x86_64'",
            ["tensorflow; platform_machine != 'x86_64'"],
        ),
        ("tensorflow-cpu\ntensorflow[and-cuda]>=2.16", ["tensorflow[and-cuda]>=2.16"]),
    ],
)
def test_tensorflow_cpu_overrides_the_full_tensorflow(listing: str, overrides: list[str]) -> None:
    assert overrides_of(listing) == overrides


@pytest.mark.usefixtures("index")
def test_a_platform_gets_the_packages_with_matching_markers() -> None:
    text = (
        "small==1.0 ; sys_platform == 'linux'\n"
        "other==9.0 ; sys_platform == 'win32'\n"
        "other==2.0 ; python_full_version < '3.12'\n"
    )
    assert wheels._packages(Lock(text, "name"), DEBIAN, None) == {"small==1.0": True, "other==2.0": True}
    arm = Platform("aarch64", "glibc 2.39", "3.12.3")
    assert wheels._packages(Lock(text, "name"), arm, None) == {"small==1.0": True}


def published(name: str, *wheels: str, marker: str = "", sdist: bool = False) -> dict[str, Any]:
    """Return a package of a pylock.toml with wheels for these tags."""
    rows: dict[str, Any] = {"name": name, "version": "1.0"}
    rows |= {"wheels": [{"url": f"https://x/{name}-1.0-{tags}.whl"} for tags in wheels]} if wheels else {}
    return {**rows, **({"marker": marker} if marker else {}), **({"sdist": {}} if sdist else {})}


PURE = published("pure", "py3-none-any")
ARCHITECTURES = ("x86_64", "aarch64")
GNU = [f"cp3{one}-cp3{one}-manylinux_2_27_{arch}" for one in (10, 11, 12, 13) for arch in ARCHITECTURES]
TENSORFLOW = published("tensorflow", *GNU)
ABI3 = published("abi", "cp39-abi3-manylinux2014_x86_64")
UP_TO_3_10 = published("t", GNU[0], marker="python_version < '3.11'")
SOURCE = published("t", GNU[2], sdist=True)  # and a wheel for Python 3.11 on x86-64
ARM, ALPINE, OLD = Platform("aarch64", "glibc 2.39"), Platform("x86_64", ""), Platform("x86_64", "glibc 2.17")


@pytest.mark.parametrize(
    ("packages", "target", "asked", "expected"),
    [
        ([PURE, TENSORFLOW], DEBIAN, ">=3.11", ((11, 12, 13), ">=3.11,<3.14")),
        ([PURE, TENSORFLOW], ARM, "3.12", ((12,), "3.12")),
        ([TENSORFLOW], DEBIAN, "/opt/bin/python3", ((10, 11, 12, 13), "/opt/bin/python3")),
        ([ABI3], DEBIAN, "<3.12", ((9, 10, 11), "<3.12,>=3.9")),
        ([UP_TO_3_10], DEBIAN, "<3.13,>=3.9", ((10, 11, 12), "<3.13,>=3.9,>=3.10")),
        ([SOURCE], DEBIAN, "<3.13,>=3.10", ((11,), "<3.13,>=3.10,>=3.11,<3.12")),
        ([SOURCE], ARM, "<3.12,>=3.10", ((10, 11), "<3.12,>=3.10")),  # built
        ([TENSORFLOW], DEBIAN, "3.14", "tensorflow"),
        ([TENSORFLOW], ALPINE, ">=3.11", "tensorflow"),
        ([TENSORFLOW], OLD, ">=3.11", "tensorflow"),
        ([published("t", GNU[0]), published("u", GNU[4])], DEBIAN, "3.11", "t, u"),
    ],
)
def test_the_python_version_is_chosen_by_available_wheels(
    packages: list[dict[str, Any]], target: Platform, asked: str, expected: tuple[tuple[int, ...], str] | str
) -> None:
    found = fit(packages, target)
    minors = found.allowed(asked)
    assert ((minors, specifier(asked, minors)) if minors else found.missing(asked)) == expected


@pytest.mark.parametrize(("python", "chosen"), [("3.12", (12,)), (">=3.12", (12, 13)), ("python3.12", None)])
def test_a_python_is_sent_for_a_version_but_not_for_a_program(
    python: str, chosen: tuple[int, ...] | None
) -> None:
    def request(_message: object) -> None:
        raise HostError("a", "has no Python that fits", kind=Trouble.NO_PYTHON)

    plan = EnvironmentPlan("lock", python, None, Via.AUTO)
    session = cast("Any", SimpleNamespace(request=request))
    maker = _Maker(session, plan, Lock("", "lock"), lambda _event: None, 0.0, platform=DEBIAN)
    with contextlib.nullcontext() if chosen else pytest.raises(HostError, match="has no Python that fits"):
        maker.find(fit([TENSORFLOW], DEBIAN))
    assert maker.candidates == (chosen or ())


@pytest.mark.parametrize("target", [DEBIAN, ARM])
def test_uv_has_a_python_for_each_platform(target: Platform) -> None:
    assert {11, 12, 13} <= available(target)


def test_uv_for_another_platform_comes_from_its_wheel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real download is part of scripts/matrix; this index is a mock."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    version = importlib.metadata.version("uv")

    def download(_what: str, _arguments: list[str], pins: list[str], *, folder: Path, **_: object) -> None:
        assert pins == [f"uv=={version}"]
        with zipfile.ZipFile(folder / "uv.whl", "w") as archive:
            archive.writestr(f"uv-{version}.data/scripts/uvx", "another")
            archive.writestr(f"uv-{version}.data/scripts/uv", "program")

    monkeypatch.setattr(wheels, "_pip", download)
    program = wheels.uv_for(ARM, None, lambda _: None)
    assert program.read_text() == "program"
    assert os.access(program, os.X_OK)
    monkeypatch.setattr(wheels, "_pip", lambda *_, **__: pytest.fail("downloaded twice"))
    assert wheels.uv_for(ARM, None, lambda _: None) == program
    own = Platform(platform.machine(), " ".join(platform.libc_ver()))
    assert wheels.uv_for(own, None, lambda _: None) == uv.binary()


LOCKED = "tensorflow-cpu==2.16.2\nnumpy==1.26.4 ; sys_platform == 'linux'\n"


@pytest.mark.parametrize("which", [0, 1])
# Truncated, an environment would lack a package; None is a named pipe.
@pytest.mark.parametrize("damage", [b"tensorflow-cpu==2.16.2\n", b"\xff\xfe", None])
def test_a_damaged_cached_lock_is_rebuilt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: bytes | None, which: int
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    made: list[Lock] = []

    def resolve(table: Environment) -> Lock:
        made.append(lock.named(LOCKED, table))
        return made[-1]

    monkeypatch.setattr("orchestrator.envs.resolve", resolve)
    table = parse(HOST + '[env]\npackages = ["numpy"]\n').environment
    assert table is not None
    locked(table)
    locked(table)
    assert len(made) == 1  # cached the second time
    names = (lock.recipe_digest(table), made[0].name)
    kept = tmp_path / "orchestrate" / "locks" / f"{names[which]}.txt"
    if damage is None:
        kept.unlink()
        os.mkfifo(kept)
    else:
        kept.write_bytes(damage)
    plan, found = locked(table)
    assert (len(made), found.text, plan.name) == (2, LOCKED, made[0].name)
    assert "numpy" in found.names


@pytest.mark.parametrize(
    ("asked", "python"),
    [(">=3.12.4", ">=3.11,>=3.12.4"), (">=3.9,<3.13", "<3.13,>=3.11,>=3.9"), ("three", None)],
)
@pytest.mark.parametrize("name", ["pyproject.toml", "uv.lock"])
def test_a_project_declares_its_supported_pythons(
    tmp_path: Path, name: str, asked: str, python: str | None
) -> None:
    head = "[project]\n" if name == "pyproject.toml" else ""
    (tmp_path / name).write_text(f'{head}requires-python = "{asked}"\n')
    table = Environment(requirements=str(tmp_path / name))
    assert with_python(table).python == python
    own = Environment(requirements=str(tmp_path / name), python="3.14")
    assert with_python(own) == own


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two packages as this machine's index."""
    folder = tmp_path / "wheelhouse"
    folder.mkdir()
    wheel(folder, "small", "1.0", "")
    wheel(folder, "other", "2.0", "")
    monkeypatch.setenv("UV_DEFAULT_INDEX", folder.as_uri())
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    return folder


@pytest.mark.usefixtures("index")
def test_dynamic_dependencies_are_not_cached(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(
        '[project]\nname = "mine"\nversion = "1"\ndynamic = ["dependencies"]\n'
        '[build-system]\nrequires = []\nbuild-backend = "builder"\nbackend-path = ["."]\n'
    )
    (tmp_path / "builder.py").write_text(
        "import pathlib\n"
        "def prepare_metadata_for_build_wheel(folder, _settings=None):\n"
        "    made = pathlib.Path(folder, 'mine-1.dist-info')\n"
        "    made.mkdir()\n"
        "    needs = pathlib.Path('requirements.txt').read_text()\n"
        "    text = f'Metadata-Version: 2.1\\nName: mine\\nVersion: 1\\nRequires-Dist: {needs}\\n'\n"
        "    made.joinpath('METADATA').write_text(text)\n"
        "    return made.name\n"
    )
    for name in ("small", "other"):
        (tmp_path / "requirements.txt").write_text(name)
        assert lock.resolve(Environment(str(tmp_path / "pyproject.toml"))).names == (name,)


@pytest.mark.usefixtures("index")
def test_packages_next_to_a_uv_lock_are_added_to_it(tmp_path: Path) -> None:
    project = (
        '[project]\nname = "mine"\nversion = "1"\ndependencies = ["small"]\nrequires-python = ">=3.11"\n'
    )
    (tmp_path / "pyproject.toml").write_text(project)
    uv.run("lock", ["lock", "--project", str(tmp_path)])
    path = str(tmp_path / "uv.lock")
    assert lock.resolve(Environment(path)).names == ("small",)
    assert set(lock.resolve(Environment(path, ("other",))).names) == {"small", "other"}


_CONDA_FILE = """name: tf
channels: [conda-forge]
dependencies:
  - python=3.11
  - pip:
    - small==1.0
"""
_LISTED = "pip list --format=freeze --exclude-editable > requirements.txt"
FOREIGN: dict[str, tuple[str | bytes, str, str]] = {
    "pip freeze of conda": (
        "certifi @ file:///croot/certifi_1671487769961/work\nsmall @ file:///croot/small\n",
        "asks for 'certifi @ file:///croot/certifi_1671487769961/work' and 1 more line",
        _LISTED,
    ),
    "a file that is here": ("small @ {index}/small-1.0-py3-none-any.whl\n", "asks for 'small @ f", _LISTED),
    "environment.yml": (_CONDA_FILE, "asks for 'dependencies'", _LISTED),
    "conda list --export": ("# platform: linux-64\nsmall=1.0=py311_0\n", "'small=1.0=py311_0'", _LISTED),
    "PyTorch's index": ("small==1.0+cu121 ; python_version>'3'\n", "'small==1.0+cu121'", "sed -E -i"),
    "the project itself": ("-e .\nsmall\n", "asks for '-e .'", 'requirements = "pyproject.toml"'),
    "an editable folder": ("--editable=./lib\nsmall\n", "asks for '--editable=./lib'", "PYTHONPATH"),
    "UTF-16 of PowerShell": ("small==1.0\n".encode("utf-16"), "cannot read", "iconv"),
    "UTF-16 without a mark": ("small==1.0\n".encode("utf-16-le"), "cannot read", "iconv"),
}


@pytest.mark.parametrize("row", FOREIGN)
def test_a_file_of_another_tool_is_refused_with_a_working_fix(
    tmp_path: Path, index: Path, monkeypatch: pytest.MonkeyPatch, row: str
) -> None:
    content, what, fix = FOREIGN[row]
    monkeypatch.chdir(tmp_path)
    project = '[project]\nname = "mine"\nversion = "1"\ndependencies = ["small"]\n'
    (tmp_path / "pyproject.toml").write_text(project)
    path = tmp_path / f"its requirements.{'yml' if 'yml' in row else 'txt'}"
    data = content.replace("{index}", index.as_uri()).encode() if isinstance(content, str) else content
    path.write_bytes(data)
    with pytest.raises(UsageError) as caught:
        lock.resolve(Environment(str(path)))
    assert what in str(caught.value)
    assert fix in caught.value.hint
    for command in re.findall(r"`((?:sed|iconv) [^`]*)`", caught.value.hint):
        subprocess.run(command, shell=True, check=True, cwd=tmp_path)
        fixed = tmp_path / "utf8.txt" if "iconv" in command else path
        assert lock.resolve(Environment(str(fixed))).names == ("small",)
    if "pyproject" in fix:
        assert lock.resolve(Environment("pyproject.toml")).names == ("small",)


def test_pip_freeze_output_with_file_paths_can_be_resolved(tmp_path: Path, index: Path) -> None:
    """conda installs from files, and `pip freeze` prints their paths."""
    venv.create(tmp_path / "venv", with_pip=True)
    pip = [str(tmp_path / "venv/bin/python"), "-m", "pip", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "-q", str(index / "small-1.0-py3-none-any.whl")], check=True)
    path = tmp_path / "requirements.txt"
    path.write_text(subprocess.check_output([*pip, "freeze"], text=True))
    with pytest.raises(UsageError, match="asks for 'small @ file:") as caught:
        lock.resolve(Environment(str(path)))
    (command,) = re.findall("`(python [^`]*)`", caught.value.hint)
    subprocess.run(f". venv/bin/activate; {command}", shell=True, check=True, cwd=tmp_path)
    lines = path.read_text().splitlines()
    path.write_text("\n".join(line for line in lines if line.startswith("small")))  # pip is not in the index
    assert lock.resolve(Environment(str(path))).names == ("small",)


@pytest.mark.usefixtures("index")
def test_an_index_named_only_in_the_file_is_refused_if_a_package_needs_it(tmp_path: Path) -> None:
    torchs = tmp_path / "torchs"
    torchs.mkdir()
    wheel(torchs, "small", "1.0+cu1", "")
    path = tmp_path / "requirements.txt"
    option = f"--extra-index-url {torchs.as_uri()}"
    path.write_text(f"{option}\nsmall\n")
    with pytest.raises(UsageError, match="names an index of its own, '--extra-index-url file:") as caught:
        lock.resolve(Environment(str(path)))
    assert "small==1.0+cu1" in caught.value.why
    path.write_text(f"{option}\nother\n")
    assert lock.resolve(Environment(str(path))).names == ("other",)
    path.write_text("small\n")  # the suggested fix
    assert "small==1.0 " in lock.resolve(Environment(str(path))).text


@pytest.mark.usefixtures("index")
def test_only_resolver_errors_are_explained() -> None:
    with pytest.raises(UsageError, match=r"\[env\] asks for 'small==1.0\+cpu'"):
        lock.resolve(Environment(packages=("small==1.0+cpu",)))
    with pytest.raises(ClusterError, match="cannot resolve"):
        lock.resolve(Environment(packages=("small==7", "other==2.0")))


def test_pip_settings_apply_where_uv_has_none(tmp_path: Path) -> None:
    def passed_on(**login: str) -> dict[str, str]:
        made = environment_of({"HOME": str(tmp_path), **login})
        return {name: made[name] for name in ("UV_DEFAULT_INDEX", "ALL_PROXY") if name in made}

    conf = tmp_path / ".config" / "pip" / "pip.conf"
    conf.parent.mkdir(parents=True)
    conf.write_text("[global]\nindex-url = http://user\nproxy = http://proxy:3128\n")
    assert passed_on() == {"UV_DEFAULT_INDEX": "http://user", "ALL_PROXY": "http://proxy:3128"}
    assert passed_on(PIP_INDEX_URL="http://shell")["UV_DEFAULT_INDEX"] == "http://shell"
    assert passed_on(UV_DEFAULT_INDEX="http://uv")["UV_DEFAULT_INDEX"] == "http://uv"
    conf.write_text("index-url = x\n[global\n")
    assert passed_on() == {}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("requirements.txt", "-r https://192.0.2.1/more.txt\n  --constraint=more.txt  # those of the lab\n"),
        ("requirements.txt", "\ufeff-r more.txt\r\n"),
        (
            "pyproject.toml",
            "[project]\ndynamic = ['dependencies']\n[tool.setuptools]\ndynamic.dependencies = 'more.txt'",
        ),
    ],
)
def test_a_file_included_by_requirements_changes_the_recipe(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    (tmp_path / "more.txt").write_text("small\n")
    before = lock.recipe_digest(Environment(str(path)))
    (tmp_path / "more.txt").write_text("small==1\n")
    assert lock.recipe_digest(Environment(str(path))) != before
    path.unlink()
    with pytest.raises(UsageError, match="cannot read"):
        lock.recipe_digest(Environment(str(path)))


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        ("dependencies = ['small', 'x>1']", ("small", "x>1")),
        ("requires-python = '>=3.12'\n\ndependencies = []", ()),
        ("dependencies = 3", "dependencies is not a list of texts"),
        ("dependencies = ['a b']", "Expected "),
        ("requires-python = '3'", "Invalid specifier"),
        ("requires-python = 3", "requires-python is not a text"),
        ("dependencies = [", "Invalid value"),
        ("[tool]\nuv = 2", "tool.uv is not a table"),
        ("dependencies = ['x']\n[tool.uv]\nsources = {}", "sources of .tool.uv. is not used"),
        ("dependencies = ['x']\n[tool.uv]\nexclude-newer = '2021-01-01'", "exclude-newer of .tool.uv."),
        ("[tool.uv]\nexclude-newer = '2021-01-01'", ()),
        ("[tool.uv]\nindex-url = 'https://me:secret@example.org'", "contains a login"),
    ],
)
def test_a_script_header_is_read(lines: str, found: tuple[str, ...] | str) -> None:
    rows = "\n".join(f"# {line}".rstrip() for line in lines.split("\n"))
    text = f"#!/bin/sh\n# /// script\n{rows}\n# ///\nimport os\n"
    if isinstance(found, tuple):
        table = of_script(text, "x.py")
        assert table is not None
        assert table.packages == found
        return
    for wrong, why in (
        (text, found),
        (text.replace("# ///\n", ""), "it has no end"),
        (text + text, "there are 2 of them"),
    ):
        with pytest.raises(UsageError, match=r"the header of x\.py") as error:
            of_script(wrong, "x.py")
        assert re.search(why, error.value.why)


def test_uv_settings_matter_only_in_a_header_that_is_used() -> None:
    """The suggested fix is an [env] table, which replaces the header."""
    text = "# /// script\n# dependencies = ['x']\n# [tool.uv]\n# resolution = 'lowest'\n# ///\n"
    with pytest.raises(UsageError) as error:
        of_script(text, "my train.py")
    assert "`uv export --script 'my train.py' -o requirements.txt`" in error.value.hint
    assert of_script(text, "my train.py", is_used=False) is not None


def test_only_a_real_header_counts() -> None:
    for text in ("import os", "# /// other\n# a = 1\n# ///\n", "x = '''\n  # /// script\n'''"):
        assert of_script(text, "x.py") is None


@pytest.mark.parametrize(
    ("line", "is_same"),
    [
        ("uv run train.py 3", True),
        ("uv run -q --script train.py 3", True),
        ("uv run --with torch train.py 3", False),
        ("uv run python train.py 3", False),
        ("uv sync", False),
    ],
)
def test_the_header_is_read_as_uv_run_would(line: str, is_same: bool) -> None:
    words = tuple(line.split())
    assert without_uv(words) == (("train.py", "3") if is_same else words)
