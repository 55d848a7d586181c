"""What a machine says about itself."""

from __future__ import annotations

import os
import shlex
import shutil
import socket
import subprocess
import sys
import sysconfig
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from tests.node.harness import names_in
from tests.node.lab import Lab


def facts(lab: Lab, **fields: Any) -> dict[str, Any]:
    asked = {"python": sys.executable, "workdir": str(lab.workdir), "packages": [], **fields}
    return lab.agent(env=asked.pop("env_", {})).request("facts", **asked)


def test_the_training_python_and_its_packages(lab: Lab) -> None:
    found = facts(lab, packages=["pytest", "no-such-package"])
    version = ".".join(map(str, sys.version_info[:3]))
    known = {"path": sys.executable, "version": version, "ok": True, "error": "", "managed": False}
    assert found["python"] == known
    assert found["packages"] == {"pytest": pytest.__version__, "no-such-package": None}


@pytest.mark.parametrize("marked", [True, False])
def test_a_python_that_only_its_distribution_installs_into(lab: Lab, marked: bool) -> None:
    """As pip finds it out: a file beside the standard library, and no virtual environment (PEP 668)."""
    home = lab.folder / "home"
    library = home / Path(sysconfig.get_path("stdlib")).relative_to(sys.base_prefix)
    library.mkdir(parents=True)
    for entry in Path(sysconfig.get_path("stdlib")).iterdir():
        if entry.name != "EXTERNALLY-MANAGED":
            (library / entry.name).symlink_to(entry)
    if marked:
        (library / "EXTERNALLY-MANAGED").write_text("[externally-managed]\n")
    base = str(Path(sys.executable).resolve())
    setup = f"export PYTHONHOME={shlex.quote(str(home))}"
    assert facts(lab, python=base, setup=setup)["python"]["managed"] is marked


def test_a_python_that_does_not_work_is_a_fact(lab: Lab) -> None:
    program, crash = lab.folder / "python", lab.folder / "crash"
    program.write_text("#!/bin/sh\necho loading >&2\necho 'libpython3.so: cannot open' >&2\nexit 127\n")
    crash.write_text("#!/bin/sh\nkill -SEGV $$\n")
    program.chmod(0o755)
    crash.chmod(0o755)
    rows = {
        "/no/such/python": "No such file",
        "false": "ended with 1",
        "/etc/passwd": "Permission denied",
        str(program): "loading / libpython3.so: cannot open",
        str(crash): "killed by SIGSEGV",
    }
    agent = lab.agent()
    for python, words in rows.items():
        answer = agent.request("facts", python=python, workdir=str(lab.workdir), packages=["pip"])
        assert not answer["python"]["ok"]
        assert words in answer["python"]["error"]
        assert answer["packages"] == {"pip": None}
        assert answer["addresses"]  # the rest is told all the same


def test_packages_are_found_by_any_spelling_as_importlib_finds_them(lab: Lab) -> None:
    names = sorted({item.metadata["Name"] for item in metadata.distributions()})
    answer = facts(lab, packages=[*names, "PyTest", "mypy.extensions"])["packages"]
    assert {name: answer[name] for name in names} == {name: metadata.version(name) for name in names}
    assert answer["PyTest"] == pytest.__version__
    assert answer["mypy.extensions"] == metadata.version("mypy_extensions")


def test_setup_decides_which_python_it_is_and_may_be_noisy(lab: Lab) -> None:
    folder = lab.folder / "module bin"
    folder.mkdir()
    (folder / "trainer").symlink_to(sys.executable)
    setup = f'echo "loading {{"; export PATH="$PATH":{shlex.quote(str(folder))}'
    found = facts(lab, python="trainer", setup=setup)
    assert found["python"]["ok"], found["python"]["error"]
    assert facts(lab, setup="no-such-module load; exit 9")["python"]["ok"] is False
    failed = facts(lab, setup="no-such-module load")["setup"]
    assert failed["status"] == 127
    assert "no-such-module" in failed["words"]
    assert facts(lab, setup="echo no >&2; exit 3")["setup"] == {"status": 3, "words": "no"}


