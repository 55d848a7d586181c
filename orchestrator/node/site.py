"""Makes a task's Pythons ready to show their stacks: our `sitecustomize`, first on their PYTHONPATH."""

from __future__ import annotations

import hashlib
import os

from .paths import TaskFolder, make_private

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Optional

    from .paths import Paths

# SIGRTMIN+15 of glibc. Programs use USR1, USR2 and ALRM, and R, Java and Slurm scripts do too; in the
# middle of the real-time signals nobody has been met.
SIGNAL = 49
VARIABLE = "ORCHESTRATE_STACKS"
_NAME = "sitecustomize.py"


def mark(folder: TaskFolder) -> Dict[str, str]:
    """What tells our `sitecustomize` which signal it is, and where its file is made."""
    return {VARIABLE: f"{SIGNAL}:{folder.stacks}"}


def install(paths: Paths) -> Optional[str]:
    """The folder with our `sitecustomize`, named by its contents; None where it cannot be made.

    A task that cannot show its stacks is still a task.
    """
    try:
        source = _source()
        folder = paths.site(hashlib.sha256(source).hexdigest()[:16])
        path = os.path.join(folder, _NAME)
        if not os.path.exists(path):
            make_private(folder)
            beside = f"{path}.{os.getpid()}"
            with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                file.write(source)
            os.replace(beside, path)
    except OSError:
        return None
    return folder


def put_first(env: Dict[bytes, bytes], folder: str) -> None:
    """The user's PYTHONPATH stays, behind ours; an empty piece of it would mean the working folder."""
    rest = env.get(b"PYTHONPATH")
    env[b"PYTHONPATH"] = os.fsencode(folder) + (b":" + rest if rest else b"")


def _source() -> bytes:
    """As this package brought it along, from disk or from memory."""
    from . import sitecustomize  # under this name it does nothing

    spec = sitecustomize.__spec__
    assert spec is not None
    text: str = spec.loader.get_source(spec.name)  # type: ignore[union-attr]
    return text.encode()
