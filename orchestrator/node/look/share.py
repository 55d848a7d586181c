"""Which hosts see the same working folder: each leaves its name in it, then all look.

<workdir>/.share-<nonce>/<host>
"""

from __future__ import annotations

import os
from typing import Any

from ..base import lenient, trust
from ..base.fault import unwritable
from ..base.paths import absolute, plain_name
from ..disk.removing import remove
from ..serve.agent import Agent, Request

_STALE = 3600.0  # seconds after which a look that was never cleaned up is


def write(_agent: Agent, request: Request) -> dict[str, Any]:
    """Leave our name. A working folder whose code we would not run is refused here already."""
    folder = _folder(request)
    trust.check_way(os.path.dirname(folder), "trees")
    trust.check_way(os.path.dirname(folder), "runs")
    try:
        os.makedirs(folder, exist_ok=True)
        _forget_stale(folder)
        with open(os.path.join(folder, plain_name("host", request["host"])), "wb"):
            pass
    except OSError as error:
        raise unwritable(folder, error) from None
    return {}


def read(_agent: Agent, request: Request) -> dict[str, Any]:
    """The names that this host sees; no folder, no names."""
    folder = _folder(request)
    try:
        _refresh(folder)
        return {"hosts": sorted(name for name in os.listdir(folder) if not name.startswith("."))}
    except FileNotFoundError:
        return {"hosts": []}
    except OSError as error:
        raise unwritable(folder, error) from None


def clean(_agent: Agent, request: Request) -> dict[str, Any]:
    remove(_folder(request))
    return {}


def _refresh(folder: str) -> None:
    """Change the folder ourselves: that is what makes an NFS client forget its stale listing."""
    mark = os.path.join(folder, f".{os.uname().nodename}-{os.getpid()}")
    with open(mark, "wb"):
        pass
    os.unlink(mark)


def _forget_stale(folder: str) -> None:
    """Remove what is old beside our folder, by the file system's clock: ours may be hours ahead."""
    workdir, now = os.path.dirname(folder), os.stat(folder).st_mtime
    for name in os.listdir(workdir):
        path = os.path.join(workdir, name)
        if name.startswith(".share-") and now - lenient.changed(path, now) > _STALE:
            remove(path)


def _folder(request: Request) -> str:
    return os.path.join(absolute(request["workdir"]), ".share-" + plain_name("nonce", request["nonce"]))
