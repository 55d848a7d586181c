"""A controller, a project and a rehearsal cluster, driven through the command line as a user would."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from orchestrator.errors import ExitStatus
from orchestrator.events import encode
from orchestrator.model import Host, Role
from orchestrator.names import RunId
from orchestrator.rehearsal import Cluster
from orchestrator.rehearsal.cluster import SshServer
from orchestrator.store import RunFolder
from orchestrator.store.reader import events_of
from orchestrator.timings import VARIABLE
from tests import command
from tests.polling import poll
from tests.processes import bearers, cmdline, descendants, holder, is_gone, opened, openers, pids, send

EXAMPLES = Path(__file__).parents[3] / "examples"
LIMIT = 120.0  # seconds; an upper bound, never a fixed wait
HOSTILE = "a user's $(folder)"
_LISTENS = "Server listening on"  # as sshd logs it, once per address

# Grandchildren of every kind that escapes a careless launcher.
FAMILY = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
code = "import signal,time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execv(sys.executable, [sys.executable, "-c", code])
    os._exit(0)
subprocess.Popen(["sh", "-c", "trap '' TERM; sleep 600 & wait"])
print("family is up", flush=True)
time.sleep(600)
"""


def until(what: str, condition: Callable[[], Any], limit: float = LIMIT) -> Any:
    """Return the condition's first true value; fail if there is none in time."""
    value = poll(condition, limit)
    assert value, f"not within {limit:.0f} s: {what}"
    return value


def kill_all(pids: Sequence[int]) -> None:
    """Kill processes at once, so that none can react to the end of another."""
    for number in (signal.SIGSTOP, signal.SIGKILL):
        send(number, pids)


def _listeners(server: SshServer) -> list[int]:
    mark = str(server.folder).encode()
    return [pid for pid in pids() if mark in cmdline(pid) and b"sshd" in cmdline(pid)]


def sessions_of(server: SshServer) -> list[int]:
    """Return the sshd processes that serve logins."""
    lines = {pid: cmdline(pid) for pid in descendants(_listeners(server))}
    # A connection survives without its monitor: [priv], or [postauth] (OpenSSH 10.6).
    monitors = re.compile(rb"\[(priv|postauth)\]")
    return [pid for pid, line in lines.items() if line.startswith(b"sshd") and not monitors.search(line)]


@dataclass
class Viewer:
    """A running `orchestrate` command."""

    process: subprocess.Popen[bytes] | command.Forked
    out: Path
    err: Path

    @property
    def stdout(self) -> str:
        return self.out.read_text(errors="replace")

    @property
    def stderr(self) -> str:
        return self.err.read_text(errors="replace")

    @property
    def text(self) -> str:
        return self.stdout + self.stderr

    def shows(self, text: str) -> None:
        def seen() -> bool:
            return text in self.stdout or text in self.stderr

        def over() -> bool:
            return self.process.poll() is not None

        until(f"{text!r} is shown", lambda: seen() or over())
        assert seen(), f"ended with {self.process.returncode} without {text!r}:\n{self.text}"

    def wait(self, limit: float = LIMIT) -> int:
        try:
            return self.process.wait(limit)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running:\n{self.text}") from None

    def ended(self, status: int = ExitStatus.OK, limit: float = LIMIT) -> Self:
        """Wait for the command to end, and check its exit status."""
        found = self.wait(limit)
        assert found == status, f"ended with {found}:\n{self.text}"
        return self

    def signal(self, number: int) -> None:
        self.process.send_signal(number)


