"""Where worker_entry lies, the training program that comes along."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

import orchestrator
from orchestrator.sync.contents import Contents, read_paths


def builtin_home() -> Path:
    """The folder that holds it: beside our package in a clone, within it where a wheel was installed.

    There it is no top-level package: another distribution may have one of that name.
    """
    package = Path(orchestrator.__file__).resolve().parent
    shipped = package / "_shipped"
    return shipped if shipped.is_dir() else package.parent


def read_builtin() -> Contents:
    """Read worker_entry as a tree, to be sent."""
    home = builtin_home().resolve()
    paths = (home / "worker_entry").rglob("*")
    return read_paths(home, (path for path in paths if path.is_file() and "__pycache__" not in path.parts))


def check_builtin(arguments: Sequence[str]) -> None:
    """Let worker_entry judge its options; a wrong one ends this program with status 2."""
    home = str(builtin_home())
    sys.path.insert(0, home)
    try:
        options = importlib.import_module("worker_entry.options")
    finally:
        sys.path.remove(home)
    options.parse(arguments)
