"""Getting a source tree to a host, two ways; and folders of hosts to this machine, and to other hosts."""

from orchestrator.sync.admit import Links
from orchestrator.sync.backups import BackupOrigin, carry
from orchestrator.sync.dataset import DataPath, Dataset, read_dataset
from orchestrator.sync.files import fetch, put
from orchestrator.sync.onetime import one_time_key
from orchestrator.sync.push import TreeResult, push
from orchestrator.sync.tarball import ChangedError
from orchestrator.sync.throttle import Throttle
from orchestrator.sync.tree import Tree, read_folder, read_package, read_tree
