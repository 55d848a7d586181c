"""What a Tab offers, asked of the shells themselves."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.cli.main import main
from orchestrator.names import RunId
from orchestrator.store import RunFolder
from tests import command
from tests.unit import plans

RUN = "20260102-030405-abcd"
BIN = Path(sys.executable).parent


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with an inventory and a program, and a home with a run."""
    for name in ("gpu-01", "gpu-02", "head"):
        with (tmp_path / "hosts.toml").open("a") as file:
            file.write(f'[[host]]\nssh = "{name}"\naddress = "{name}"\n')
    (tmp_path / "train.py").touch()
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "config").write_text("Include more\nHost box-7 box-?\n  User me\nMatch all\n")
    (tmp_path / ".ssh" / "more").write_text("Host = box-9\n")
    run = dataclasses.replace(plans.make(plans.host("gpu-01"), plans.host("gpu-02")), run=RUN, name="night")
    RunFolder(tmp_path / "state" / "orchestrate" / "runs", RunId(RUN)).create(run)
    return tmp_path


def environ(place: Path) -> dict[str, str]:
    return {
        "HOME": str(place),
        "XDG_STATE_HOME": str(place / "state"),
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "TERM": "dumb",
        "LANG": "C.UTF-8",
    }


def question(place: Path, typed: str) -> dict[str, str]:
    """Ask as a shell does, but for the start of a Python."""
    return environ(place) | {
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_STDOUT_FILENAME": str(place / "out"),
        "COMP_LINE": typed,
        "COMP_POINT": str(len(typed)),
    }


# What is typed, what is offered among other things, and what is not.
TYPED = [
    ("orchestrate ta", {"tail"}, {"status", "--help"}),
    ("orchestrate launch --max", {"--max-restarts"}, {"--min-hosts"}),
    ("orchestrate launch --fold ", {"similar", "none"}, set()),
    ("orchestrate tail ", {RUN, "night"}, {"--task"}),
    ("orchestrate tail --", {"--task"}, {"--detach"}),
    ("orchestrate exec --only gpu-01,g", {"gpu-01,gpu-02"}, {"gpu-01,gpu-01", "gpu-01,head"}),
    (f"orchestrate tail {RUN} --task ", {"worker/0", "worker/1"}, set()),
    ("orchestrate pull night --from ", {"worker/0", "gpu-02"}, set()),
    ("orchestrate launch -- tr", {"train.py"}, set()),
    ("orchestrate init b", {"box-7", "box-9"}, {"box-?"}),
    ("orchestrate completion ", {"bash", "zsh", "fish"}, set()),
]


@pytest.mark.parametrize(("typed", "wanted", "unwanted"), TYPED)
def test_what_is_offered(typed: str, wanted: set[str], unwanted: set[str], place: Path) -> None:
    assert command.run((), place, question(place, typed)).returncode == 0
    offered = {word.strip() for word in (place / "out").read_text().split("\x0b")}
    assert wanted <= offered
    assert not unwanted & offered


def test_bash(place: Path) -> None:
    line = "orchestrate exec --only gpu-01,g"
    script = (
        "source <(orchestrate completion bash)\n"
        f"COMP_LINE='{line}'; COMP_POINT=${{#COMP_LINE}}; COMP_TYPE=9; COMPREPLY=()\n"
        "COMP_WORDBREAKS=$' \\t\\n\"\\'><=;|&(:'\n"
        '_python_argcomplete orchestrate; echo "${COMPREPLY[*]-}"\n'
    )
    done = subprocess.run(
        ["bash", "--norc", "-c", script],
        cwd=place,
        env=environ(place),
        capture_output=True,
        text=True,
        timeout=150,
        check=True,
    )
    assert "gpu-01,gpu-02" in done.stdout.split()


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_have_a_script_of_their_own(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    assert "orchestrate" in capsys.readouterr().out


def test_a_tab_in_a_broken_place_says_nothing(tmp_path: Path) -> None:
    """Nothing is printed into the line that is typed."""
    (tmp_path / "hosts.toml").write_text("[[hst]]\n")
    done = command.run((), tmp_path, question(tmp_path, "orchestrate exec --only "))
    assert (done.returncode, done.stdout, (tmp_path / "out").read_text()) == (0, "", "")