def test_programs_of_the_controller_are_run_and_their_output_is_the_answer(lab: Lab) -> None:
    programs = {
        "a": ["echo", "b c"],
        "missing": ["/no/such"],
        "fails": ["false"],
        "long": ["head", "-c", "99999", "/dev/zero"],
    }
    answers = facts(lab, programs=programs)["answers"]
    assert answers.pop("long") == "\0" * 20_000
    assert answers == {"a": "b c\n", "missing": "", "fails": ""}


def test_a_working_folder_is_made_and_measured(lab: Lab) -> None:
    found = facts(lab)["disk"]
    room = shutil.disk_usage(lab.folder)
    assert (found["workdir"]["writable"], found["workdir"]["path"]) == (True, str(lab.workdir))
    assert 0 < found["workdir"]["free"] <= room.total
    assert names_in(lab.workdir) == []
    assert set(found["state"]) == {"free"}


@pytest.mark.parametrize("place", ["/dev/null/x"])
def test_a_working_folder_that_cannot_be_written_is_a_fact(lab: Lab, place: str) -> None:
    found = facts(lab, workdir=place)["disk"]["workdir"]
    assert not found["writable"]
    assert found["error"] in ("No such file or directory", "Not a directory", "File exists")


def _addresses() -> set[str]:
    done = subprocess.run(["hostname", "-I"], capture_output=True, text=True, check=False)
    return set(done.stdout.split())


def test_addresses_as_the_kernel_tells_them(lab: Lab) -> None:
    before = _addresses()  # networks of containers come and go
    found = {each["ip"]: each["name"] for each in facts(lab)["addresses"]}
    assert found["127.0.0.1"] == "lo"
    assert before & _addresses() <= found.keys()
    assert set(found.values()) <= {"", *(name for _, name in socket.if_nameindex())}


def test_what_a_setup_leaves_in_the_background_is_not_waited_for(lab: Lab) -> None:
    """An agent, a daemon: it holds the pipe in which the answer is, and the answer is there."""
    setup = "sleep 600 & echo ready"
    assert facts(lab, setup=setup)["python"]["ok"]
    agent = lab.agent(env={"HOME": "/no/such/home"})  # an account of a service has none
    found = agent.request("imports", python=sys.executable, setup=setup, env={}, modules=["json"])
    assert ([one["name"] for one in found["modules"]], found["ended"]) == (["json"], "")


def test_a_python_that_prints_without_end_does_not_fill_the_memory(lab: Lab) -> None:
    python = lab.folder / "python"
    python.write_text("#!/bin/sh\nexec yes\n")
    python.chmod(0o755)
    assert facts(lab, python=str(python))["python"]["error"] == "it printed more than 64 MB"


def test_gpus_as_nvidia_smi_lists_them(lab: Lab) -> None:
    smi = lab.folder / "nvidia-smi"
    smi.write_text("#!/bin/sh\necho '0, NVIDIA A100-SXM4-40GB'\necho 'no devices'\necho '1, NVIDIA GB10'\n")
    smi.chmod(0o755)
    assert facts(lab, env_={"PATH": f"{lab.folder}:{os.environ['PATH']}"})["gpus"] == [
        {"index": 0, "name": "NVIDIA A100-SXM4-40GB"},
        {"index": 1, "name": "NVIDIA GB10"},
    ]


def test_r_as_the_job_would_find_it(lab: Lab) -> None:
    """Without R here: a program that answers as it does; what the setup prints is not the answer."""
    assert facts(lab)["r"] is None
    absent = facts(lab, r=True, env_={"PATH": "/nonexistent"})["r"]
    assert (absent["version"], absent["error"]) == (None, "Rscript: No such file or directory")
    rscript = lab.folder / "bin" / "Rscript"
    rscript.parent.mkdir()
    rscript.write_text('#!/bin/sh\nprintf "%s%s%s" "$3" "$R_SAYS" "$3"\n')
    rscript.chmod(0o755)

    def said(answer: str) -> dict[str, Any]:
        setup = f"echo hello; export R_SAYS='{answer}' PATH={shlex.quote(str(rscript.parent))}:$PATH"
        return dict(facts(lab, r=True, setup=setup)["r"])

    assert said("4.2.2 1.28 -") == {"version": "4.2.2", "reticulate": "1.28", "jsonlite": None, "error": ""}
    assert said("4.2.2 - 1.8.4") == {"version": "4.2.2", "reticulate": None, "jsonlite": "1.8.4", "error": ""}
