"""The SSH transport: fabric and paramiko behind the seam of `orchestrator.transport`.

The only room that imports them. Keys and known hosts are handled as OpenSSH does; what this
client cannot do (host certificates, FIDO keys, GSSAPI) ends in an error that says so.
"""

import logging

from orchestrator.ssh.connect import SshConnector
from orchestrator.ssh.keys import Ask, Secrets
from orchestrator.ssh.prepare import prepare

# Without a handler Python prints paramiko's tracebacks on stderr; a debug log may still collect them.
logging.getLogger("paramiko").addHandler(logging.NullHandler())

__all__ = ["Ask", "Secrets", "SshConnector", "prepare"]
