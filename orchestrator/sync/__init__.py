"""Getting a source tree to a host: what belongs to it, and the two ways to send it."""

from orchestrator.sync.push import TreeResult, push
from orchestrator.sync.tree import Tree, read_package, read_tree

__all__ = ["Tree", "TreeResult", "push", "read_package", "read_tree"]
