"""Faults of machines of their own: how each is made from outside, and what preflight must find."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass

from tests.cluster.machines import Cluster

TASK = "-p tcp --dport 2222"


@dataclass(frozen=True)
class Fault:
    name: str
    node: str
    rule: str  # of iptables, in the node's network
    found: tuple[str, ...]  # what the output says, beside the end


FAULTS = (
    Fault(
        "a firewall behind the bastion",
        "node5",
        f"INPUT -i eth0 {TASK}",
        ("error: node5: reach: no other host reaches its task port 2222: timed out", "--exclude node5"),
    ),
    Fault(
        "a hole in the MTU between machines",
        "node4",
        "INPUT -i eth0 -p tcp -m multiport --ports 2222 -m length --length 1400:65535",
        ("error: node4: packets: large packets to it vanish", "ip link set eth0 mtu 1400"),
    ),
)


def iptables(cluster: Cluster, node: str, verb: str, rule: str) -> None:
    """Change the filter of a node from here: the machine itself has no such program, nor the right."""
    inspect = ["docker", "inspect", "--format", "{{.State.Pid}}", cluster.node(node).container]
    pid = subprocess.run(inspect, check=True, capture_output=True, text=True).stdout.strip()
    argv = ["nsenter", f"--net=/proc/{pid}/ns/net", "iptables", "-w", verb, *rule.split(), "-j", "DROP"]
    subprocess.run(argv, check=True, capture_output=True)
