"""Folders of this machine to hosts, and folders of hosts to this machine and to other hosts."""

from orchestrator.sync.backups import BackupOrigin, carry
from orchestrator.sync.contents import (
    ChangedError,
    Contents,
    DataPath,
    read_data,
    read_folder,
)
from orchestrator.sync.conversation import Throttle, one_time_key
from orchestrator.sync.files import fetch
from orchestrator.sync.sending import Delivery, Sending, push
