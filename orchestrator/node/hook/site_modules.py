"""Change modules right after their import, as the parts beside this one want it."""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict


def install() -> None:
    changes: "Dict[str, Callable[[Any], None]]" = {}
    parts = []
    if "ORCHESTRATE_KERAS" in os.environ or "ORCHESTRATE_AUTO_SHARD" in os.environ:
        parts.append("site_tensorflow")
    if "ORCHESTRATE_STACKS" in os.environ and "JAX_PROCESS_ID" in os.environ:  # off with the stacks
        parts.append("site_jax")
    for name in parts:
        changes.update(__import__(name).changes())
        del sys.modules[name]
    if changes:
        sys.meta_path.insert(0, _Watch(changes))


class _Watch:
    """A finder that has modules changed after their import, and goes when all are."""

    def __init__(self, changes: "Dict[str, Callable[[Any], None]]") -> None:
        self._changes = changes

    def find_spec(self, name: str, path: "Any" = None, target: "Any" = None) -> "Any":
        change = self._changes.get(name)
        if change is None:
            return None
        from importlib.machinery import PathFinder

        spec: Any = PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return None
        del self._changes[name]
        if not self._changes:
            sys.meta_path.remove(self)
        execute = spec.loader.exec_module

        def exec_module(module: "Any") -> None:
            del spec.loader.exec_module
            execute(module)
            change(module)

        spec.loader.exec_module = exec_module
        return spec
