"""Passwords: only when they were asked for, alone or as a second factor; against a server that wants them.

The server is paramiko's own, since a real sshd would want a real password of a real account.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import paramiko
import pytest
from paramiko.common import AUTH_FAILED, AUTH_PARTIALLY_SUCCESSFUL, AUTH_SUCCESSFUL
from paramiko.server import InteractiveQuery, ServerInterface

from orchestrator.errors import HostError
from orchestrator.model import Host
from orchestrator.rehearsal import sshd
from orchestrator.ssh.connect import SshConnector
from orchestrator.ssh.keys import Secrets
from orchestrator.ssh.prepare import prepare


@dataclass(frozen=True)
class Rules:
    """What it takes to get in."""

    key: bool
    password: bool
    by_prompt: bool = False  # keyboard-interactive, as PAM does it
    heard: list[str] = field(default_factory=list)  # passwords that were given


class Doorman(ServerInterface):
    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.key_shown = False

    def get_allowed_auths(self, username: str) -> str:
        del username
        if self.rules.key and not self.key_shown:
            return "publickey"
        return "keyboard-interactive" if self.rules.by_prompt else "password"

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        del username, key
        if not self.rules.key:
            return AUTH_FAILED
        self.key_shown = True
        return AUTH_PARTIALLY_SUCCESSFUL if self.rules.password else AUTH_SUCCESSFUL

    def check_auth_password(self, username: str, password: str) -> int:
        self.rules.heard.append(password)
        ready = self.key_shown or not self.rules.key
        right = (username, password) == ("train", "open sesame") and ready and not self.rules.by_prompt
        return AUTH_SUCCESSFUL if right else AUTH_FAILED

    def check_auth_interactive(self, username: str, submethods: str) -> InteractiveQuery:
        del username, submethods
        query = InteractiveQuery()
        query.add_prompt("Password: ", echo=False)
        return query

    def check_auth_interactive_response(self, responses: list[str]) -> int:
        return AUTH_SUCCESSFUL if responses == ["open sesame"] else AUTH_FAILED


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[[Rules], Host]]:
    """Start a server with these rules; the host entry that leads to it."""
    sshd.write_key(tmp_path / "host_key")
    sshd.write_key(tmp_path / "key")
    host_key = paramiko.Ed25519Key.from_private_key_file(str(tmp_path / "host_key"))
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))

        def start(rules: Rules) -> Host:
            def run() -> None:
                while True:
                    try:
                        client = listener.accept()[0]
                    except OSError:
                        return
                    transport = paramiko.Transport(client)
                    transport.add_server_key(host_key)
                    transport.start_server(threading.Event(), Doorman(rules))
                    stack.callback(transport.close)

            thread = threading.Thread(target=run)
            thread.start()
            stack.callback(thread.join)
            stack.callback(listener.shutdown, socket.SHUT_RDWR)
            port = listener.getsockname()[1]
            public = (tmp_path / "host_key.pub").read_text()
            (tmp_path / "known").write_text(f"[127.0.0.1]:{port} {public}")
            (tmp_path / "config").write_text(
                f"UserKnownHostsFile {tmp_path}/known\nIdentitiesOnly yes\nIdentityFile {tmp_path}/key\n"
            )
            return Host("h", "127.0.0.1", "127.0.0.1", "train", port, ssh_config=str(tmp_path / "config"))

        yield start


RULES = {
    "password": Rules(key=False, password=True),
    "password by prompt": Rules(key=False, password=True, by_prompt=True),
    "key and password": Rules(key=True, password=True),
}


@pytest.mark.parametrize("rules", RULES.values(), ids=RULES)
def test_a_password_that_was_asked_for_opens_the_door(serve: Callable[[Rules], Host], rules: Rules) -> None:
    host = serve(rules)
    prompts: list[str] = []

    def ask(prompt: str) -> str:
        prompts.append(prompt)
        return "open sesame"

    secrets = prepare([host], ask, password=True)
    assert prompts == ["Password for the login: "]
    assert "sesame" not in repr(secrets)
    connector = SshConnector(secrets)
    connector.connect(host, 20).close()
    connector.close()


CASES = {
    "none given": (RULES["password"], None, "it takes only password"),
    "wrong": (RULES["password"], "open up", "neither a key nor the password was accepted"),
    "wrong at the prompt": (RULES["password by prompt"], "open up", "neither a key nor the password"),
    "second factor missing": (RULES["key and password"], None, "it takes only password"),
}


@pytest.mark.parametrize(("rules", "password", "why"), CASES.values(), ids=CASES)
def test_what_is_missing_is_said(
    serve: Callable[[Rules], Host], rules: Rules, password: str | None, why: str
) -> None:
    host = serve(rules)
    connector = SshConnector(Secrets(password=password))
    with pytest.raises(HostError) as caught:
        connector.connect(host, 20)
    connector.close()
    assert caught.value.kind == "auth"
    assert why in caught.value.why


def test_a_password_is_not_given_away_when_a_key_will_do(serve: Callable[[Rules], Host]) -> None:
    rules = Rules(key=True, password=False)
    host = serve(rules)
    connector = SshConnector(Secrets(password="open sesame"))
    connector.connect(host, 20).close()
    connector.close()
    assert rules.heard == []
