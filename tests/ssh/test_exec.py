"""`orchestrate exec`: the real program against real SSH servers."""

import json
import os
import signal
from collections.abc import Iterator

import pytest

from tests.processes import cmdline, pids
from tests.ssh.runs.desk import Desk, Viewer, desk_with, until
from tests.ssh.runs.test_hosts_that_fail import stopped


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    yield from desk_with(3, tmp_path_factory.mktemp("exec"), name="gpu")


def start(desk: Desk, *words: str) -> Viewer:
    return desk.start("exec", "--hosts", str(desk.hosts), *words)


def execute(desk: Desk, *words: str) -> tuple[str, str, int]:
    """Return its stdout, stderr, and status."""
    viewer = start(desk, *words)
    status = viewer.wait()
    return viewer.stdout, viewer.stderr, status


def processes(mark: str) -> list[int]:
    """Return processes with the mark as an argument, on this machine, which plays all hosts."""
    return [pid for pid in pids() if mark.encode() in cmdline(pid).split(b"\0")]


def test_equal_output_is_shown_once_next_to_the_error_of_an_unreachable_host(desk: Desk) -> None:
    assert execute(desk, "--", "echo", "one", "$HOME;", "*") == ("gpu-[01-03]: one $HOME; *\n", "", 0)
    inventory = desk.hosts.read_text()
    desk.hosts.write_text(f'{inventory}[[host]]\nname = "gone"\nssh = "127.0.0.1"\nport = 1\nuser = "x"\n')
    out, errors, status = execute(desk, "--", "echo", "here")
    desk.hosts.write_text(inventory)
    assert (out, status) == ("gpu-[01-03]: here\n", 3)
    assert errors.startswith("error: gone refused the connection")


def test_json_has_one_line_per_host(desk: Desk) -> None:
    out, _, status = execute(desk, "--json", "--", "sh", "-c", r"printf 'a\377\n'; echo b >&2; exit 5")
    facts = sorted((json.loads(line) for line in out.splitlines()), key=lambda one: str(one["host"]))
    assert [one["host"] for one in facts] == ["gpu-01", "gpu-02", "gpu-03"]
    assert facts[0] == {"host": "gpu-01", "status": 5, "stdout": "a\ufffd\n", "stderr": "b\n"}
    assert status == 5


def test_processes_left_by_a_command_end_with_it(desk: Desk) -> None:
    mark = f"{os.getpid()}.111"
    code = f"trap '' TERM; setsid sleep {mark} & sleep {mark} & exit 0"
    _, errors, status = execute(desk, "--", "sh", "-c", code)
    assert status == 0
    assert "gpu-[01-03]: 2 processes that it left running were ended" in errors
    assert processes(mark) == []


def test_long_output_arrives_line_by_line(desk: Desk) -> None:
    gate = desk.folder / "gate"
    code = f"echo early; until [ -e {gate} ]; do sleep 0.05; done; echo late"
    viewer = start(desk, "--only", "gpu-02", "--", "sh", "-c", code)
    until("the first line is shown", lambda: viewer.stdout == "gpu-02: early\n")
    gate.touch()
    assert viewer.wait() == 0
    assert viewer.stdout == "gpu-02: early\ngpu-02: late\n"


def test_a_flood_arrives_complete_and_in_order(desk: Desk) -> None:
    out, _, _ = execute(desk, "--only", "gpu-01", "--json", "--", "seq", "400000")
    assert json.loads(out)["stdout"].splitlines() == [str(n) for n in range(1, 400_001)]


def test_ctrl_c_discards_pending_output(desk: Desk) -> None:
    """Output of `yes` used to take 15 s, after which the command's end was unknown."""
    sent, screen = desk.folder / "sent", desk.folder / "screen"
    os.mkfifo(screen)
    words = ("exec", "--hosts", str(desk.hosts), "--only", "gpu-02", "--", "sh", "-c")
    flood = f"yes | head -c 16000000; touch {sent}; exec sleep {os.getpid()}.333"
    viewer = desk.start(*words, flood, shell=f'exec "$@" > {screen}')
    with screen.open("rb") as terminal:
        until("all of it waits", sent.exists)
        viewer.signal(signal.SIGINT)
        assert len(terminal.read()) < 1 << 20
    assert viewer.wait() == 130
    assert viewer.stderr.splitlines()[-1] == "none of its processes is left"


def test_a_hanging_host_does_not_delay_an_interrupted_command(desk: Desk) -> None:
    mark = f"{os.getpid()}.444"
    viewer = start(desk, "--", "sleep", mark)
    until("all sleep", lambda: len(processes(mark)) == 3)
    with stopped(desk.agents_of(1)[:1]):  # not its child, whose end would end the command
        viewer.signal(signal.SIGINT)
        assert viewer.wait() == 130
    assert viewer.stderr.splitlines()[-1] == "warning: gpu-02 did not report the end of its command"
    until("nothing is left", lambda: not processes(mark))


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL])
def test_nothing_remains_after_an_interrupt_or_a_kill(desk: Desk, end: signal.Signals) -> None:
    """Processes that ignore TERM, have their own session, or run in the background all end."""
    mark = f"{os.getpid()}.{end}222"
    code = f"trap '' TERM HUP INT; (setsid sleep {mark} &) ; sleep {mark} & echo up; wait; sleep {mark}"
    viewer = start(desk, "--", "sh", "-c", code)
    until("all sleep", lambda: sum(cmdline(pid).startswith(b"sleep") for pid in processes(mark)) == 6)
    viewer.signal(end)
    status = viewer.wait()
    if end is signal.SIGINT:
        assert processes(mark) == []  # the one that was awaited
        assert viewer.stderr.splitlines()[-1] == "none of its processes is left"
        assert status == 130
    until("nothing is left", lambda: not processes(mark))
