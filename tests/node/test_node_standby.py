"""Standbys: a Python with its imports loaded becomes the task, or goes unnoticed."""

import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from orchestrator.node.base import procs
from orchestrator.node.task import slot
from tests.node.harness import guard_of, interpreters, names_in, supervisor_of, until
from tests.node.lab import Lab, gone

PROGRAM = """
import os, sys
print(sys.argv[1:], os.getcwd(), "decimal" in sys.modules, os.environ["WHO"], os.path.basename(__file__))
"""


_ENV = {"PYTEST_CURRENT_TEST": ""}  # pytest changes it


class Ahead:
    """A program in a folder, and its standby."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.agent = lab.agent(env=_ENV)
        (lab.folder / "train.py").write_text(PROGRAM)
        self.spec: dict[str, Any] = {
            "argv": [sys.executable, "train.py", "--x"],
            "env": {"WHO": "me"},
            "cwd": str(lab.folder),
            "python": sys.executable,
            "imports": ["decimal", "multiprocessing.process"],
        }

    @property
    def folders(self) -> list[Path]:
        folder = self.lab.state / "standby"
        return [folder / name for name in names_in(folder)]

    def prepare(self, **more: Any) -> int:
        """Prepare a standby, wait for its imports, and return its pid."""
        reply = self.agent.request("standby", specs=[self.spec | more], spare=False)
        assert reply == {"made": 1, "why": []}
        until((self.folders[0] / "ready").exists, what="it has imported")
        return int((self.folders[0] / "leader").read_text())

    def start(self, **more: Any) -> dict[str, Any]:
        return self.lab.start(
            self.agent, *self.spec["argv"], **{k: v for k, v in (self.spec | more).items() if k != "argv"}
        )

    def output(self) -> str:
        assert self.lab.over()["exit_code"] == 0, Path(self.lab.task().log).read_text()
        return Path(self.lab.task().log).read_text()


@pytest.fixture
def ahead(lab: Lab) -> Ahead:
    return Ahead(lab)


PYTHONS = [sys.executable, *(path for path in interpreters() if not path.endswith("3.7"))]


@pytest.mark.parametrize("python", PYTHONS, ids=os.path.basename)
def test_a_standby_becomes_the_task(lab: Lab, python: str) -> None:
    ahead = Ahead(lab)
    ahead.spec.update(argv=[python, "train.py", "--x"], python=python)
    pid = ahead.prepare()
    reply = ahead.start()
    assert (reply["pid"], reply["warm"], reply["cold"]) == (pid, True, "")
    assert ahead.output() == f"['--x'] {ahead.lab.folder} True me train.py\n"
    assert ahead.folders == []


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"env": {"WHO": "you"}}, "the environment differs: WHO"),
        (
            {"env": {"WHO": "me", "TF_CPP_MIN_LOG_LEVEL": "3"}},
            "the environment differs: TF_CPP_MIN_LOG_LEVEL",
        ),
        ({"imports": ["decimal"]}, "the imports differ"),
        (
            {"preset": [{"name": "XLA_FLAGS", "value": "x", "default": False}]},
            "the environment differs: XLA_FLAGS",
        ),
        ({"setup": "true"}, "it has a setup or a terminal"),
        ({"env": {"WHO": "me", "PYTHONPATH": "lib"}}, "PYTHONPATH has relative paths"),
    ],
)
def test_a_task_that_differs_starts_cold_and_says_why(ahead: Ahead, change: dict[str, Any], why: str) -> None:
    pid = ahead.prepare()
    reply = ahead.start(**change)
    assert (reply["warm"], reply["cold"]) == (False, why)
    assert reply["pid"] != pid
    assert " False " in ahead.output()
    assert not gone(pid)
    ahead.agent.close()
    until(lambda: gone(pid), what="it ends with the agent that prepared it")
    until(lambda: ahead.folders == [], what="none of its processes is left")


def test_settings_of_the_task_s_place_may_differ(ahead: Ahead) -> None:
    ahead.spec["free"] = ["TOKEN", "LD_PRELOAD"]
    pid = ahead.prepare()
    place = {
        "TF_CONFIG": "{}",
        "RANK": "3",
        "ORCHESTRATE_RANK": "3",
        "TOKEN": "secret",
        "TFDS_DATA_DIR": "/d",
    }
    reply = ahead.start(env={**ahead.spec["env"], **place})
    assert (reply["pid"], reply["warm"]) == (pid, True)
    ahead.output()


def test_importing_tfds_reads_the_data_set_folder(ahead: Ahead) -> None:
    (ahead.lab.folder / "tensorflow_datasets.py").write_text("")
    path = {**ahead.spec["env"], "PYTHONPATH": str(ahead.lab.folder)}
    ahead.spec.update(imports=["decimal", "tensorflow_datasets"], env=path)
    ahead.prepare()
    reply = ahead.start(env={**path, "TFDS_DATA_DIR": "/d"})
    assert (reply["warm"], reply["cold"]) == (False, "the environment differs: TFDS_DATA_DIR")
    ahead.output()


def test_a_task_inherits_the_effects_of_its_imports(ahead: Ahead, tmp_path: Path) -> None:
    """`a/b` is `from a import b`: a submodule is imported only if the package has no such attribute."""
    package, path = tmp_path / "near", {"WHO": "me", "PYTHONPATH": str(tmp_path), "GIVEN": "1"}
    package.mkdir()
    (package / "__init__.py").write_text(
        "import os\nvalue = 1\nos.environ['MADE'] = os.environ.pop('GIVEN')\n"
    )
    (package / "value.py").touch()
    (package / "part.py").touch()
    program = "import near, os\nprint(near.value, near.part, os.environ['MADE'], 'GIVEN' in os.environ)"
    (ahead.lab.folder / "train.py").write_text(program)
    ahead.spec.update(env=path, imports=["near/value", "near/part"])
    pid = ahead.prepare()
    assert ahead.start()["pid"] == pid
    assert ahead.output() == f"1 <module 'near.part' from '{package}/part.py'> 1 False\n"


def test_proc_shows_the_marks_of_the_task(ahead: Ahead) -> None:
    (ahead.lab.folder / "train.py").write_text("import time; time.sleep(600)")
    pid = ahead.prepare()
    assert procs.COOKIE not in procs.marks(pid)
    ahead.start()
    marks = procs.marks(pid)
    assert marks[procs.COOKIE].startswith(f"{ahead.lab.run}/1/worker/0/")
    assert (marks["ORCHESTRATE_RUN"], marks["ORCHESTRATE_ATTEMPT"]) == (ahead.lab.run, "1")
    assert marks["ORCHESTRATE_REPORT"] == ahead.lab.task().report
    assert [one.pid for one in procs.bearers(ahead.lab.run)] == [pid]


def test_a_start_during_the_import_waits_and_keeps_all_output(ahead: Ahead, tmp_path: Path) -> None:
    slow, ready = tmp_path / "slow", tmp_path / "go"
    slow.mkdir()
    waits = f"while not os.path.exists({str(ready)!r}):\n    time.sleep(0.01)\n"
    (slow / "slow.py").write_text(f"import os, time\nprint('noise', flush=True)\n{waits}")
    ahead.spec.update(imports=["slow"], env={"WHO": "me", "PYTHONPATH": str(slow)})
    (ahead.lab.folder / "train.py").write_text("import slow, sys; print('slow' in sys.modules)")
    assert ahead.agent.request("standby", specs=[ahead.spec], spare=False)["made"] == 1
    reply = ahead.start()
    assert reply["warm"]
    ready.touch()
    assert ahead.output() == "noise\nTrue\n"


def test_a_stop_during_the_import_ends_it(ahead: Ahead, tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text("import time; time.sleep(600)")
    ahead.spec.update(imports=["slow"], env={"WHO": "me", "PYTHONPATH": str(tmp_path)})
    (ahead.lab.folder / "train.py").write_text("import slow")
    assert ahead.agent.request("standby", specs=[ahead.spec], spare=False)["made"] == 1
    assert ahead.start()["warm"]
    ahead.lab.stop(ahead.agent)
    assert ahead.lab.over()["want"] == "stop"


@pytest.mark.parametrize("which", ["the Python", "the supervisor"])
def test_a_killed_standby_does_not_matter(ahead: Ahead, which: str) -> None:
    pid = ahead.prepare()
    os.kill(pid if which == "the Python" else supervisor_of(pid), signal.SIGKILL)
    until(lambda: ahead.folders == [], what="the standby is over")
    reply = ahead.start()
    assert (reply["warm"], reply["cold"]) == (False, "none was ready")
    assert " False " in ahead.output()


@pytest.mark.parametrize("change", ["module", "shadow"])
def test_a_standby_that_is_out_of_date_starts_the_task_cold(
    ahead: Ahead, tmp_path: Path, change: str
) -> None:
    (tmp_path / "lib_of_mine.py").write_text("VALUE = 'old'\n")
    ahead.spec.update(imports=["lib_of_mine"], env={"WHO": "me", "PYTHONPATH": str(tmp_path)})
    (ahead.lab.folder / "train.py").write_text("import lib_of_mine; print(lib_of_mine.VALUE)")
    ahead.prepare()
    (tmp_path if change == "module" else ahead.lab.folder).joinpath("lib_of_mine.py").write_text(
        "VALUE = 'new!'\n"
    )
    reply = ahead.start()
    assert not reply["warm"]
    assert "lib_of_mine.py" in reply["cold"]
    assert ahead.output() == "new!\n"


def test_a_standby_is_kept_warm_for_the_next_launch_until_its_deadline(ahead: Ahead) -> None:
    pid = ahead.prepare()
    kept = ahead.agent.request("standby_keep", seconds=600.0, owner="me@here", machine=ahead.lab.run)[
        "waiting"
    ]
    assert [one["command"].endswith("train.py --x") for one in kept] == [True]
    assert kept[0]["memory"] > 1 << 20
    ahead.agent.close()
    ahead.agent = ahead.lab.agent(env=_ENV)
    assert len(ahead.agent.request("states", run=None)["standbys"]) == 1
    reply = ahead.start()
    assert (reply["pid"], reply["cold"]) == (pid, "")
    ahead.output()
    ahead.prepare()
    ahead.agent.request("standby_keep", seconds=0.0, owner="me@here", machine=ahead.lab.run)
    until(lambda: ahead.folders == [], what="its time is over")


def test_the_free_memory_is_that_of_the_tightest_control_group(monkeypatch: pytest.MonkeyPatch) -> None:
    above = "/sys/fs/cgroup/user.slice/user-7.slice"
    files = {
        "/proc/meminfo": "MemTotal: 10 kB\nMemAvailable: 9 kB\nHugePages_Total: 0\n",
        "/proc/self/cgroup": "1:cpu:/\n0::/user.slice/user-7.slice/session-3.scope\n",
    }
    monkeypatch.setattr(procs, "text", lambda path: files.get(path, ""))
    assert slot.memory() == (10240, 9216)
    files |= {f"{above}/session-3.scope/memory.max": "max\n", f"{above}/memory.max": "6000\n"}
    files |= {f"{above}/memory.current": "5500\n", f"{above}/memory.stat": "anon 4000\ninactive_file 1500\n"}
    assert slot.memory() == (6000, 2000)
    files |= {f"{above}/session-3.scope/memory.max": "5000\n"}
    assert slot.memory() == (5000, 2000)


def clean(ahead: Ahead, *, dry: bool = False) -> Any:
    request: dict[str, Any] = {"workdir": str(ahead.lab.workdir), "alive": [], "known": [], "older": 0.0}
    return ahead.agent.request("clean", **request, shared=False, work=False, dry=dry)


def test_a_change_of_the_arguments_replaces_what_is_kept_warm(ahead: Ahead) -> None:
    """What another program has kept stays."""

    def keep(*argv: str) -> list[str]:
        spec = {**ahead.spec, "argv": [sys.executable, *argv]}
        ahead.agent.request("standby", specs=[spec], spare=False)
        fields: dict[str, Any] = {"seconds": 600.0, "owner": "me@here", "machine": ahead.lab.run}
        kept = ahead.agent.request("standby_keep", **fields)["waiting"]
        return [one["command"].removeprefix(f"{sys.executable} ") for one in kept]

    assert keep("other.py", "--x") == ["other.py --x"]
    assert keep("train.py", "--x") == ["train.py --x"]
    assert keep("-u", "train.py", "--y") == ["-u train.py --y"]
    commands = [one["command"] for one in ahead.agent.request("states", run=None)["standbys"]]
    ends = sorted(command.removeprefix(f"{sys.executable} ") for command in commands)
    assert ends == ["-u train.py --y", "other.py --x"]
    assert clean(ahead)["standbys"] == 2


def test_clean_ends_waiting_standbys_and_so_do_runs_of_other_owners(ahead: Ahead) -> None:
    pid = ahead.prepare()
    ahead.agent.request("standby_keep", seconds=600.0, owner="me@here", machine=ahead.lab.run)
    assert clean(ahead, dry=True)["standbys"] == 1
    assert not gone(pid)
    assert clean(ahead)["standbys"] == 1
    until(lambda: gone(pid), what="it has ended")
    pid = ahead.prepare()
    ahead.agent.request("standby_keep", seconds=600.0, owner="me@here", machine=ahead.lab.run)
    other = ahead.lab.agent(state=ahead.lab.folder / "other")
    theirs: dict[str, Any] = {
        "run": "theirs",
        "owner": "she@there",
        "machine": ahead.lab.run,
        "since": 1.0,
        "ports": {},
    }
    other.request("lease", **theirs)
    until(lambda: gone(pid), what="another owner's run has the machine")


GUEST = """
import os, subprocess, sys
if __name__ == "__main__":
    print(sys.argv[1:], os.path.basename(sys.argv[0]), os.getcwd() == sys.path[0], "decimal" in sys.modules)
    print(os.environ["WHO"], os.getsid(0) == os.getpid(), sys.dont_write_bytecode, flush=True)
    left = subprocess.Popen(["sleep", "600"], start_new_session=True)
    print(os.getpid(), left.pid, flush=True)
    while "stay" in sys.argv and not os.path.exists("go"):
        pass
    sys.exit(7)