class Controller:
    """Runs commands in a project's folder, with a state folder of its own."""

    def __init__(self, folder: Path, timings: Mapping[str, object] | None = None) -> None:
        self.folder = folder
        self.project = folder / "my project's code"
        self.state = folder / "state"
        self.config = folder / "config"
        self.timings: Mapping[str, object] = timings or {}  # as in orchestrator.timings
        self.patch = ""  # Python code that each command runs first, to break something
        self._count = 0
        self._viewers: list[Viewer] = []
        self.project.mkdir(parents=True)

    def script(self, name: str, text: str) -> str:
        (self.project / name).write_text(text)
        return name

    def environment(self, **more: str) -> dict[str, str]:
        kept = {
            k: v for k, v in os.environ.items() if k not in ("PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE")
        }
        root = str(Path(__file__).parents[3])
        # Busy hosts respond slowly: tests that check reports of slow hosts set their own times.
        timings = json.dumps(self.timings)
        # This machine's state, and the user's config with the key, which all their machines share.
        homes = {"XDG_STATE_HOME": str(self.state), "XDG_CONFIG_HOME": str(self.config)}
        return {**kept, "PYTHONPATH": root, VARIABLE: timings, **homes, **more}

    def start(self, *words: str, shell: str = "", **environ: str) -> Viewer:
        """Start `orchestrate words...` in the project's folder; `shell` may wrap it: `"$@" | head -1`.

        With a shell or a patch it gets its own interpreter; otherwise it is forked: tests/command.py.
        """
        self._count += 1
        out, err = self.folder / f"out-{self._count}", self.folder / f"err-{self._count}"
        env = self.environment(**environ)
        process: subprocess.Popen[bytes] | command.Forked
        with Path(os.devnull).open("rb") as stdin, out.open("wb") as stdout, err.open("wb") as stderr:
            if shell or self.patch:
                code = "from orchestrator.cli.main import run; run()"
                env["PYTHONPATH"] = f"{self._patched()}:{env['PYTHONPATH']}"
                process = subprocess.Popen(
                    ["sh", "-c", shell or 'exec "$@"', "sh", sys.executable, "-c", code, *words],
                    stdin=stdin,
                    stdout=stdout,
                    stderr=stderr,
                    cwd=self.project,
                    env=env,
                )
            else:
                streams = (stdin.fileno(), stdout.fileno(), stderr.fileno())
                process = command.nursery(env).start(words, self.project, env, streams)
        viewer = Viewer(process, out, err)
        self._viewers.append(viewer)
        return viewer

    def _patched(self) -> Path:
        """Return a folder whose `sitecustomize` runs the patch in the command and in its keeper."""
        folder = self.folder / "patched"
        folder.mkdir(exist_ok=True)
        (folder / "sitecustomize.py").write_text(self.patch)
        return folder

    def newest(self) -> str:
        """Return the newest run's id; "" if there is none."""
        return max((path.name for path in self._runs()), default="")

    def run_id(self) -> str:
        """Wait for a run, and return the newest run's id."""
        return str(until("there is a run", self.newest))

    def _runs(self) -> Iterator[Path]:
        root = self.state / "orchestrate" / "runs"
        if root.is_dir():
            yield from (path for path in root.iterdir() if (path / "plan.json").exists())

    def run_folder(self, run: str | None = None) -> Path:
        return self.state / "orchestrate" / "runs" / (run or self.run_id())

    def events(self, run: str | None = None) -> list[dict[str, Any]]:
        """Return the events as a viewer reads them."""
        folder = self.run_folder(run)
        return [json.loads(encode(one)) for one in events_of(RunFolder(folder.parent, RunId(folder.name)))]

    def named(self, event: str, run: str | None = None) -> list[dict[str, Any]]:
        return [found for found in self.events(run) if found["event"] == event]

    def holder(self, run: str) -> int:
        """Return the pid of the process that holds the run's lock; 0 if there is none."""
        starters = (viewer.process.pid for viewer in self._viewers)  # until they have started it
        return holder(self.run_folder(run) / "keeper.lock", *starters)

    def keeper(self, run: str | None = None) -> int:
        """Wait for the run's keeper, and return its pid."""
        run = run or self.run_id()
        return int(until("the run has a keeper", lambda: self.holder(run)))

    def close(self) -> None:
        """Kill what a failed test may have left."""
        for viewer in self._viewers:
            if viewer.process.poll() is None:
                viewer.process.kill()
                viewer.process.wait()
        for path in self._runs():
            send(signal.SIGKILL, openers(path / "keeper.lock"))


