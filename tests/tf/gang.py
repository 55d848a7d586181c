"""Real training processes for tests, each started with a TF_CONFIG, and none left behind."""

import contextlib
import fcntl
import functools
import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

from tests.command import Forked, Nursery
from tests.polling import poll
from tests.ports import free_ports
from tests.tf.zygote import ENVIRONMENT, PROGRAM
from tests.training import training_python

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 150.0  # for one gang; the machine may be busy


@functools.cache
def nursery() -> Nursery:
    """Return this process's nursery: it uses 400 MB, and is created for the first task."""
    return Nursery(training_python(), PROGRAM, {**os.environ, **ENVIRONMENT})


class Trainee:
    """One task's process, its output and its reports."""

    def __init__(self, name: str, argv: Sequence[str], env: Mapping[str, str], folder: Path) -> None:
        self.name = name
        self.log = folder / f"{name.replace('/', '-')}.log"
        self.reports = folder / f"{name.replace('/', '-')}.jsonl"
        env = {**env, "ORCHESTRATE_REPORT": str(self.reports)}
        self.process: subprocess.Popen[bytes] | Forked
        as_it_is = env.get("PYTHONPATH") == os.environ.get("PYTHONPATH")
        with Path(os.devnull).open("rb") as null, self.log.open("ab") as out:
            if (
                argv[1] == "-m"
                and as_it_is
                and not env.keys() & (ENVIRONMENT.keys() - {"TF_CPP_MIN_LOG_LEVEL"})
            ):
                streams = (null.fileno(), out.fileno(), out.fileno())
                self.process = nursery().start(argv[2:], ROOT, env, streams)
                return
            self.process = subprocess.Popen(
                argv, env=env, cwd=ROOT, stdin=null, stdout=out, stderr=out, start_new_session=True
            )

    @property
    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def records(self, kind: str) -> list[dict[str, Any]]:
        if not self.reports.exists():
            return []
        lines = self.reports.read_text().splitlines(keepends=True)
        records = [json.loads(line) for line in lines if line.endswith("\n")]
        return [record for record in records if record["kind"] == kind]

    @property
    def result(self) -> dict[str, Any]:
        results = self.records("result")
        assert len(results) == 1, f"{self.name} reported {len(results)} results:\n{self.text[-3000:]}"
        return results[0]

    @property
    def step(self) -> int:
        return max((record["step"] for record in self.records("progress")), default=0)

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            self.process.send_signal(signal.SIGKILL)  # just forked, without its own process group yet
        self.process.wait()


class Gang:
    """The tasks of one cluster. Leaving the `with` kills those still alive."""

    def __init__(
        self,
        folder: Path,
        args: Sequence[str],
        *,
        jobs: Mapping[str, int] | None = None,
        start: Sequence[str] | None = None,
        per_task: Callable[[str], Sequence[str]] = lambda _task: (),
        env: Mapping[str, str] | None = None,
    ) -> None:
        """`jobs` has the number of tasks by kind (none: one process); `start` names those to start (all)."""
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._argv = [training_python(), *args]
        self._per_task = per_task
        self._env = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", **(env or {})}
        self._env.pop("TF_CONFIG", None)
        counts = dict(jobs or {})
        ports = iter(free_ports(sum(counts.values())))
        self.cluster = {
            kind: [f"127.0.0.1:{next(ports)}" for _ in range(count)] for kind, count in counts.items()
        }
        names = [f"{kind}/{i}" for kind, count in counts.items() for i in range(count)]
        self.tasks: dict[str, Trainee] = {}
        for name in start if start is not None else names or ["alone"]:
            self.start(name)

    def start(self, name: str) -> Trainee:
        """Start one task (again)."""
        env = dict(self._env)
        if self.cluster:
            kind, _, index = name.partition("/")
            task = {"type": kind, "index": int(index)}
            env["TF_CONFIG"] = json.dumps({"cluster": self.cluster, "task": task})
        trainee = Trainee(name, [*self._argv, *self._per_task(name)], env, self._folder)
        self.tasks[name] = trainee
        return trainee

    def __getitem__(self, name: str) -> Trainee:
        return self.tasks[name]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _value: BaseException | None, _trace: TracebackType | None
    ) -> None:
        for trainee in self.tasks.values():
            trainee.kill()

    def until(self, what: str, condition: Callable[[], bool], patience: float = PATIENCE) -> None:
        """Wait for a condition while the tasks run; fail with their output if it is never met."""
        if not poll(condition, patience):
            raise AssertionError(f"not within {patience:g} s: {what}\n{self.tails()}")

    def wait(self, *names: str, patience: float = PATIENCE) -> dict[str, int]:
        """Wait for these tasks (all), and return their exit codes."""
        asked = [self.tasks[name] for name in names] or list(self.tasks.values())
        self.until(
            f"the end of {[task.name for task in asked]}",
            lambda: all(task.process.poll() is not None for task in asked),
            patience,
        )
        return {task.name: task.process.wait() for task in asked}

    def finish(self, *names: str) -> list[dict[str, Any]]:
        """Wait for these tasks (all), which must end with status 0, and return their results."""
        codes = self.wait(*names)
        assert set(codes.values()) == {0}, f"{codes}\n{self.tails()}"
        # They are killed together: none sees the cluster break.
        assert not any("Abort" in self.tasks[name].text for name in codes), self.tails()
        return [self.tasks[name].result for name in codes]

    def tails(self) -> str:
        return "\n".join(f"--- {task.name}\n{task.text[-2500:]}" for task in self.tasks.values())


def worker_entry(*options: str) -> list[str]:
    return ["-m", "worker_entry", *options]


def words(line: str) -> list[str]:
    return line.split()


def called(folder: Path, module: str, *args: str) -> str:
    """Run one of our modules with the training Python; return its output; it must end with status 0."""
    argv = [training_python(), "-m", module, *args]
    asked = Trainee(module, argv, {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"}, folder)
    assert asked.process.wait() == 0, asked.text
    return asked.text


def compare(one: Path, other: Path) -> dict[str, Any]:
    """Return the difference between the newest checkpoints of two folders; see weights.py."""
    output = called(other.parent, "tests.tf.weights", str(one), str(other))
    found: dict[str, Any] = json.loads(output.splitlines()[-1])
    return found


@contextlib.contextmanager
def once(factory: pytest.TempPathFactory, name: str) -> Iterator[Path]:
    """Return a folder that a session's workers share: the first one fills it while the others wait."""
    session = os.environ.get("PYTEST_XDIST_TESTRUNUID") or str(os.getpid())
    folder = factory.getbasetemp().parent / f"{name}-{session}"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield folder