"""


def _count(pid: int) -> int:
    """Return the number of a process's descriptors."""
    return len(names_in(Path(f"/proc/{pid}/fd")))


class Guest:
    """A module that runs in a fork of a standby, as the task worker/1."""

    def __init__(self, ahead: Ahead, *argv: str) -> None:
        self.ahead = ahead
        (ahead.lab.folder / "guest.py").write_text(GUEST)
        self.spec = {**ahead.spec, "argv": [sys.executable, "-m", "guest", *argv], "imports": ["decimal"]}
        self.spec["env"] = {**ahead.spec["env"], "PYTHONDONTWRITEBYTECODE": "1"}

    def start(self, **more: Any) -> dict[str, Any]:
        spec = {**self.spec, "guest": True, **more}
        return self.ahead.lab.start(self.ahead.agent, *spec.pop("argv"), task="worker/1", **spec)

    def lines(self, count: int) -> list[str]:
        log = Path(self.ahead.lab.task("worker/1").log)
        until(lambda: log.read_text().count("\n") >= count, what="it has printed")
        return log.read_text().splitlines()


def test_a_standby_lends_a_fork_and_becomes_its_own_task_later(ahead: Ahead) -> None:
    pid, guest = ahead.prepare(), Guest(ahead, "--x")
    before = {ours: _count(ours) for ours in (supervisor_of(pid), guard_of(pid))}
    reply = guest.start()
    assert (reply["warm"], reply["cold"]) == (True, "")
    end = ahead.lab.over("worker/1")
    assert (end["exit_code"], end["message"]) == (7, "left 1 process behind, which was ended")
    first, second, third = guest.lines(3)
    assert first == "['--x'] guest.py True True"
    assert second == "me True True"
    own, left = map(int, third.split())
    assert own == reply["pid"] != pid
    assert (gone(own), gone(left), gone(pid)) == (True, True, False)
    until(
        lambda: all(_count(ours) <= count for ours, count in before.items()),
        what="nothing of the guest is open",
    )
    reply = ahead.start()
    assert (reply["pid"], reply["warm"], reply["cold"]) == (pid, True, "")
    assert ahead.output() == f"['--x'] {ahead.lab.folder} True me train.py\n"
    assert ahead.folders == []


