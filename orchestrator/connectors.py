"""The table of transports: by which one a host entry is reached."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from orchestrator import slurm
from orchestrator.command import PipeLink, filled_in
from orchestrator.errors import HostError
from orchestrator.model import Host, Way
from orchestrator.ssh import openssh
from orchestrator.ssh.openssh import OnlyOpenSSHError
from orchestrator.ssh.resolve import resolve
from orchestrator.transport import Connector, Link

if TYPE_CHECKING:
    from orchestrator.ssh.keys import Secrets


def connectors(secrets: Secrets | None = None) -> Connector:
    """A connector that reaches every host by its own transport.

    `secrets` are what `orchestrator.ssh.prepare` asked for. paramiko is loaded with the first host that
    needs it.
    """
    return _Table(secrets)


class _Table:
    def __init__(self, secrets: Secrets | None) -> None:
        self._secrets = secrets
        self._masters = secrets.masters if secrets else None
        self._paramiko: Connector | None = None
        self._loading: threading.Thread | None = None
        self._lock = threading.Lock()
        self._making = threading.Lock()

    def connect(self, host: Host, timeout: float) -> Link:
        """Connect within `timeout` seconds; raise HostError."""
        if host.is_local:
            return PipeLink(host.name)
        match host.via:
            case Way.SRUN:
                return self._over_srun(host)
            case Way.OPENSSH:
                return self._over_openssh(host, "")
            case Way.AUTO | Way.PARAMIKO:
                return self._over_ssh(host, timeout)
            case words:
                return PipeLink(host.name, filled_in(words, host))

    def close(self) -> None:
        """Let go of what links share."""
        with self._making:
            connector, self._paramiko = self._paramiko, None
        if connector:
            connector.close()
        if self._masters:
            openssh.close_masters(self._masters)

    def _over_ssh(self, host: Host, timeout: float) -> Link:
        """Connect with paramiko, or with OpenSSH where that is needed and allowed."""
        self._load()
        target = resolve(host)  # remembered: ssh_config is asked for every host while paramiko is loading
        beyond = target.beyond and f"{target.beyond} in ssh_config"
        if not beyond:
            try:
                return self._over_paramiko().connect(host, timeout)
            except OnlyOpenSSHError as error:
                if host.via is Way.PARAMIKO:
                    raise
                beyond = error.needs
        if host.via is Way.PARAMIKO:
            what, why = (
                "cannot be connected to as ssh_config asks",
                f"only OpenSSH's own client can follow {beyond}",
            )
            hint = 'take `via = "paramiko"` out of hosts.toml'
            raise HostError(host.name, what, kind="config", why=why, hint=hint)
        return self._over_openssh(host, beyond)

    def _over_openssh(self, host: Host, remark: str) -> Link:
        def explain(status: int | None, words: bytes) -> HostError | None:
            return openssh.error(host, status, words)

        return PipeLink(host.name, openssh.client(host, self._masters), explain, remark)

    def _over_srun(self, host: Host) -> Link:
        def explain(_status: int | None, words: bytes) -> HostError | None:
            return slurm.explain(host, words)

        return PipeLink(host.name, slurm.client(host), explain, environ=slurm.environment())

    def _load(self) -> None:
        """Begin to load paramiko, with the first host that needs it."""
        with self._lock:
            if self._loading is None:
                self._loading = threading.Thread(target=self._over_paramiko, name="load ssh", daemon=True)
                self._loading.start()

    def _over_paramiko(self) -> Connector:
        with self._making:
            if self._paramiko is None:
                from orchestrator.ssh.connect import SshConnector  # noqa: PLC0415 - paramiko takes 0.2 s

                self._paramiko = SshConnector(self._secrets)
            return self._paramiko
