"""`orchestrate exec`: the real program against real sshd's."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orchestrator.rehearsal import Cluster
from tests.polling import poll
from tests.processes import cmdline, pids

ROOT = Path(__file__).parents[2]
CODE = "import sys; sys.argv[0] = 'orchestrate'; from orchestrator.cli.main import run; run()"


@pytest.fixture(scope="module")
def inventory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with Cluster(3, name="gpu") as cluster:
        file = tmp_path_factory.mktemp("exec") / "hosts.toml"
        keys = ("name", "ssh", "address", "agent_python", "workdir", "state", "ssh_config", "task_port")
        entries = [
            "[[host]]\n" + "".join(f"{key} = {json.dumps(getattr(host, key))}\n" for key in keys)
            for host in cluster.hosts
        ]
        file.write_text("\n".join(entries))
        yield file


def argv(inventory: Path, *words: str) -> list[str]:
    return [sys.executable, "-c", CODE, "exec", "--hosts", str(inventory), *words]


def orchestrate(inventory: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv(inventory, *words), cwd=ROOT, capture_output=True, text=True, check=False)


def until(condition: Callable[[], object], seconds: float = 30) -> None:
    assert poll(condition, seconds)


def processes(mark: str) -> list[int]:
    """Those of which the mark is a word of their own, on this machine, which is all hosts."""
    return [pid for pid in pids() if mark.encode() in cmdline(pid).split(b"\0")]


def test_equal_answers_are_shown_once(inventory: Path) -> None:
    done = orchestrate(inventory, "--", "echo", "one", "$HOME;", "*")
    assert (done.stdout, done.stderr, done.returncode) == ("gpu-[01-03]: one $HOME; *\n", "", 0)


def test_a_host_that_cannot_be_reached_is_an_error_beside_the_others(inventory: Path, tmp_path: Path) -> None:
    hosts = tmp_path / "hosts.toml"
    hosts.write_text(
        inventory.read_text() + '\n[[host]]\nname = "gone"\nssh = "127.0.0.1"\nport = 1\nuser = "x"\n'
    )
    done = orchestrate(hosts, "--", "echo", "here")
    assert done.stdout == "gpu-[01-03]: here\n"
    assert done.stderr.startswith("error: gone refused the connection")
    assert done.returncode == 3


def test_json_holds_one_line_a_host(inventory: Path) -> None:
    done = orchestrate(inventory, "--json", "--", "sh", "-c", r"printf 'a\377\n'; echo b >&2; exit 5")
    facts = sorted((json.loads(line) for line in done.stdout.splitlines()), key=lambda one: str(one["host"]))
    assert [one["host"] for one in facts] == ["gpu-01", "gpu-02", "gpu-03"]
    assert facts[0] == {"host": "gpu-01", "status": 5, "stdout": "a\ufffd\n", "stderr": "b\n"}
    assert done.returncode == 5


def test_what_a_command_leaves_running_is_ended_with_it(inventory: Path) -> None:
    mark = f"{os.getpid()}.111"
    code = f"trap '' TERM; setsid sleep {mark} & sleep {mark} & exit 0"
    done = orchestrate(inventory, "--", "sh", "-c", code)
    assert done.returncode == 0
    assert "gpu-[01-03]: 2 processes that it left running were ended" in done.stderr
    assert processes(mark) == []


def test_long_answers_come_line_by_line(inventory: Path, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    code = f"echo early; until [ -e {gate} ]; do sleep 0.05; done; echo late"
    with subprocess.Popen(
        argv(inventory, "--only", "gpu-02", "--", "sh", "-c", code),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout
        assert process.stdout.readline() == "gpu-02: early\n"
        gate.touch()
        assert process.stdout.read() == "gpu-02: late\n"


def test_a_flood_arrives_whole_and_in_order(inventory: Path) -> None:
    done = orchestrate(inventory, "--only", "gpu-01", "--json", "--", "seq", "400000")
    assert json.loads(done.stdout)["stdout"].splitlines() == [str(n) for n in range(1, 400_001)]


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_when_it_is_interrupted_or_killed(inventory: Path, end: signal.Signals) -> None:
    """Deaf to TERM, in a session of its own, in the background: all of it ends."""
    mark = f"{os.getpid()}.{end}222"
    code = f"trap '' TERM HUP INT; (setsid sleep {mark} &) ; sleep {mark} & echo up; wait; sleep {mark}"
    with subprocess.Popen(
        argv(inventory, "--", "sh", "-c", code),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        until(lambda: len([pid for pid in processes(mark) if cmdline(pid).startswith(b"sleep")]) == 6)
        process.send_signal(end)
        _, errors = process.communicate(timeout=60)
        if end is signal.SIGINT:
            assert processes(mark) == []  # that was awaited
            assert errors.decode().splitlines()[-1] == "nothing of it is left"
            assert process.returncode == 130
    until(lambda: processes(mark) == [])
