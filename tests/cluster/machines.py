"""The container cluster for tests: its folder and its machines."""

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

NODES = ("node1", "node2", "node3", "node4", "node5", "node6")
BEHIND_BASTION = ("node5", "node6")


@dataclass(frozen=True)
class Node:
    name: str
    address: str
    user: str
    container: str


@dataclass(frozen=True)
class Cluster:
    """The result of `scripts/cluster up`: its folder, six machines, and a bastion."""

    folder: Path
    nodes: tuple[Node, ...]
    bastion: Node

    @property
    def hosts(self) -> Path:
        return self.folder / "hosts.toml"

    @property
    def ssh_config(self) -> Path:
        return self.folder / "ssh_config"

    def node(self, name: str) -> Node:
        return next(node for node in (*self.nodes, self.bastion) if node.name == name)

    def hosts_file(self, path: Path, names: Sequence[str], more: str = "") -> Path:
        """Write a hosts.toml with some of the nodes; `more` follows the [defaults]."""
        head, *entries = self.hosts.read_text().split("[[host]]\n")
        by_name = {entry.split('"')[1]: entry for entry in entries}
        path.write_text(
            head.rstrip() + f"\n{more}\n" + "".join(f"[[host]]\n{by_name[name]}" for name in names)
        )
        return path

    def ssh(self, node: str, command: str, *options: str) -> subprocess.CompletedProcess[str]:
        """Run `command` in a login of the node with OpenSSH's client."""
        argv = ["ssh", "-F", self.ssh_config.name, "-o", "BatchMode=yes", *options, node, command]
        folder = (
            self.ssh_config.parent
        )  # ProxyJump passes on the path of -F unquoted, so it must not contain spaces
        return subprocess.run(argv, check=False, capture_output=True, text=True, timeout=60, cwd=folder)

    def output_of(self, node: str, command: str) -> str:
        """Run `command` there; return its output; it must succeed."""
        done = self.ssh(node, command)
        assert done.returncode == 0, f"{node}: {command}: {done.stderr}"
        return done.stdout


def described(folder: Path, project: str) -> Cluster:
    """Read the machines back from the output of OpenSSH and Docker."""
    *nodes, bastion = [_node(folder, project, name) for name in (*NODES, "bastion")]
    return Cluster(folder, tuple(nodes), bastion)


def _node(folder: Path, project: str, name: str) -> Node:
    resolved = _said("ssh", "-F", str(folder / "ssh_config"), "-G", name)
    options = dict(line.split(" ", 1) for line in resolved.splitlines() if " " in line)
    labels = (f"label=com.docker.compose.project={project}", f"label=com.docker.compose.service={name}")
    container = _said("docker", "ps", "--quiet", "--filter", labels[0], "--filter", labels[1]).strip()
    return Node(name, options["hostname"], options["user"], container)


def _said(*argv: str) -> str:
    return subprocess.run(argv, check=True, capture_output=True, text=True, timeout=60).stdout
