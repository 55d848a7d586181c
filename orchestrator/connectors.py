"""The table of transports: by which one a host entry is reached."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from orchestrator.local import LocalConnector
from orchestrator.model import Host
from orchestrator.ssh.resolve import resolve
from orchestrator.transport import Connector, Link

if TYPE_CHECKING:
    from orchestrator.ssh.keys import Secrets


def connectors(secrets: Secrets | None = None) -> Connector:
    """A connector that reaches every host by its own transport: `ssh = "local"`, or SSH.

    `secrets` are what `orchestrator.ssh.prepare` asked for. The SSH room is loaded with the first
    host that needs it.
    """
    return _Table(secrets)


class _Table:
    def __init__(self, secrets: Secrets | None) -> None:
        self._secrets = secrets
        self._local = LocalConnector()
        self._ssh: Connector | None = None
        self._loading: threading.Thread | None = None
        self._lock = threading.Lock()
        self._making = threading.Lock()

    def connect(self, host: Host, timeout: float) -> Link:
        """Connect within `timeout` seconds; raise HostError."""
        if host.is_local:
            return self._local.connect(host, timeout)
        self._load()
        resolve(host)  # remembered: ssh_config is asked for every host while the SSH room is loading
        return self._over_ssh().connect(host, timeout)

    def close(self) -> None:
        """Let go of what links share."""
        with self._making:
            ssh, self._ssh = self._ssh, None
        if ssh:
            ssh.close()

    def _load(self) -> None:
        """Begin to load the SSH room, with the first host that needs it."""
        with self._lock:
            if self._loading is None:
                self._loading = threading.Thread(target=self._over_ssh, name="load ssh", daemon=True)
                self._loading.start()

    def _over_ssh(self) -> Connector:
        with self._making:
            if self._ssh is None:
                from orchestrator.ssh.connect import SshConnector  # noqa: PLC0415 - paramiko takes 0.2 s

                self._ssh = SshConnector(self._secrets)
            return self._ssh
