"""`launch --attach`: a task uses our terminal, here a real one."""

import os
import shlex
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.errors import ExitStatus
from tests.local.screen import Screen, is_on, need_tmux
from tests.ssh.runs.desk import Desk, until

PROGRAM = """
import json, os, pdb, sys, time
from pdb import set_trace
def size():
    found = os.get_terminal_size()
    return f"{found.columns}x{found.lines}"
index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
if index == 0:
    answer = 41
    print("terminal", sys.stdin.isatty(), bool(os.environ["TERM"]), size(), flush=True)
    try:
        time.sleep(600 if len(sys.argv) == 3 else 0)
    except KeyboardInterrupt:
        print("woken", size())
    breakpoint()
    print("the answer is", answer)
    if input("code? ") == "7":
        sys.exit(7)
else:
    breakpoint()
    set_trace()
    pdb.Pdb().set_trace()
    print("alone", sys.stdin.isatty())
    while not os.path.exists(sys.argv[1]):
        time.sleep(0.01)
"""


@pytest.fixture
def screen(desk: Desk) -> Iterator[Screen]:
    need_tmux()
    screen = Screen(desk.project, {**desk.environment(), "TERM": "xterm"}, 100, 30)
    try:
        yield screen
    finally:
        screen.close()


def attach(desk: Desk, screen: Screen, *more: str) -> None:
    desk.script("t.py", PROGRAM)
    words = [
        "sh",
        "-c",
        'echo $$ >viewer; exec "$@"',
        "sh",
        sys.executable,
        "-m",
        "orchestrator",
        "launch",
        "--hosts",
        str(desk.hosts),
        "--skip-preflight",
    ]
    words += ["--no-validate", "--attach", "worker/0", "--", "t.py", str(desk.folder / "end"), *more]
    screen.run(shlex.join(words) + "; echo status $?")


def test_a_debugger_works_while_the_other_tasks_wait(desk: Desk, screen: Screen) -> None:
    attach(desk, screen, "sleep")
    screen.shows("terminal True True 100x30")
    screen.resize(80, 24)
    until("it has the new size", lambda: _size_of_terminal(desk) == (24, 80))
    screen.press("C-c")
    screen.shows("woken 80x24")
    screen.shows("(Pdb)")
    screen.press("a", "n", "s", "BSpace", "s", "w", "e", "r", "=", "7", "Enter", "c", "Enter")
    screen.shows("the answer is 7")
    screen.shows("code?")
    screen.press("7", "Enter")
    screen.shows("exited with 7")
    screen.shows(f"status {ExitStatus.RUN_FAILED.value}")
    assert not is_on(screen.lines(), "alone")
    assert screen.is_sane()
    log = (desk.run_folder() / "logs" / "1" / "worker-1.log").read_text()
    assert log.count("skipped the breakpoint in t.py, line 20: this task has no terminal") == 1
    assert log.endswith("alone False\n")
    desk.nothing_is_left(desk.run_id())


def _size_of_terminal(desk: Desk) -> tuple[int, int]:
    (pid,) = desk.task_pids(desk.run_id(), "worker/0")
    with Path(f"/proc/{pid}/fd/0").open("rb") as terminal:
        size = os.get_terminal_size(terminal.fileno())
    return size.lines, size.columns


def test_a_killed_keeper_and_a_leaving_viewer(desk: Desk, screen: Screen) -> None:
    attach(desk, screen)
    screen.shows("(Pdb)")
    run = desk.run_id()
    first = desk.keeper(run)
    os.kill(first, signal.SIGKILL)
    until("another keeper has it", lambda: desk.keeper(run) != first)
    screen.press("p", "Space", "6", "*", "7", "Enter")
    screen.shows("42")
    screen.press("C-]")
    screen.shows(f"run {run} continues")
    screen.shows(f"status {ExitStatus.INTERRUPTED.value}")
    assert screen.is_sane()
    desk.start("stop", run).ended()
    desk.nothing_is_left(run)


def test_the_terminal_is_restored_after_a_hangup(desk: Desk, screen: Screen) -> None:
    attach(desk, screen)
    screen.shows("(Pdb)")
    os.kill(int((desk.project / "viewer").read_text()), signal.SIGHUP)
    screen.shows(f"status {128 + signal.SIGHUP}")
    assert screen.is_sane()
    desk.start("stop", desk.run_id()).ended()


def test_an_unattached_program_skips_its_breakpoints(desk: Desk) -> None:
    desk.script("t.py", "breakpoint()\nimport pdb\npdb.set_trace()\nprint('after')\n")
    viewer = desk.launch("--", "t.py").ended()
    assert viewer.stdout.count("skipped the breakpoint in t.py, line 1: ") == 2
    own = ("--env", "PYTHONBREAKPOINT=builtins.print")
    desk.launch(*own, "--", "t.py").ended(ExitStatus.RUN_FAILED)  # by pdb, as in the user's setup
