"""Opening links: bounded, and tried again where a busy sshd hangs up."""

from __future__ import annotations

import logging
import random
import threading
import time
from functools import partial

from orchestrator.errors import HostError
from orchestrator.model import Host
from orchestrator.ssh.attempt import Line, open_line
from orchestrator.ssh.bastions import Bastions
from orchestrator.ssh.failures import HungUp
from orchestrator.ssh.hostkeys import KnownHosts
from orchestrator.ssh.keys import Keyring, Secrets
from orchestrator.ssh.link import SshLink
from orchestrator.ssh.problems import explain
from orchestrator.ssh.resolve import resolve
from orchestrator.ssh.target import Deadline, Target

# Without a handler Python prints paramiko's tracebacks on stderr; a debug log may still collect them.
logging.getLogger("paramiko").addHandler(logging.NullHandler())

_PARALLEL = 32
_PAUSES = (0.2, 0.4, 0.8, 1.6, 2.0, 2.0)  # seconds at most between tries


class SshConnector:
    """Opens links over SSH. Thread-safe; one per command of ours."""

    def __init__(self, secrets: Secrets | None = None) -> None:
        self._keyring = Keyring(secrets)
        self._known = KnownHosts()
        self._turn = threading.BoundedSemaphore(_PARALLEL)
        self._bastions = Bastions(self._open)

    def connect(self, host: Host, timeout: float) -> SshLink:
        """Connect and authenticate within `timeout` seconds; raise HostError."""
        began = time.monotonic()
        target = resolve(host)
        timeout = min(timeout, target.connect_timeout or timeout)
        try:
            line = self._open(host.name, target, Deadline(timeout, began))
        except HostError:  # a bastion's, which is worded
            raise
        except Exception as error:
            raise explain(error, host.name, target) from error
        told = partial(explain, host=host.name, target=target)
        return SshLink(line.transport, told, line.hang_up, target.environment)

    def close(self) -> None:
        """Close the bastions' connections and the agents' sockets."""
        self._bastions.close()
        self._keyring.close()

    def _open(self, host: str, target: Target, deadline: Deadline) -> Line:
        """Connect through the jumps; again, later and at random, when something hangs up at once."""
        pauses = [longest * random.uniform(0.3, 1.0) for longest in _PAUSES]  # noqa: S311 - only spreads
        while True:
            through = self._bastions.at_the_end_of(target.jumps, host, deadline)
            try:
                with self._turn:
                    return open_line(
                        target, through=through, deadline=deadline, keyring=self._keyring, known=self._known
                    )
            except (HungUp, ConnectionResetError):
                if not pauses or pauses[0] + 1.0 > deadline.left:
                    raise
            time.sleep(pauses.pop(0))
