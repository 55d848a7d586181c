"""Two agents look at each other's task ports."""

from __future__ import annotations

import os
import pwd
import socket
from typing import Any

import pytest

from tests.node.agent_client import AgentClient
from tests.node.harness import until
from tests.node.lab import Lab
from tests.ports import free_port

NONCE = "6f1ed002ab5595859014ebf0951522d9"


def look(agent: AgentClient, port: int, address: str = "127.0.0.2", timeout: float = 3.0) -> dict[str, Any]:
    targets = [{"host": "b", "address": address, "port": port}]
    (result,) = agent.request("probe", nonce=NONCE, timeout=timeout, targets=targets)["results"]
    return dict(result)


@pytest.mark.parametrize(
    "question", [b"", b"GET / HTTP/1.0\r\n\r\n", NONCE[:9].encode() + b"\n", b"\0" * 4096]
)
def test_without_the_word_of_the_run_nothing_is_said(lab: Lab, question: bytes) -> None:
    """As docs/security.md promises."""
    agent, port = lab.agent(), free_port()
    agent.request("listen", ports=[port], nonce=NONCE, host="b", large=1 << 16)
    with socket.create_connection(("127.0.0.1", port), 10) as peer:
        try:
            peer.sendall(question)
            peer.shutdown(socket.SHUT_WR)
            answer = peer.recv(1024)
        except OSError:
            answer = b""  # hung up on in the middle
    assert answer == b""
    assert look(agent, port)["tcp"]  # and whoever knows the word is answered


def test_why_a_connection_fails(lab: Lab) -> None:
    a, b, port = lab.agent(), lab.agent(), free_port()
    rows = {
        (free_port(), "127.0.0.1"): "refused",
        (1, "no-such-host.invalid"): "does not resolve",
        (1, "255.255.255.255"): "no route",
        (port, "127.0.0.1"): "answered by c",
    }
    b.request("listen", ports=[port], nonce=NONCE, host="c")
    for (number, address), why in rows.items():
        answer = look(a, number, address, timeout=2.0)
        assert (answer["tcp"], answer["why"]) == (False, why)
    b.request("listen", ports=[port], nonce="another", host="b")
    assert look(a, port)["why"] == "answered by something else"


def test_who_holds_a_port_is_named(lab: Lab) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        free = free_port()
        found = lab.agent().request("listen", ports=[port, free], nonce=NONCE)
    assert found["listening"] == [free]
    (busy,) = found["busy"]
    assert busy["port"] == port
    assert f"pid {os.getpid()} (user {pwd.getpwuid(os.getuid()).pw_name})" in busy["holder"]


def test_after_a_look_the_port_can_be_taken_without_reuse(lab: Lab) -> None:
    """TIME_WAIT would keep a server that does not set SO_REUSEADDR from the port for a minute."""
    agent, port = lab.agent(), free_port()
    agent.request("listen", ports=[port], nonce=NONCE, host="b")
    for _ in range(3):
        assert look(agent, port)["tcp"]
    agent.request("unlisten")
    with socket.socket() as plain:
        plain.bind(("", port))
        plain.listen()


def test_a_lease_ends_with_the_agent_unless_a_task_holds_it(lab: Lab) -> None:
    port, other = free_port(), free_port()
    a = lab.agent()
    a.request("lease", run=lab.run, owner="me", ports={str(port): "worker/0", str(other): "worker/1"})
    lab.start(a, "sleep", "1000", port=port)
    a.close()
    b = lab.agent()
    assert b.request("lease", run="r2", owner="bob", ports={str(other): "worker/0"})["conflicts"] == []
    (conflict,) = b.request("lease", run="r2", owner="bob", ports={str(port): "worker/0"})["conflicts"]
    assert (conflict["run"], conflict["task"]) == (lab.run, "worker/0")
    lab.follow(b, "worker/0")
    lab.stop(b, kill=True)
    lab.final(b)
    until(lambda: b.request("lease", run="r2", owner="bob", ports={str(port): "worker/0"})["conflicts"] == [])
