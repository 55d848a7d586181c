"""A controller with valuable files in its home, an honest host, and a lying one, all on this machine."""

import hashlib
import json
import os
import re
import shutil
import stat
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from orchestrator.config.load import parse
from orchestrator.envs import name_of, recipe_digest
from orchestrator.node.base.locks import is_taken
from orchestrator.node.base.paths import Paths
from tests import verbs
from tests.hostile.middle import Middle
from tests.ports import free_ports
from tests.processes import bearers, cmdline
from tests.verbs import Called

RUN_ID = re.compile(r"\d{8}-\d{6}-[0-9a-z]{4}")
SHORT = "echo hi; mkdir -p kept/deep; echo x > kept/deep/out; ln -s out kept/deep/link"
LONG = "mkdir -p kept; echo y > kept/out; echo up; exec sleep 3600"

Snapshot = Mapping[str, str]
PACKAGES = "numpy==1.26.4\n"  # of the liar's environment, which is never created


@dataclass(frozen=True)
class Played:
    """The result of a verb that was called while a host lied."""

    called: Called
    text: str  # everything a user may read: the terminal and debug.log
    about: tuple[str, ...]  # the runs of which nothing may remain
    strange: list[str]  # what it created in an empty state folder other than runs


class Ground:
    """`living`: a run with a keeper and live tasks on both hosts; `over`: a finished run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "home"
        self.state = self.home / ".local" / "state"
        self.project = self.home / "project"
        self.fresh = self.project / "fresh"  # changes the code each time
        self.canary = folder / "canary"
        self.project.mkdir(parents=True)
        self.data = folder / "data"
        self.data.mkdir()
        self.liar = Middle(folder / "python-of-the-liar", self.canary)
        self._make_treasures()
        ports = free_ports(4)
        self._others = ports[2:]
        (self.project / "hosts.toml").write_text(self._inventory(ports[:2]))
        (self.project / "others.toml").write_text(self._inventory(ports[2:]))
        (self.project / "train.py").write_text("print('hi')\n")
        with (self.project / "holes.bin").open("wb") as file:  # rsync would copy it
            file.truncate(1 << 20)
        self._keep_lock(ports[2:])
        self._serial = 0
        self.over = self.launch("others.toml", self.state, SHORT)
        self.living = self.launch("hosts.toml", self.state, LONG, "--detach")
        self.wait_until_told(self.living)
        self.bystanders = set(bearers(self.living))
        self.before = self.snapshot()

    def close(self) -> None:
        self.liar.be_honest()
        verbs.call(["stop", "--now", self.living], self.project, self.state)

    def folder_of(self, run: str) -> Path:
        return self.state / "orchestrate" / "runs" / run

    def wait_until_told(self, run: str) -> None:
        """Wait until both tasks are in their long sleep, and their keeper has reported them as alive."""
        events = self.folder_of(run) / "events.jsonl"

        def reported() -> bool:
            whole, _, _ = events.read_bytes().rpartition(b"\n")  # its keeper may be writing a line
            started = sum(json.loads(line)["event"] == "TaskStarted" for line in whole.splitlines())
            # Before that they fork.
            asleep = [cmdline(pid).startswith(b"sleep\0") for pid in bearers(run)]
            return started == 2 and asleep == [True, True]

        verbs.until("both tasks are reported", reported)

    def _inventory(self, ports: list[int]) -> str:
        pythons = {"good": sys.executable, "liar": str(self.liar.path)}
        hosts = [
            f'[[host]]\nname = "{name}"\nssh = "local"\naddress = "127.0.0.1"\ntask_port = {port}\n'
            f'python = "{sys.executable}"\nagent_python = "{python}"\n'
            f'workdir = "{self.folder}/{name}/work"\nstate = "{self.folder}/{name}/state"\n'
            for (name, python), port in zip(pythons.items(), ports, strict=True)
        ]
        job = f"[job]\ncommand = ['sh', '-c', '{SHORT}']\nbackup = 'kept'\n"
        return job + "".join(hosts)

    def _keep_lock(self, ports: list[int]) -> None:
        """Write an inventory with an environment for the liar, and its packages: no index is queried."""
        own = f'python = "{sys.executable}"\n'
        good, _, liar = self._inventory(ports).rpartition(own)
        text = f'{good}{liar}[env]\npackages = ["numpy"]\nindex = "http://127.0.0.1:9/simple"\n'
        (self.project / "env.toml").write_text(text)
        table = parse(text).environment
        assert table is not None
        locks = self.state / "orchestrate" / "locks"
        locks.mkdir(parents=True)
        for name in (recipe_digest(table), name_of(PACKAGES, table.python)):
            (locks / f"{name}.txt").write_text(PACKAGES)

    def _make_treasures(self) -> None:
        (self.home / ".ssh").mkdir(mode=0o700)
        (self.home / ".ssh" / "id_ed25519").write_text("a private key\n")
        (self.home / ".ssh" / "authorized_keys").write_text("a public key\n")
        (self.home / ".bashrc").write_text("umask 022\n")
        (self.home / "thesis").mkdir()
        (self.home / "thesis" / "chapter.tex").write_text("all of it\n")
        (self.home / "way").symlink_to("thesis")

    def launch(self, hosts: str, state: Path, script: str, *options: str) -> str:
        words = ["--hosts", hosts, *options, "--", "sh", "-c", script]
        return verbs.launch(words, self.project, state)

    def holds_ports(self) -> bool:
        """Return whether an agent or task holds a port of the next launch: an agent ends after its run."""
        states = [Paths(f"{self.folder}/{name}/state") for name in ("good", "liar")]
        return any(is_taken(state.lease(port)) for port in self._others for state in states)

    @contextmanager
    def elsewhere(self) -> Iterator[Path]:
        """Return an empty state folder, as on another machine of the user."""
        self._serial += 1
        state = self.home / f"state-{self._serial}"
        yield state
        shutil.rmtree(state, ignore_errors=True)

    def snapshot(self) -> Snapshot:
        """Return everything of the controller that no lie may change: names, kinds, modes, and contents."""
        found: dict[str, str] = {}
        for top, folders, files in os.walk(self.home):
            if Path(top).name == "runs":
                folders[:] = [name for name in folders if not RUN_ID.fullmatch(name)]
            for name in [*folders, *files]:
                path = Path(top) / name
                if path != self.fresh:
                    found[str(path.relative_to(self.home))] = _print(path)
        for path in self.folder.iterdir():
            found[f"../{path.name}"] = "there"
        return found


def _print(path: Path) -> str:
    status = path.lstat()
    mode = oct(status.st_mode)
    if stat.S_ISLNK(status.st_mode):
        return f"{mode} {path.readlink()}"
    if stat.S_ISREG(status.st_mode):
        return f"{mode} {hashlib.sha256(path.read_bytes()).hexdigest()}"
    return mode


@contextmanager
def on_the_ground(folder: Path) -> Iterator[Ground]:
    """Create a ground in a folder, and use its home as ours."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("HOME", str(folder / "home"))
        environment.delenv("XDG_CONFIG_HOME", raising=False)
        (folder / "cache").mkdir()
        environment.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        made = Ground(folder)
        try:
            yield made
        finally:
            made.close()
