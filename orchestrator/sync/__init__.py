"""Getting a source tree to a host, two ways; and folders of hosts to this machine, and to other hosts."""

from orchestrator.sync.backups import Carried, Origin, carry
from orchestrator.sync.files import Fetched, fetch, put
from orchestrator.sync.push import TreeResult, push
from orchestrator.sync.tree import Tree, read_folder, read_package, read_tree

__all__ = [
    "Carried",
    "Fetched",
    "Origin",
    "Tree",
    "TreeResult",
    "carry",
    "fetch",
    "push",
    "put",
    "read_folder",
    "read_package",
    "read_tree",
]
