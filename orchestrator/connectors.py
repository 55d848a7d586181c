"""The table of transports: which one connects to a given host."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from orchestrator import slurm
from orchestrator.command import PipeLink
from orchestrator.errors import HostError, Trouble
from orchestrator.fleet.containers import ContainerLink, Inside
from orchestrator.model import Host, Way
from orchestrator.ssh import openssh
from orchestrator.ssh.openssh import OnlyOpenSSHError
from orchestrator.transport import Connector, Link

if TYPE_CHECKING:
    from orchestrator.ssh.keys import Secrets


class Connectors:
    """Connects every host by its own transport, with the answers that the user gave beforehand."""

    def __init__(self, secrets: Secrets | None = None, inside: Inside | None = None) -> None:
        """With `inside`, hosts that have `container` are reached in a container of that run."""
        self._secrets = secrets
        self._inside = inside
        self._masters = secrets.masters if secrets else None
        self._paramiko: Connector | None = None
        self._making = threading.Lock()

    def connect(self, host: Host, timeout: float) -> Link:
        """Connect within `timeout` seconds; raise HostError."""
        link = self._to_machine(host, timeout)
        return ContainerLink(link, host, self._inside) if self._inside and host.container else link

    def _to_machine(self, host: Host, timeout: float) -> Link:
        if host.is_local:
            return PipeLink(host.name)
        match host.via:
            case Way.SRUN:
                return PipeLink(
                    host.name,
                    slurm.client(host),
                    lambda _status, stderr: slurm.explain(host, stderr),
                    environ=slurm.environment(),
                )
            case Way.OPENSSH:
                return self._over_openssh(host)
            case Way.AUTO | Way.PARAMIKO:
                try:
                    return self._over_paramiko().connect(host, timeout)
                except OnlyOpenSSHError as error:
                    if host.via is Way.PARAMIKO:
                        raise
                    return self._over_openssh(host, error.needs, error)
            case via:
                return PipeLink(host.name, host.client(via))

    def close(self) -> None:
        """Release what links share."""
        with self._making:
            connector, self._paramiko = self._paramiko, None
        if connector:
            connector.close()
        if self._masters:
            openssh.close_masters(self._masters)

    def _over_openssh(self, host: Host, remark: str = "", before: HostError | None = None) -> Link:
        """Connect with OpenSSH; the error of a refused paramiko login, `before`, is the more precise one."""

        def explain(status: int | None, stderr: bytes) -> HostError | None:
            error = openssh.error(host, status, stderr)
            return before if before and error and before.kind == Trouble.AUTH else error

        remark = remark and f"over OpenSSH's own client, for {remark}"
        return PipeLink(host.name, openssh.client(host, self._masters), explain, remark)

    def _over_paramiko(self) -> Connector:
        with self._making:
            if self._paramiko is None:
                from orchestrator.ssh.connect import SshConnector  # noqa: PLC0415 - paramiko takes 0.2 s

                self._paramiko = SshConnector(self._secrets)
            return self._paramiko
