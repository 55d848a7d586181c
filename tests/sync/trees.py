"""Code trees as a launch reads them."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from orchestrator.sync.contents import CodeSource, Contents
from orchestrator.sync.listing import CodeRoot, list_files


def read_tree(root: Path, ignore: Sequence[str] = (), own: Iterable[Path] = ()) -> Contents:
    return CodeSource(CodeRoot(root), list_files(root, ignore, own)).read()