def test_a_guest_that_waited_for_the_import_has_only_its_own_output(ahead: Ahead, tmp_path: Path) -> None:
    ready = tmp_path / "go"
    waits = f"while not os.path.exists({str(ready)!r}):\n    time.sleep(0.01)\n"
    (tmp_path / "slow.py").write_text(f"import os, time\nprint('noise', flush=True)\n{waits}")
    ahead.spec.update(imports=["slow", "decimal"], env={"WHO": "me", "PYTHONPATH": str(tmp_path)})
    assert ahead.agent.request("standby", specs=[ahead.spec], spare=False)["made"] == 1
    guest = Guest(ahead)
    assert guest.start()["warm"]
    ready.touch()
    assert ahead.lab.over("worker/1")["exit_code"] == 7
    assert guest.lines(3)[0] == "[] guest.py True True"
    assert ahead.start()["warm"]
    assert ahead.output() == f"noise\n['--x'] {ahead.lab.folder} True me train.py\n"


def test_a_guest_starts_cold_where_no_process_can_be_created(ahead: Ahead, tmp_path: Path) -> None:
    """If the second fork fails, the parent of the first must not wait for it."""
    fails = "def fork(fork=os.fork):\n    os.fork = failing\n    return fork()\n"
    error = "def failing():\n    raise BlockingIOError(11, 'no more processes')\n"
    (tmp_path / "scarce.py").write_text(f"import os\n{error}{fails}os.fork = fork\n")
    ahead.spec.update(imports=["decimal", "scarce"], env={"WHO": "me", "PYTHONPATH": str(tmp_path)})
    pid, guest = ahead.prepare(), Guest(ahead)
    reply = guest.start()
    assert (reply["warm"], reply["cold"]) == (False, "it has ended")
    assert ahead.lab.over("worker/1")["exit_code"] == 7
    assert gone(pid)


