"""Hosts that are this machine."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from orchestrator.rehearsal.cluster import task_ports

HOST = """[[host]]
name = "{name}"
ssh = "local"
address = "{address}"
task_port = {port}
workdir = "{folder}/{name}/work"
state = "{folder}/{name}/node"
"""


@contextmanager
def inventory(folder: Path, *names: str, apart: bool = False) -> Iterator[str]:
    """Return a hosts.toml with all hosts' folders below one, and ports that no other test here uses.

    `apart`: each has a unique loopback address, and counts as a separate machine.
    """
    with ExitStack() as held:
        ports = task_ports(len(names), held)
        network = f"127.{os.getpid() // 250 % 250 + 1}.{os.getpid() % 250 + 1}" if apart else ""
        yield "".join(
            HOST.format(name=name, port=port, folder=folder, address=f"{network}.{number}")
            if apart
            else HOST.format(name=name, port=port, folder=folder, address="127.0.0.1")
            for number, (name, port) in enumerate(zip(names, ports, strict=True), start=1)
        )
