"""Keys from files and from agents, each loaded once and shared by all connections."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import paramiko
from paramiko.agent import AgentSSH
from paramiko.message import Message

from orchestrator.ssh import keyfile

Ask: TypeAlias = Callable[[str], str]  # a prompt -> what was typed, without echo

_AGENT_TIMEOUT = 60.0  # an agent may ask its owner to confirm


@dataclass(frozen=True)
class Secrets:
    """What a person typed before the fan-out; handed on as data, never stored or shown."""

    passphrases: Mapping[str, str] = field(default_factory=dict, repr=False)  # path of the key -> passphrase
    password: str | None = field(default=None, repr=False)  # of the login, the same on all hosts


class Keyring:
    """Key files by path and agents by socket. Thread-safe."""

    def __init__(self, secrets: Secrets | None = None) -> None:
        self._secrets = secrets or Secrets()
        self._lock = threading.Lock()
        self._files: dict[tuple[Path, Path | None], keyfile.Loaded] = {}
        self._agents: dict[str, SharedAgent | None] = {}

    @property
    def password(self) -> str | None:
        return self._secrets.password

    def file(self, path: Path, certificate: Path | None = None) -> keyfile.Loaded:
        """The key in this file; opening one can be slow, so all hosts use the same object."""
        with self._lock:
            if (path, certificate) not in self._files:
                passphrase = self._secrets.passphrases.get(str(path))
                self._files[path, certificate] = keyfile.load(path, passphrase, certificate)
            return self._files[path, certificate]

    def agent_keys(self, address: str | None) -> tuple[paramiko.AgentKey, ...]:
        """What the agent at this socket holds; nothing when there is no agent."""
        if address is None:
            return ()
        with self._lock:
            if address not in self._agents:
                self._agents[address] = _connect_agent(address)
            agent = self._agents[address]
        return tuple(agent.get_keys()) if agent else ()

    def close(self) -> None:
        with self._lock:
            agents, self._agents = self._agents, {}
        for agent in agents.values():
            if agent:
                agent.close()


class SharedAgent(AgentSSH):
    """An agent's socket used by many transports: one request at a time."""

    def __init__(self, connection: socket.socket) -> None:
        super().__init__()
        self._turn = threading.Lock()
        self._connect(connection)  # type: ignore[attr-defined]

    def _send_message(self, msg: Message | bytes) -> tuple[int, Message]:
        with self._turn:
            answer: tuple[int, Message] = super()._send_message(msg)  # type: ignore[misc]
            return answer

    def close(self) -> None:
        self._close()  # type: ignore[attr-defined]


def _connect_agent(address: str) -> SharedAgent | None:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(_AGENT_TIMEOUT)
    try:
        connection.connect(address)
        return SharedAgent(connection)
    except (OSError, paramiko.SSHException):
        connection.close()
        return None