@pytest.mark.parametrize("who", ["a user", "its supervisor", "its guard"])
def test_the_end_of_a_guest_is_detected_whatever_the_cause(ahead: Ahead, who: str) -> None:
    pid, guest = ahead.prepare(), Guest(ahead, "stay")
    own = guest.start()["pid"]
    left = int(guest.lines(3)[2].split()[1])
    assert ahead.agent.request("standby", specs=[{**guest.spec, "guest": True}], spare=False)["made"] == 0
    assert ahead.start()["cold"] == "none was ready"
    if who == "a user":
        ahead.lab.stop(ahead.agent)
    else:
        os.kill(supervisor_of(own) if who == "its supervisor" else guard_of(own), signal.SIGKILL)
    if who == "its guard":
        ahead.lab.stop(ahead.agent, kill=True)
    end = ahead.lab.over("worker/1")
    assert end["state"] == ("lost" if who == "its supervisor" else "exited")
    until(lambda: gone(own) and gone(left), what="none of its processes is left")
    if who == "a user":
        assert not gone(pid)
        assert len(ahead.folders) == 1
    else:
        until(lambda: gone(pid), what="nothing waits without its guard and supervisor")


def test_a_guest_outlives_its_agent_and_the_standby_ends_after_it(ahead: Ahead) -> None:
    pid, guest = ahead.prepare(), Guest(ahead, "stay")
    own = guest.start()["pid"]
    guest.lines(3)
    ahead.agent.close()
    ahead.agent = ahead.lab.agent(env=_ENV)
    assert not gone(own)
    assert not gone(pid)
    (ahead.lab.folder / "go").touch()
    assert ahead.lab.over("worker/1")["exit_code"] == 7
    until(lambda: gone(pid), what="it ends with the agent that prepared it")
    until(lambda: ahead.folders == [], what="none of its processes is left")


@pytest.mark.parametrize(
    ("change", "lends"),
    [
        ({}, True),
        ({"env": {"WHO": "me", "TF_CPP_MIN_LOG_LEVEL": "3"}}, True),
        ({"env": {"WHO": "me", "TF_USE_LEGACY_KERAS": "1"}}, True),
        ({"env": {"WHO": "you"}}, False),
        ({"imports": ["torch"]}, False),
        ({"guest": False}, False),
    ],
)
def test_a_guest_with_different_settings_gets_its_own_standby(
    ahead: Ahead, change: dict[str, Any], lends: bool
) -> None:
    ahead.prepare()
    spec = {**Guest(ahead).spec, "guest": True, **change}
    assert ahead.agent.request("standby", specs=[spec], spare=False)["made"] == (not lends)