class Desk(Controller):
    """A controller with an inventory of the cluster's hosts."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        super().__init__(folder)
        self.cluster = cluster
        self.hosts = folder / "hosts.toml"
        self._others: list[subprocess.Popen[bytes]] = []
        self.write_hosts(cluster.hosts)

    def write_hosts(self, hosts: Sequence[Host], job: str = "", **changes: str) -> None:
        lines = [job]
        for host in hosts:
            lines.append("[[host]]")
            fields = {
                "name": host.name,
                "ssh": host.ssh,
                "user": host.user or "",
                "identity": host.identity or "",
                "address": host.address,
                "python": host.python,
                "agent_python": host.agent_python,
                "workdir": host.workdir,
                "role": "" if host.role is Role.WORKER else host.role.value,
                "state": host.state or "",
                "ssh_config": str(self.cluster.ssh_config),
                **changes,
            }
            lines += [f"{key} = {json.dumps(value)}" for key, value in fields.items() if value]
            lines.append(f"task_port = {host.task_port}")
            if host.spare:
                lines.append("spare = true")
            if host.tasks != 1:
                lines.append(f"tasks = {host.tasks}")
        self.hosts.write_text("\n".join(lines) + "\n")

    def give_roles(self, *roles: str) -> None:
        """Write a role to each entry of the inventory."""
        head, *hosts = self.hosts.read_text().split("[[host]]")
        given = (f"{text}role = {role!r}\n" for text, role in zip(hosts, roles, strict=True))
        self.hosts.write_text("[[host]]".join([head, *given]))

    def example(self, name: str) -> str:
        """Copy one of the bundled examples, unchanged, with its data."""
        (self.project / "digits.csv.gz").write_bytes((EXAMPLES / "digits.csv.gz").read_bytes())
        return self.script(name, (EXAMPLES / name).read_text())

    def program(self, name: str, text: str) -> Path:
        """Create an executable file outside the project."""
        path = self.folder / name
        path.write_text(text)
        path.chmod(0o755)
        return path

    def launch(self, *words: str, fast: bool = True, shell: str = "", **environ: str) -> Viewer:
        options = ("--skip-preflight", "--no-validate") if fast else ()
        return self.start("launch", "--hosts", str(self.hosts), *options, *words, shell=shell, **environ)

    def begin(self, *words: str, fast: bool = True, **environ: str) -> tuple[Viewer, str]:
        """Launch, and return the viewer and the run's id as soon as it exists."""
        return self.launch(*words, fast=fast, **environ), self.run_id()

    def detached(self, *words: str) -> str:
        """Launch a run without a viewer, and return its id."""
        self.launch("--detach", *words).ended()
        return self.run_id()

    @contextlib.contextmanager
    def elsewhere(self) -> Iterator[None]:
        """Act as another machine, with an empty state folder and the same hosts.toml."""
        here, self.state = self.state, self.folder / "another machine's state"
        try:
            yield
        finally:
            self.state = here

    def lose_keeper(self, run: str) -> None:
        """Kill the keeper, and wait until its lock is free: the next viewer finds no keeper."""
        keeper = self.keeper(run)
        kill_all([keeper])
        until("the keeper is gone", lambda: not opened(keeper))

    def at_rest(self, run: str) -> None:
        """Wait until the run's folders no longer change: a keeper reports the end before it exits."""
        folder = RunFolder(self.state / "orchestrate" / "runs", RunId(run))
        until("its keeper has left", lambda: not folder.has_keeper())
        self.hosts_are_quiet(run)

    def task_pids(self, run: str, task: str | None = None) -> list[int]:
        """Return every live process with the run's cookie."""
        return bearers(run, task)

    def families_are_up(self, run: str, count: int) -> bool:
        logs = (self.run_folder(run) / "logs" / "1").glob("*.log")
        return sum(b"family is up" in log.read_bytes() for log in logs) == count

    def alive(self) -> list[str]:
        """Return all live processes of the hosts except sshd; they all descend from one subreaper."""
        assert self.cluster._watcher is not None
        found = [(pid, cmdline(pid)) for pid in descendants([self.cluster._watcher.pid])]
        return [
            f"{pid} {line.replace(bytes(1), b' ').decode(errors='replace')}"
            for pid, line in found
            if line and b"sshd\0-D\0" not in line and b"[listener]" not in line
        ]

    def sessions_of(self, number: int) -> list[int]:
        return sessions_of(self.cluster.servers[number])

    def agents_of(self, number: int) -> list[int]:
        """Return our agents on one host, which are what its logins run."""
        below = descendants(self.sessions_of(number))
        return [pid for pid in below if b"orchestrate_node" in cmdline(pid) or b"-c\0" in cmdline(pid)]

    def agents(self) -> list[int]:
        return [pid for number in range(len(self.cluster.servers)) for pid in self.agents_of(number)]

    def served(self) -> list[int]:
        """Return sshd sessions and agents of all connections, or nothing until every host has one."""
        found: list[int] = []
        for number in range(len(self.cluster.servers)):
            agents = self.agents_of(number)
            if not agents:
                return []
            found += [*agents, *self.sessions_of(number)]
        return found

    def machinery(self, run: str) -> list[int]:
        """Return our own processes on the nodes that have a file of the run open: guards and supervisors.

        Each Python that a task starts also has one open for its stacks, but is not one of ours.
        """
        mark = f"/state/runs/{run}/"
        return [pid for pid in pids() if any(mark in link and "/stacks." not in link for link in opened(pid))]

    def machinery_of(self, run: str, host: Host) -> list[int]:
        """Return the guards and supervisors of one host."""
        mark = f"{host.state}/runs/{run}/attempts/"
        return [pid for pid in self.machinery(run) if any(mark in link for link in opened(pid))]

    def node_work(self, host: Host, run: str) -> Path:
        return Path(host.workdir) / "runs" / run / "work"

    def nothing_is_left(self, run: str) -> None:
        """Fail if a process of the run stays alive."""
        left = self.task_pids(run)
        assert not left, [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in left]
        until("guards and supervisors are gone", lambda: not self.machinery(run))

    def hosts_are_quiet(self, run: str) -> None:
        """Fail if a process of the run, or one of ours, stays alive on any host."""
        self.nothing_is_left(run)
        until(f"only sshd's are left, not {self.alive()}", lambda: not self.alive())

    def ended_after(self, first: str, run: str) -> float:
        """Return the seconds, by the nodes' clock, from the end of one task to the end of the last one."""
        ended = {event["task"]: event["ended"] for event in self.named("TaskExited", run)}
        return float(max(ended.values()) - ended[first])

    def node_log(self, host: Host, run: str, slug: str) -> Path:
        return Path(host.state or "") / "runs" / run / "attempts" / "1" / slug / "output.log"

    def node_state(self, host: Host, run: str, slug: str) -> str:
        """Return a task's state as recorded on its node."""
        record = self.node_log(host, run, slug).with_name("state.json").read_text()
        return str(json.loads(record)["state"])

    def logs_are_identical(self, run: str) -> None:
        hosts = {host.name: host for host in self.cluster.hosts}
        for task, name in self.named("RunPlanned", run)[0]["tasks"]:
            slug = task.replace("/", "-")
            ours = self.run_folder(run) / "logs" / "1" / f"{slug}.log"
            assert ours.read_bytes() == self.node_log(hosts[name], run, slug).read_bytes()

    def is_traceback_free(self, run: str) -> None:
        path = self.run_folder(run) / "debug.log"
        log = path.read_text(errors="replace") if path.exists() else ""
        assert "Traceback" not in log, log

    def kill_sshd(self, server: SshServer) -> None:
        """Kill one host's sshd with all sessions, and wait until they are gone and the port is free."""
        listeners, sessions = _listeners(server), sessions_of(server)
        assert listeners
        killed = send(signal.SIGKILL, (*listeners, *sessions))
        until("sshd is gone", lambda: all(map(is_gone, killed)))

    def start_sshd(self, server: SshServer) -> None:
        """Restart sshd, and wait until it listens."""
        before = server.log().count(_LISTENS)
        self._others.append(subprocess.Popen(server.argv, start_new_session=True))
        until("sshd listens", lambda: server.log().count(_LISTENS) >= before + 1)

    def close(self) -> None:
        """Kill what a failed test may have left; the cluster cleans up the nodes."""
        for other in self._others:
            other.kill()
            other.wait()
        super().close()


def desk_with(hosts: int, folder: Path, **cluster: Any) -> Iterator[Desk]:
    with Cluster(hosts, **cluster) as running, contextlib.closing(Desk(running, folder)) as made:
        yield made
