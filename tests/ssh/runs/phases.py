"""Runs that are held in a phase, so that something can be done to them there."""

import fcntl
import json
import shlex
import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from orchestrator.sync.contents import DataPath, read_data
from tests.ssh.runs.desk import FAMILY, Desk, until

SLEEPER = "#!/bin/sh\ntouch {mark}\nexec sleep 600\n"


@dataclass
class Held:
    """What launches a run that stays in its phase, and how to see that it is there."""

    desk: Desk
    words: tuple[str, ...]
    fast: bool
    there: Callable[[str], object]  # by run id

    def reached(self) -> str:
        """Wait until the run is in its phase; its id."""
        run = self.desk.run_id()
        until("the phase is reached", lambda: self.there(run))
        return run


def started(desk: Desk, phase: str) -> Callable[[str], object]:
    return lambda run: [e for e in desk.named("PhaseStarted", run) if e["phase"] == phase]


@contextmanager
def in_connect(desk: Desk) -> Iterator[Held]:
    """One host's port is open, and nothing ever answers there."""
    with socket.create_server(("127.0.0.1", 0)) as door:
        port = door.getsockname()[1]
        with desk.cluster.ssh_config.open("a") as config:
            config.write(
                f"Host silent-{port}\n    HostName 127.0.0.1\n    Port {port}\n    ConnectTimeout 4\n"
            )
        first, second = desk.cluster.hosts
        silent = replace(second, name="silent", ssh=f"silent-{port}")
        desk.write_hosts([first, silent], job=JOB)
        yield Held(desk, ("--", "true"), True, lambda run: desk.named("HostConnected", run))


@contextmanager
def in_preflight(desk: Desk) -> Iterator[Held]:
    """One host's training Python does not answer."""
    mark = desk.folder / "asked"
    python = desk.program("slow python", SLEEPER.format(mark=shlex.quote(str(mark))))
    first, second = desk.cluster.hosts
    desk.write_hosts([first, replace(second, python=str(python))], job=JOB)
    yield Held(desk, ("--", "true"), False, lambda _: mark.exists())


@contextmanager
def in_data(desk: Desk) -> Iterator[Held]:
    """Somebody else brings the same data to the second host, and does not come to an end."""
    labels = desk.folder / "labels.csv"
    labels.write_text("0,1,2\n")
    sent = read_data([DataPath("files/labels.csv", labels)])
    folder = Path(desk.cluster.hosts[1].workdir).expanduser() / "data"
    folder.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(folder / sent.digest, ignore_errors=True)
    desk.write_hosts(desk.cluster.hosts, job=f"{JOB}[data]\npaths = [{json.dumps(str(labels))}]\n")
    with (folder / f".lock-{sent.digest}").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield Held(desk, ("--", "true"), True, started(desk, "data"))


@contextmanager
def in_validate(desk: Desk) -> Iterator[Held]:
    """A validation of the user's own that never ends, nor listens, with a family."""
    family = desk.script("family.py", FAMILY)
    job = JOB + f"validate = 'python3 {family}'\n"
    desk.write_hosts(desk.cluster.hosts, job=job)
    logs = ("validate/worker-0.log", "validate/worker-1.log")

    def there(run: str) -> bool:
        paths = [desk.run_folder(run) / "logs" / name for name in logs]
        return all(path.exists() and b"family is up" in path.read_bytes() for path in paths)

    yield Held(desk, ("--skip-preflight", "--", "true"), False, there)


@contextmanager
def in_follow(desk: Desk) -> Iterator[Held]:
    """Tasks that ignore TERM, with families of every kind."""
    desk.write_hosts(desk.cluster.hosts, job=JOB)
    desk.script("t.py", FAMILY)
    yield Held(desk, ("--", "t.py"), True, lambda run: desk.families_are_up(run, 2))


PHASES = {
    "connect": in_connect,
    "preflight": in_preflight,
    "data": in_data,
    "validate": in_validate,
    "follow": in_follow,
}
JOB = "[job]\ngrace = 1\n"


def hold(desk: Desk, phase: str, stack: ExitStack) -> Held:
    return stack.enter_context(PHASES[phase](desk))


def traceback_free(desk: Desk, run: str) -> None:
    path = desk.run_folder(run) / "debug.log"
    said = path.read_text(errors="replace") if path.exists() else ""
    assert "Traceback" not in said, said
