"""A run as a user sees it in a real terminal; its four tasks print like Keras."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.local.here import inventory
from tests.local.screen import LIMIT, Screen, is_on, need_tmux
from tests.processes import called

ROOT = Path(__file__).parents[2]
TASKS = 4

# Output of Keras 2 until the middle of the second epoch; `deaf` ignores TERM.
PROGRAM = r"""
[ "$1" = deaf ] && trap '' TERM
echo "Epoch 1/3"
echo "20/20 [==============================] - 2s 93ms/step - loss: 0.5000 - accuracy: 0.9955"
echo "Epoch 2/3"
printf '\b\b\r 7/20 [=========>....................] - ETA: 0s - loss: 2.0000 - accuracy: 3.5000'
until [ -e "$GO" ]; do sleep 0.1; done
"""
COMMAND = """#!/bin/sh
exec '{python}' -c 'from orchestrator.cli.main import run; run()' "$@"
"""

Open = Callable[[int, int], Screen]


@dataclass(frozen=True)
class House:
    folder: Path
    project: Path
    environment: dict[str, str]

    def call(self, *words: str) -> str:
        done = called(["orchestrate", *words], cwd=self.project, env=self.environment, timeout=100)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.strip()


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    need_tmux()
    folder = tmp_path_factory.mktemp("house")
    project = folder / "project"
    project.mkdir()
    (project / "train.sh").write_text(PROGRAM)
    command = folder / "bin" / "orchestrate"
    command.parent.mkdir()
    command.write_text(COMMAND.format(python=sys.executable))
    command.chmod(0o755)
    kept = {name: os.environ[name] for name in ("HOME", "USER") if name in os.environ}
    environment = {
        **kept,
        "PATH": f"{command.parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "LANG": "C.UTF-8",
        "XDG_STATE_HOME": str(folder / "state"),
        "XDG_CONFIG_HOME": str(folder / "config"),
        "GO": str(folder / "go"),
    }
    with inventory(folder, *(f"gpu-{number:02}" for number in range(1, TASKS + 1))) as hosts:
        (project / "hosts.toml").write_text("[job]\nframework = 'none'\n" + hosts)
        yield House(folder, project, environment)


def launch(house: House, how: str = "", options: str = "") -> str:
    go = house.environment["GO"]
    words = f"launch --skip-preflight --no-validate --env GO={go} {options} -- sh train.sh {how}"
    return words.strip()


@pytest.fixture(scope="module")
def run(house: House) -> Iterator[str]:
    """A run that continues while it is being viewed, and whose tasks have printed everything."""
    run = house.call(*launch(house, options="--detach").split())
    deadline = time.monotonic() + LIMIT
    while any((task.get("epoch"), task.get("step")) != (2, 7) for task in tasks_of(house, run)):
        assert time.monotonic() < deadline
    yield run
    house.call("stop", "--now", run)  # the newest run belongs to another test


def tasks_of(house: House, run: str) -> list[dict[str, Any]]:
    (facts,) = [json.loads(line) for line in house.call("status", run, "--json").splitlines()]
    assert len(facts["tasks"]) == TASKS
    tasks: list[dict[str, Any]] = facts["tasks"]
    return tasks


@pytest.fixture
def open_screen(house: House) -> Iterator[Open]:
    screens: list[Screen] = []

    def opened(columns: int, rows: int) -> Screen:
        screen = Screen(house.project, house.environment, columns, rows)
        screens.append(screen)
        screen.wait(lambda lines: lines[-1:] == ["$"])
        return screen

    yield opened
    for screen in screens:
        screen.close()


RULE = "\u2500\u2500 run "


def board(lines: list[str]) -> list[str]:
    """Return the lines of the board, from its separator on."""
    first = next((n for n, line in enumerate(lines) if line.startswith(RULE)), len(lines))
    return lines[first:]


def latest(lines: list[str]) -> list[str]:
    """Return the last board; an unread frame from before a resize may be wrapped above it."""
    return board(lines[max((n for n, line in enumerate(lines) if line.startswith(RULE)), default=0) :])


def is_measured(lines: list[str]) -> bool:
    return sum(" 7/20 " in line and " %" in line for line in board(lines)) == TASKS


SIZES = [(76, 24), (200, 50)]  # 76: without the column of memory
AGE = r"(?:\d+ min )?\d+ s"


@pytest.mark.parametrize(("columns", "rows"), SIZES)
def test_the_board_fits_any_terminal_size(run: str, open_screen: Open, columns: int, rows: int) -> None:
    screen = open_screen(columns, rows)
    screen.run("orchestrate tail -n 5")
    # Output shared by tasks is held until all have printed it, so the board may appear first.
    lines = screen.wait(
        lambda lines: is_measured(lines) and any(line.endswith("| Epoch 2/3") for line in lines)
    )
    head, titles, *tasks = board(lines)
    assert re.fullmatch(rf"── run {run} running: 4 tasks, {AGE} ─+", head)
    assert len(head) == columns - 1
    memory = " memory" if columns > 76 else ""
    assert re.sub(" +", " ", titles) == f"task host state epoch step loss steps/s silent CPU{memory}"
    for number, task in enumerate(tasks, 1):
        named = rf"worker/{number - 1}  gpu-0{number}  training    2/3  7/20  0\.5000     10\.8"
        assert re.fullmatch(named + rf" +{AGE} +\d+ %" + (r" +[\d.]+ [kM]B" if memory else ""), task), task
    assert all(len(line) < columns for line in board(lines))


@pytest.mark.usefixtures("run")
def test_the_terminal_is_restored(open_screen: Open) -> None:
    screen = open_screen(100, 30)
    screen.run("orchestrate tail -n 5")
    screen.wait(is_measured)
    screen.resize(60, 20)
    screen.wait(lambda lines: (rows := latest(lines)) and all(len(row) < 60 for row in rows))
    screen.press("C-z")
    screen.shows("Stopped")
    assert screen.is_sane()
    screen.run("fg")
    screen.wait(lambda lines: len(latest(lines)) == TASKS + 2)
    screen.press("C-c")
    screen.shows("continues;")
    assert screen.is_sane()
    for number in (signal.SIGTERM, signal.SIGHUP):
        screen.run("orchestrate tail -n 5")
        screen.wait(lambda lines: len(latest(lines)) == TASKS + 2)
        os.kill(screen.children()[0], number)
        assert screen.is_sane()


def test_a_prompt_can_be_interrupted(house: House, open_screen: Open) -> None:
    key = house.folder / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "secret", "-f", str(key)], check=True)
    far = f'[[host]]\nssh = "gpu-01.invalid"\nidentity = "{key}"\n'
    (house.project / "far.toml").write_text(far)
    screen = open_screen(200, 20)
    screen.run("orchestrate launch --hosts far.toml -- true; echo status $?")
    screen.shows("Passphrase for ")
    screen.press("C-d")
    screen.shows("That did not open it. Passphrase for ")
    screen.press("C-c")
    screen.shows("status 130")
    assert screen.is_sane()


@pytest.mark.usefixtures("run")
def test_nothing_is_drawn_without_a_capable_terminal(house: House, open_screen: Open) -> None:
    screen = open_screen(100, 30)
    tail = "orchestrate tail --no-follow -n 5"
    for number, command in enumerate((f"{tail} 2>&1 | tee out", f"CI=1 TERM=dumb {tail} 2>&1 | tee out")):
        screen.run(f"{command}; echo end {number}")
        screen.shows(f"end {number} $")
        output = (house.project / "out").read_text()
        assert "Epoch 1/3" in output
        assert "\x1b[" not in output
    screen.run("TERM=dumb orchestrate tail -n 5")
    screen.shows("| Epoch 1/3")
    screen.press("C-c")
    screen.shows("continues;")
    assert not board(screen.lines())
    screen.run("NO_COLOR=1 script -qec 'orchestrate tail -n 5' /dev/null")
    screen.wait(is_measured)
    assert "\x1b[" not in "\n".join(screen.lines(colours=True))
    screen.press("C-c")
    assert screen.is_sane()


def test_status_and_lines_show_their_times(run: str, house: House, open_screen: Open) -> None:
    for task in tasks_of(house, run):
        assert (task["state"], task["epoch"], task["step"], task["steps"]) == ("running", 2, 7, 20)
        assert "said" not in task
    timed = house.call("tail", run, "--no-follow", "--timestamps")
    lines = [line for line in timed.splitlines() if "Epoch 1/3" in line]
    assert len(lines) == TASKS
    assert all(re.match(r"\d\d:\d\d:\d\d\.\d{3} worker/\d gpu-0\d \| Epoch 1/3", line) for line in lines)
    screen = open_screen(120, 20)
    screen.run(f"orchestrate status {run}")
    screen.shows("2/3 7/20 0.5000")


def test_silent_tasks_are_reported_and_deaf_ones_killed(house: House, open_screen: Open) -> None:
    screen = open_screen(100, 30)
    screen.run(f"orchestrate {launch(house, 'deaf', '--task worker/4')}")
    screen.shows("error: the run has no task worker/4")
    timings = "ORCHESTRATE_TIMINGS='{\"quiet\":1}'"
    screen.run(f"{timings} orchestrate {launch(house, 'deaf', '--other-ports --task worker/1')}")

    def labels(lines: list[str]) -> list[str]:
        return [line[:18] for line in lines if " | " in line and line[0] != " "]

    # A second without output may pass before the first line arrives.
    lines = screen.wait(lambda lines: is_on(lines, "no output from any task for") and len(labels(lines)) >= 3)
    assert labels(lines) == ["worker/1 gpu-02 | "] * 3
    screen.press("C-c")
    screen.wait(lambda lines: any("KILL in" in line for line in board(lines)))
    screen.press("C-c")
    screen.shows("was stopped after")
    assert screen.is_sane()
