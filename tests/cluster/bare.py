"""Machines with only sshd and Python, in an isolated network.

They resemble a user's new machines; for `test_bare.py` and `benchmarks/bare`.
"""

import contextlib
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

_UP = 60.0  # seconds until all of them respond
_KEY = "id_ed25519"


@dataclass(frozen=True)
class Bare:
    """Containers named after their project, and the folder of a user who can log in to them."""

    project: str
    image: str
    folder: Path
    network: str
    names: tuple[str, ...]

    @property
    def ssh_config(self) -> Path:
        return self.folder / "ssh_config"

    def container(self, name: str) -> str:
        return f"{self.project}-{name}"

    def address(self, name: str) -> str:
        form = "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}"
        return docker("inspect", "--format", form, self.container(name))

    def output_of(self, name: str, *command: str, user: str = "train") -> str:
        """Run a command in the container; return its output; it must succeed."""
        return docker("exec", "--user", user, self.container(name), *command)

    def start(self, name: str, *options: str) -> None:
        """Start a new machine, without a route out and without a name server.

        Homes are volumes: a container's own root may be a FUSE file system.
        """
        key = (self.folder / f"{_KEY}.pub").read_text().strip()
        of_whom = ("--name", self.container(name), "--hostname", name, "--label", _label(self.project))
        where = ("--network", self.network, "--dns", "127.0.0.1")
        it = ("--init", "--volume", "/var/tmp", "--volume", "/home", "--env", f"AUTHORIZED_KEY={key}")
        docker("run", "--detach", *of_whom, *where, *it, *options, self.image)
        # Docker's own resolver would take ten seconds to fail; this one refuses at once.
        self.output_of(name, "sh", "-c", "echo nameserver 127.0.0.1 >/etc/resolv.conf", user="root")

    def replace(self, name: str, *options: str) -> None:
        """Replace a machine with another one of the same name and, in ssh_config, the same address."""
        docker("rm", "--force", "--volumes", self.container(name))
        self.start(name, *options)
        self.write_ssh_config()

    def write_ssh_config(self) -> None:
        """Write the user's ssh_config; host keys are not known yet."""
        self.ssh_config.write_text(
            "".join(
                f"Host {name}\n    HostName {self.address(name)}\n    User train\n"
                f'    IdentityFile "{self.folder / _KEY}"\n    IdentitiesOnly yes\n'
                f'    UserKnownHostsFile "{self.folder / "known_hosts"}"\n'
                "    GlobalKnownHostsFile /dev/null\n"
                for name in self.names
            )
        )

    def sent_by_us(self) -> int:
        """Return the bytes sent from this machine to them, not counting traffic among them."""
        bridge = docker("network", "inspect", "--format", "{{.Id}}", self.network)[:12]
        return int(Path(f"/sys/class/net/br-{bridge}/statistics/tx_bytes").read_text())

    def processor_seconds(self) -> float:
        """Return the CPU seconds used by each container since its start."""
        code = "print(open('/sys/fs/cgroup/cpuacct/cpuacct.usage').read())"
        newer = "print(open('/sys/fs/cgroup/cpu.stat').readline().split()[1] + '000')"
        both = f"try: {code}\nexcept OSError: {newer}"
        return sum(int(self.output_of(name, "python3", "-c", both)) for name in self.names) / 1e9

    def wait(self) -> None:
        """Wait until every sshd has a host key, that is, starts; ssh itself would record the key."""
        deadline = time.monotonic() + _UP
        for name in self.names:
            while True:
                with contextlib.suppress(subprocess.CalledProcessError):
                    code = "import socket; print(socket.create_connection(('127.0.0.1', 22)).recv(4))"
                    if "SSH-" in self.output_of(name, "python3", "-c", code):
                        break
                assert time.monotonic() < deadline, f"{name} does not answer"
                time.sleep(0.1)


@contextlib.contextmanager
def bare_machines(
    project: str, image: str, folder: Path, names: Sequence[str], options: Sequence[str] = ()
) -> Iterator[Bare]:
    """Start the machines, and finally remove them with their network and disks."""
    remove(project)
    made = Bare(project, image, folder, project, tuple(names))
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / _KEY], check=True)
    try:
        docker("network", "create", "--internal", "--label", _label(project), made.network)
        for name in made.names:
            made.start(name, *options)
        made.write_ssh_config()
        made.wait()
        yield made
    finally:
        remove(project)


def remove(project: str) -> None:
    """Remove leftovers of this project, but not of others."""
    ours = ("--filter", f"label={_label(project)}")
    if containers := docker("ps", "--all", "--quiet", *ours).split():
        docker("rm", "--force", "--volumes", *containers)
    if networks := docker("network", "ls", "--quiet", *ours).split():
        docker("network", "rm", *networks)


def docker(*arguments: str) -> str:
    done = subprocess.run(["docker", *arguments], check=True, capture_output=True, text=True, timeout=120)
    return done.stdout.strip()


def _label(project: str) -> str:
    return f"orchestrate.bare={project}"
