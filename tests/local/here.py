"""Hosts that are this machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from orchestrator.rehearsal.cluster import task_ports

HOST = """[[host]]
name = "{name}"
ssh = "local"
address = "127.0.0.1"
task_port = {port}
workdir = "{folder}/{name}/work"
state = "{folder}/{name}/node"
"""


@contextmanager
def inventory(folder: Path, *names: str) -> Iterator[str]:
    """The text of hosts.toml, with each host's folders below one, and ports that nobody else here takes."""
    with ExitStack() as held:
        ports = task_ports(len(names), held)
        hosts = zip(names, ports, strict=True)
        yield "".join(HOST.format(name=name, port=port, folder=folder) for name, port in hosts)
