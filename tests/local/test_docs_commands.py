"""Every command that README and the pages show: called if that is cheap, otherwise only parsed.

- preflight, exec, runs, report, tail, status, stacks, pull, stop, clean and completion are called, against
  four hosts that are this machine and a run that has ended;
- launch is called with `--dry-run`: inventory, program and plan are checked, nothing is sent;
- rehearse, setup, init, push, export and tensorboard are only parsed; tests/ssh calls them.

Text in square brackets is a usage line: its verb and options must exist.
"""

import contextlib
import re
import shlex
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from orchestrator.cli.args import parser
from orchestrator.cli.main import main
from tests import verbs
from tests.exclusive import exclusive
from tests.folders import remove
from tests.local.here import inventory

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
CALLED = {*("preflight", "exec", "runs", "report", "tail", "status", "stacks", "pull", "stop", "clean")}
CALLED.add("completion")
READ = {*("rehearse", "setup", "init", "tensorboard", "push", "export")}

# Pages about something that this machine lacks: the message and exit status here.
ODD = {
    "exec -- nvidia-smi -L": 127,
    "exec --only 'gpu-[01-03]' -- sh -c 'echo a; echo b; exit 3'": 3,  # the status of the command itself
    "preflight": 3,  # no TensorFlow here
    "pull night /tmp/backup --to backups": 2,  # nothing was written there
    "stacks": 2,  # the run is over
}
WRITES = """
mkdir -p checkpoints logs && echo 1 > checkpoints/weights && echo 2 > model.keras && echo 3 > logs/events
echo "step 1, loss: 0.66"
"""


@dataclass(frozen=True)
class Shown:
    """One command as shown on a page."""

    page: str
    line: str
    wrong: bool  # the page shows it because of its error

    @property
    def words(self) -> list[str]:
        return shlex.split(self.line)[1:]

    @property
    def is_usage(self) -> bool:
        return bool(re.search(r"\[(?:-|[A-Za-z])| \| |COMMAND", self.line)) and not re.search(
            r"\[\d+[-\]]", self.line
        )


def shown() -> Iterator[Shown]:
    for file in PAGES:
        lines = file.read_text(encoding="utf-8").splitlines()
        for number, line in enumerate(lines):
            found = re.match(r"(?:    |\$ |    \$ )(?:[A-Z_]+=\S+ )*(?:~\S*/)?(orchestrate .*)", line)
            if found:
                wrong = any(one.strip().startswith("error:") for one in lines[number + 1 : number + 2])
                yield Shown(file.name, _alone(found[1]), wrong)


def _alone(line: str) -> str:
    """Return the command without a remark after two spaces, a pipe, or a redirection."""
    quoted = r"'[^']*'|\"[^\"]*\"|"
    found = re.match(rf"(?:{quoted}(?!  |\s[#>]|\s\|\s(?![a-z]+$| |[a-z]+ \|)).)*", line)
    assert found is not None
    return found[0].strip()


COMMANDS = sorted({(one.line, one.wrong): one for one in shown()}.values(), key=lambda one: one.line)


def test_the_pages_show_commands() -> None:
    shown = {one.words[0] for one in COMMANDS if not one.is_usage}
    assert len(COMMANDS) > 50
    assert shown >= set(parser.build(*parser.VERBS)[1])


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Four hosts that are this machine, the programs of the pages, and a finished run called night."""
    folder = tmp_path_factory.mktemp("place")
    shutil.copytree(ROOT / "examples", folder / "examples")
    (folder / "train.py").write_text("import json\n")
    (folder / "train.ipynb").write_text('{"nbformat": 4, "metadata": {}, "cells": []}')
    (folder / "program").touch()
    (folder / "say-trained").write_text("#!/bin/sh\n")
    (folder / "say-trained").chmod(0o755)
    launch = ("launch", "--skip-preflight", "--no-validate", "--name", "night", "--", "sh", "-c", WRITES)
    with inventory(folder, *(f"gpu-0{number}" for number in range(1, 5))) as hosts:
        (folder / "hosts.toml").write_text(hosts)
        done = verbs.call(launch, folder, folder / "state")
        assert done.status == 0, done.err
        yield folder
    remove(folder)  # an agent that was just disconnected may still write


@pytest.fixture
def here(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(place)
    monkeypatch.setenv("XDG_STATE_HOME", str(place / "state"))
    monkeypatch.setenv("PROGRAM", "true")
    return place


def of_this_run(words: list[str], here: Path) -> list[str]:
    """Replace the page's run with the one here, and a script in its home with our copy."""
    other = r"^(\d{8}-\d{6}-\w{4}|wcmp|digits|monday)$" if words[0] != "launch" else "^$"
    meant = [re.sub(other, "night", word) for word in words]
    return [word.replace("~/bin", str(here)) for word in meant]


@pytest.mark.parametrize("one", COMMANDS, ids=lambda one: f"{one.page}:{one.line}")
def test_every_command_on_a_page_works(one: Shown, here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    if one.is_usage:
        used = set(re.findall(r"(?<=[\[ ])--?[a-z][a-z-]*", one.line.split(" -- ")[0]))
        assert used <= set(parser.build(*parser.VERBS)[1][one.words[0]].options())
        return
    words = of_this_run(one.words, here)
    if words == ["--help"]:
        assert main(words) == 0
        return
    if one.wrong and words[0] == "launch":
        assert main(["launch", "--dry-run", *words[1:]]) == 2
        return
    arguments = parser.parse(words)
    if "--hosts" in words and not Path(arguments.hosts).exists() and "," not in arguments.hosts:
        return  # the page uses an inventory that does not exist here
    verb = words[0]
    assert verb in CALLED or verb in READ or verb == "launch"
    if verb in READ or one.wrong or "--follow" in words:  # it serves until it is interrupted
        return
    if verb == "launch":
        words = ["launch", "--dry-run", *(word for word in words[1:] if word != "--detach")]
    wanted = ODD.get(one.line.removeprefix("orchestrate "), 0)
    with exclusive("clean") if verb == "clean" else contextlib.nullcontext():
        status = main(words)
    out, err = capfd.readouterr()
    assert status == wanted, f"{out}\n{err}"
    assert "a bug in orchestrate" not in err
