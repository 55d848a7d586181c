"""Two agents look at each other's task ports."""

from __future__ import annotations

import os
import pwd
import socket
import threading
from typing import Any

import pytest

from tests.node.agent_client import AgentClient
from tests.node.harness import until
from tests.node.lab import Lab
from tests.ports import free_port

LARGE = 64 << 10
NONCE = "6f1ed002ab5595859014ebf0951522d9"


def look(
    agent: AgentClient, port: int, address: str = "127.0.0.2", host: str = "b", timeout: float = 3.0
) -> dict[str, Any]:
    targets = [{"host": host, "address": address, "port": port}]
    (result,) = agent.request("probe", nonce=NONCE, timeout=timeout, targets=targets)["results"]
    assert result["host"] == host
    return dict(result)


def test_a_peer_that_listens_answers(lab: Lab) -> None:
    a, b, port = lab.agent(), lab.agent(), free_port()
    taken = {"listening": [port], "busy": [], "extra": None}
    assert b.request("listen", ports=[port], nonce=NONCE, host="b") == taken
    for address in ("127.0.0.1", "127.0.0.2", "localhost", "::1"):
        found = look(a, port, address)
        assert (found["tcp"], found["why"]) == (True, ""), address
        assert 0 <= found["tcp_ms"] < 1000
    assert look(b, port)["tcp"]  # and each host itself


@pytest.mark.parametrize(
    "question", [b"", b"GET / HTTP/1.0\r\n\r\n", NONCE[:9].encode() + b"\n", b"\0" * 4096]
)
def test_without_the_word_of_the_run_nothing_is_said(lab: Lab, question: bytes) -> None:
    """As docs/security.md promises."""
    agent, port = lab.agent(), free_port()
    agent.request("listen", ports=[port], nonce=NONCE, host="b", large=LARGE)
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


@pytest.mark.parametrize(
    ("script", "answers"),
    [
        ("exit 0", True),
        ("echo '2 packets transmitted, 0 received, 100% packet loss'; exit 1", False),
        ("sleep 100", None),
    ],
)
def test_the_program_ping_is_asked_where_nothing_answers(lab: Lab, script: str, answers: bool | None) -> None:
    """Not where a port is only closed: the host has answered."""
    program = lab.folder / "bin" / "ping"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    agent = lab.agent(env={"PATH": f"{program.parent}:/usr/bin:/bin"})
    assert look(agent, 1, "255.255.255.255", timeout=0.5)["icmp"] is answers
    assert look(agent, free_port(), timeout=0.5)["icmp"] is None


def test_who_holds_a_port_is_named(lab: Lab) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        free = free_port()
        found = lab.agent().request("listen", ports=[port, free], nonce=NONCE)
    assert found["listening"] == [free]
    (busy,) = found["busy"]
    assert busy["port"] == port
    assert f"pid {os.getpid()} (user {pwd.getpwuid(os.getuid()).pw_name})" in busy["holder"]


def test_a_peer_that_answers_and_then_stands_still(lab: Lab) -> None:
    """The large packets do not come, and the connection stays good."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            peer, _ = server.accept()
            with peer:
                peer.sendall(f"{NONCE} b\n".encode())
                over.wait(20)

        over = threading.Event()
        thread = threading.Thread(target=serve)
        thread.start()
        target = {"host": "b", "address": "127.0.0.1", "port": server.getsockname()[1]}
        question: dict[str, Any] = {"nonce": NONCE, "timeout": 0.5, "targets": [target], "large": LARGE}
        (result,) = lab.agent().request("probe", **question)["results"]
        over.set()
        thread.join()
    assert (result["tcp"], result["why"]) == (True, "")
    assert (result["large"], result["large_ms"]) == (False, None)


def test_unlisten_and_the_agents_death_free_the_port(lab: Lab) -> None:
    a, b, port = lab.agent(), lab.agent(), free_port()
    a.request("listen", ports=[port], nonce=NONCE, host="b")
    assert look(b, port)["tcp"]
    a.request("unlisten")
    b.request("listen", ports=[port], nonce=NONCE, host="b")
    b.process.kill()
    b.process.wait()
    assert a.request("listen", ports=[port], nonce=NONCE)["listening"] == [port]


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
