"""Asks the training Python, in the job's own environment, what it is and what is installed in it."""

from __future__ import annotations

from ..base.annotations import Any
from . import question

# Any Python can run it, so that an old one can be named. It reads the names of the folders that pip
# leaves beside each package: importlib.metadata would cost four times the rest of the question.
_QUESTION = """
import os, sys
def plain(name):
    return name.lower().replace("-", "_").replace(".", "_")
found = dict((plain(name), "") for name in sys.argv[2:])
for folder in sys.path:
    try:
        entries = os.listdir(folder or ".")
    except OSError:
        continue
    for entry in entries:
        stem, _, kind = entry.rpartition(".")
        name, _, version = stem.partition("-")
        if kind in ("dist-info", "egg-info") and found.get(plain(name)) == "":
            found[plain(name)] = version.partition("-")[0]
stays = getattr(sys, "base_prefix", sys.prefix) == sys.prefix and os.path.exists(
    os.path.join(os.path.dirname(os.__file__), "EXTERNALLY-MANAGED")
)
said = [sys.executable, sys.version.split()[0], "1" if stays else ""]
said += [found[plain(name)] for name in sys.argv[2:]]
os.write(1, (sys.argv[1] + "\\0".join(said) + sys.argv[1]).encode("utf-8", "surrogateescape"))
"""


def ask(python: str, setup: str | None, packages: list[str]) -> dict[str, Any]:
    """{"python", "packages"} of `facts`; one process, and nothing big is imported."""
    fields, error = question.ask(lambda mark: [python, "-c", _QUESTION, mark, *packages], python, setup)
    if fields is None:
        return _unknown(packages, error)
    path, version, managed, *versions = fields
    return {
        "python": {"path": path, "version": version, "ok": True, "error": "", "managed": bool(managed)},
        "packages": {name: version or None for name, version in zip(packages, versions)},  # noqa: B905
    }


def _unknown(packages: list[str], error: str) -> dict[str, Any]:
    return {
        "python": {"path": None, "version": None, "ok": False, "error": error},
        "packages": dict.fromkeys(packages),
    }
