"""Two agents look at each other's task ports."""

from __future__ import annotations

import os
import pwd
import socket
import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from orchestrator.node.base import turnstile
from orchestrator.node.look import mesh
from orchestrator.node.serve.agent import Agent
from orchestrator.node.serve.loop import Loop
from tests.node.agent_client import AgentClient
from tests.node.harness import until
from tests.node.lab import Lab, opened
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


@pytest.mark.parametrize("beginning", [b"x", NONCE[:9].encode()])
def test_a_word_is_judged_when_it_is_complete(lab: Lab, beginning: bytes) -> None:
    """Nobody can guess it letter by letter."""
    agent, port = lab.agent(), free_port()
    agent.request("listen", ports=[port], nonce=NONCE, host="b")
    with socket.create_connection(("127.0.0.1", port), 10) as peer:
        peer.sendall(beginning)
        assert look(agent, port)["tcp"]  # by then it was heard
        peer.setblocking(False)
        with pytest.raises(BlockingIOError):
            peer.recv(1)
        peer.settimeout(10)
        peer.sendall(b"x" * (len(NONCE) + 1 - len(beginning)))
        assert peer.recv(1) == b""


def test_who_says_nothing_is_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Idle strangers would take the places of the peers."""
    monkeypatch.setattr(mesh, "_PATIENCE", 0.0)
    loop = Loop()
    made = mesh.Mesh(cast("Agent", SimpleNamespace(loop=loop)), NONCE, "b", 0)
    with socket.create_connection(("127.0.0.1", made.listen_anywhere()), 10) as peer:
        loop.step()
        assert peer.recv(1) == b""
    made.close()


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


@pytest.mark.parametrize("greeting", [b"SSH-2.0-OpenSSH_9.2\r\n", b""])
def test_a_foreign_server_is_something_else(lab: Lab, greeting: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            peer, _ = server.accept()
            with peer:
                peer.sendall(greeting)
                peer.settimeout(10)
                peer.recv(1) if greeting else None

        thread = threading.Thread(target=serve)
        thread.start()
        found = look(lab.agent(), server.getsockname()[1], "127.0.0.1")
        thread.join()
    assert (found["tcp"], found["why"]) == (False, "answered by something else")
    assert found["tcp_ms"] is not None


def test_a_full_queue_times_out(lab: Lab) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server:
        held = []
        for _ in range(4):
            client = socket.socket()
            client.setblocking(False)
            client.connect_ex(server.getsockname())
            held.append(client)
        found = look(lab.agent(), server.getsockname()[1], "127.0.0.1", timeout=0.4)
        for client in held:
            client.close()
    assert (found["tcp"], found["tcp_ms"], found["why"]) == (False, None, "timed out")


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


def hang_up_on_one(server: socket.socket) -> None:
    server.accept()[0].close()


def test_a_name_with_a_dead_first_address_is_reached_by_its_second(lab: Lab) -> None:
    agent, port = lab.agent(), free_port()
    with socket.create_server(("127.0.0.1", port)) as server:  # localhost is ::1 first, where nobody listens
        thread = threading.Thread(target=hang_up_on_one, args=(server,))
        thread.start()
        found = look(agent, port, "localhost")
        thread.join()
    assert (found["tcp_ms"] is not None, found["why"]) == (True, "answered by something else")


def test_who_holds_a_port_is_named(lab: Lab) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        free = free_port()
        found = lab.agent().request("listen", ports=[port, free], nonce=NONCE)
    assert found["listening"] == [free]
    (busy,) = found["busy"]
    assert busy["port"] == port
    assert f"pid {os.getpid()} (user {pwd.getpwuid(os.getuid()).pw_name})" in busy["holder"]


def test_a_port_at_which_another_preflight_looks_passes(lab: Lab) -> None:
    a, b, port, other = lab.agent(), lab.agent(), free_port(), free_port()
    a.request("listen", ports=[port], nonce=NONCE)
    (busy,) = b.request("listen", ports=[port], nonce=NONCE)["busy"]
    user = pwd.getpwuid(os.getuid()).pw_name
    assert busy == {"port": port, "holder": f"a preflight of {user}", "passes": True}
    assert a.request("listen", ports=[other], nonce=NONCE)["listening"] == [other]
    assert b.request("listen", ports=[port], nonce=NONCE)["listening"] == [port]


def test_large_packets_come_back(lab: Lab) -> None:
    a, b, port = lab.agent(), lab.agent(), free_port()
    extra = b.request("listen", ports=[port], nonce=NONCE, host="b", extra=True, large=LARGE)["extra"]
    targets = [{"host": "b", "address": "127.0.0.2", "port": number} for number in (port, extra)]
    for result in a.request("probe", nonce=NONCE, timeout=3.0, targets=targets, large=LARGE)["results"]:
        assert (result["tcp"], result["large"], result["resolved"]) == (True, True, "127.0.0.2")
        assert 0 < result["large_ms"] < 3000
        assert result["packet"] > 1000


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


def test_a_lease_is_taken_once_and_its_holder_named(lab: Lab) -> None:
    a, b, port, other = lab.agent(), lab.agent(), free_port(), free_port()
    taken = a.request("lease", run="r1", owner="ada@home", ports={str(port): "worker/0"})
    assert taken == {"taken": [port], "conflicts": []}
    found = b.request(
        "lease", run="r2", owner="bob@work", ports={str(port): "worker/3", str(other): "worker/4"}
    )
    assert found["taken"] == []
    (conflict,) = found["conflicts"]
    assert conflict.pop("since") > 0
    assert conflict == {"port": port, "run": "r1", "task": "worker/0", "owner": "ada@home"}
    # all or nothing: the other port is still free
    assert a.request("lease", run="r1", owner="ada@home", ports={str(other): "ps/0"})["taken"] == [other]


def test_a_lease_is_seen_by_whoever_has_another_state_folder(lab: Lab) -> None:
    """As another user has: of the run only its user is told."""
    a, b, port = lab.agent(), lab.agent(state=lab.folder / "other"), free_port()
    a.request("lease", run="r1", owner="ada@home", ports={str(port): "worker/0"})
    user = pwd.getpwuid(os.getuid()).pw_name
    known = {"run": None, "task": None, "owner": user, "since": None}
    asked = b.request("lease", run="r2", owner="bob@work", ports={str(port): "worker/0"})
    assert asked["conflicts"] == [{"port": port, **known}]
    assert b.request("listen", ports=[port], nonce=NONCE)["busy"] == [{"port": port, "holder": known}]
    a.close()
    assert b.request("lease", run="r2", owner="bob", ports={str(port): "worker/0"})["taken"] == [port]


def test_a_lease_ends_with_the_agent_unless_a_task_holds_it(lab: Lab) -> None:
    port, other = free_port(), free_port()
    a = lab.agent()
    a.request("lease", run=lab.run, owner="me", ports={str(port): "worker/0", str(other): "worker/1"})
    lab.start(a, "sleep", "1000", port=port)
    a.close()
    b = lab.agent()
    assert b.request("lease", run="r2", owner="bob", ports={str(other): "worker/0"})["taken"] == [other]
    (conflict,) = b.request("lease", run="r2", owner="bob", ports={str(port): "worker/0"})["conflicts"]
    assert (conflict["run"], conflict["task"]) == (lab.run, "worker/0")
    lab.follow(b, "worker/0")
    lab.stop(b, kill=True)
    lab.final(b)
    until(lambda: b.request("lease", run="r2", owner="bob", ports={str(port): "worker/0"})["taken"] == [port])


def test_the_ports_of_a_run_are_held_through_an_agent_that_takes_over(lab: Lab) -> None:
    """One of them by the task that runs, one by an agent that was lost and does not know it."""
    port, other, free = free_port(), free_port(), free_port()
    asked = {str(port): "worker/0", str(other): "worker/1"}
    a, b, stranger = lab.agent(), lab.agent(), lab.agent()
    a.request("lease", run=lab.run, owner="me", ports=asked)
    lab.start(a, "sleep", "1000", port=port)
    found = b.request("lease", run=lab.run, owner="me", ports={**asked, str(free): "worker/2"})
    assert found == {"taken": [free], "conflicts": []}

    def holder(of: int) -> Any:
        found = stranger.request("lease", run="r2", owner="bob", ports={str(of): "worker/0"})
        return found["conflicts"][0]["run"]

    assert holder(free) == lab.run
    a.close()
    lab.start(b, "sleep", "1000", task="worker/1", port=other)
    b.close()
    assert [holder(one) for one in (port, other)] == [lab.run, lab.run]
    c = lab.agent()
    assert c.request("lease", run=lab.run, owner="me", ports=asked) == {"taken": [], "conflicts": []}
    lab.stop(c, kill=True)
    lab.over("worker/0")
    lab.over("worker/1")
    for number, one in enumerate((port, other)):
        lab.start(c, "sleep", "1000", task=f"worker/{number + 3}", port=one)
        assert f"{lab.state}/leases/{one}" in opened(c.pid)
    assert [holder(one) for one in (port, other)] == [lab.run, lab.run]


def test_a_claim_that_is_being_let_go_of_is_waited_for() -> None:
    port = free_port()
    claim = turnstile.pass_through(turnstile.LEASE, port)
    with pytest.raises(turnstile.Taken):
        turnstile.pass_through(turnstile.LEASE, port)
    later = threading.Timer(0.05, os.close, (claim,))
    later.start()
    os.close(turnstile.pass_through(turnstile.LEASE, port, 30.0))
    later.join()


def test_a_port_leased_to_another_run_is_not_taken_from_its_task(lab: Lab) -> None:
    """Nothing listens yet; whoever listened now would have that task fail."""
    a, b = lab.agent(), lab.agent()
    port = free_port()
    a.request("lease", ports={str(port): "worker/0"}, run="r1", owner="ada")
    found = b.request("listen", ports=[port], nonce=NONCE, run="r2")
    assert (found["listening"], [busy["holder"]["run"] for busy in found["busy"]]) == ([], ["r1"])
    assert a.request("listen", ports=[port], nonce=NONCE, run="r1")["listening"] == [port]
