"""Source trees on a node: immutable, named by their digest, complete when they have their name.

    <workdir>/trees/<digest>                    a tree
    <workdir>/trees/.incoming-<digest>-<id>     one that is being filled, by rsync or by `untar`

The folder may be shared with other machines: what makes a tree is one rename.
"""

from __future__ import annotations

import os
import stat
import time

from .fault import NodeError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterator, List, Optional

    from .agent import Agent, Request

_STALE = 24 * 3600.0  # an incoming tree that was given up
_SHOWN = 5  # wrong files that an error names
_VERIFY_SECONDS = 1800.0


def has(_agent: Agent, request: Request) -> Dict[str, Any]:
    trees = folder_of(request)
    return {
        "present": [name for name in request["digests"] if os.path.isdir(os.path.join(trees, _digest(name)))]
    }


def begin(agent: Agent, request: Request) -> None:
    """Make the folder that is to be filled; asked again, the same one."""
    incoming = incoming_of(agent, request)
    trees = folder_of(request)
    agent.in_child(request, lambda: _begin(trees, incoming), seconds=60.0)


def seal(agent: Agent, request: Request) -> None:
    """Compare what has come with the manifest and give it its name."""
    incoming = incoming_of(agent, request)
    tree = os.path.join(folder_of(request), request["digest"])
    manifest = request["manifest"]
    agent.in_child(request, lambda: _seal(incoming, tree, manifest), seconds=_VERIFY_SECONDS)


def folder_of(request: Request) -> str:
    return os.path.join(os.path.abspath(os.path.expanduser(request["workdir"])), "trees")


def incoming_of(agent: Agent, request: Request) -> str:
    """This agent's own incoming folder for a digest."""
    trees, digest = folder_of(request), _digest(request["digest"])
    known = agent.rooms.setdefault("incoming", {})
    path: str = known.setdefault(
        (trees, digest), os.path.join(trees, f".incoming-{digest}-{os.urandom(6).hex()}")
    )
    return path


def walk(folder: str, below: str = "") -> Iterator[os.DirEntry[str]]:
    """Everything below a folder that is no folder; links are not followed."""
    with os.scandir(os.path.join(folder, below)) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            if entry.is_dir(follow_symlinks=False):
                yield from walk(folder, os.path.join(below, entry.name))
            else:
                yield entry


def remove(folder: str) -> None:
    """As far as it can be: what stays is hidden, and goes when it is old."""
    import shutil

    shutil.rmtree(folder, ignore_errors=True)


def unwritable(path: str, error: OSError) -> NodeError:
    return NodeError(
        "workdir",
        f"cannot write {path}",
        error.strerror or str(error),
        "make room, or set `workdir` to a folder that this user may write",
    )


def _begin(trees: str, incoming: str) -> Dict[str, Any]:
    try:
        os.makedirs(incoming, exist_ok=True)
        names = os.listdir(trees)
    except OSError as error:
        raise unwritable(trees, error) from None
    for name in names:
        path = os.path.join(trees, name)
        if name.startswith(".incoming-") and path != incoming and age(path) > _STALE:
            remove(path)
    return {"incoming": incoming, "base": _newest(trees, names)}


def _newest(trees: str, names: List[str]) -> Optional[str]:
    paths = [os.path.join(trees, name) for name in names if not name.startswith(".")]
    return min(paths, key=age) if paths else None


def age(path: str) -> float:
    try:
        return time.time() - os.lstat(path).st_mtime
    except OSError:
        return 0.0  # somebody else's, on its way


def _seal(incoming: str, tree: str, manifest: List[Dict[str, Any]]) -> Dict[str, Any]:
    if os.path.isdir(tree):  # another machine on this shared folder was faster
        remove(incoming)
        return {"ok": True, "already": True}
    try:
        wrong = _compare(incoming, manifest)
        if wrong:
            raise _refuse(tree, wrong)
        os.utime(incoming)  # `begin` takes the newest as its base
        os.rename(incoming, tree)
    except OSError as error:
        if not os.path.isdir(tree):
            raise unwritable(os.path.dirname(tree), error) from None
        remove(incoming)
        return {"ok": True, "already": True}
    return {"ok": True, "already": False}


def _compare(incoming: str, manifest: List[Dict[str, Any]]) -> List[str]:
    """What is wrong, a line per file, in the order of the manifest."""
    wrong = []
    known = set()
    for entry in manifest:
        known.add(entry["path"])
        outside = entry["path"].startswith("/") or ".." in entry["path"].split("/")
        why = "out of the tree" if outside else _fault_of(os.path.join(incoming, entry["path"]), entry)
        if why:
            wrong.append(f"{entry['path']}: {why}")
    for found in walk(incoming) if os.path.isdir(incoming) else ():
        path = os.path.relpath(found.path, incoming)
        if path not in known:
            wrong.append(f"{path}: not in the manifest")
    return wrong


def _fault_of(path: str, entry: Dict[str, Any]) -> str:
    """Why a file is not what the manifest says; empty when it is."""
    try:
        found = os.lstat(path)
        if "link" in entry:
            if not stat.S_ISLNK(found.st_mode):
                return "not a symbolic link"
            return "" if os.readlink(path) == entry["link"] else f"a link to {os.readlink(path)}"
        if not stat.S_ISREG(found.st_mode):
            return "not a file"
        if _sha256(path) != entry["sha256"]:
            return f"other content ({found.st_size} bytes)"
        if stat.S_IMODE(found.st_mode) != entry["mode"]:
            return _set_mode(path, found, entry["mode"])
    except FileNotFoundError:
        return "missing"
    return ""


def _set_mode(path: str, found: os.stat_result, mode: int) -> str:
    """A umask is no reason to fail; but a file shared with another tree is not ours to change."""
    if found.st_nlink > 1:
        return f"mode {stat.S_IMODE(found.st_mode):o} instead of {mode:o}"
    os.chmod(path, mode)
    return ""


def _sha256(path: str) -> str:
    import hashlib

    digest = hashlib.sha256()
    with open(path, "rb", buffering=0) as file:
        while True:
            data = file.read(1 << 20)
            if not data:
                return digest.hexdigest()
            digest.update(data)


def _refuse(tree: str, wrong: List[str]) -> NodeError:
    shown = "; ".join(wrong[:_SHOWN]) + ("; ..." if len(wrong) > _SHOWN else "")
    return NodeError(
        "tree",
        f"{len(wrong)} files of the tree {os.path.basename(tree)} did not arrive as they were sent",
        shown,
        "were they changed meanwhile? Sync again; if it stays, the disk or the network corrupts data",
    )


def _digest(text: str) -> str:
    if not text or not set(text) <= set("0123456789abcdef"):
        raise NodeError("protocol", f"not a digest: {text!r}")
    return text
