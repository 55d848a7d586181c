"""uv on a node: how it is called, and what to do about what it says."""

from __future__ import annotations

import os
import subprocess

from ..base.fault import NodeError
from ..base.lenient import signal_name
from .pipconf import in_words_of_uv

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List

    from ..serve.agent import Request

NO_INDEX = "no-index"  # the kind of an error: packages have to come another way
_LINES = 12  # of uv's words in an error


def call(
    request: Request, arguments: List[str], log: Any = subprocess.PIPE, **settings: str
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [os.path.expanduser(str(request["uv"])), *arguments],
        env={**environment(os.environ), **settings},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=log,
        cwd="/",  # uv reads the configuration of the project that it is called in
        check=False,
    )


def environment(login: Any) -> Dict[str, str]:
    """The login's environment, with what pip knows in the words of uv where uv was told nothing itself."""
    made = {**compiling(login), **in_words_of_uv(login)}
    made.update(UV_NO_PROGRESS="1", UV_PYTHON_DOWNLOADS="never", NO_COLOR="1")
    made.pop("VIRTUAL_ENV", None)
    return made


def compiling(login: Any) -> Dict[str, str]:
    """The login's environment without what would keep Python's bytecode from its place beside the source."""
    return {
        name: value
        for name, value in login.items()
        if name not in {"PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX"}
    }


def failed(arguments: List[str], log: str) -> NodeError:
    lowered = log.lower()

    def says(*words: str) -> bool:
        return any(word in lowered for word in words)

    what = f"cannot make the environment: `uv {arguments[0]}` failed"
    hint = "mend what uv says, then run `orchestrate setup`"
    kind = "env"
    if says("no space left", "disk quota"):
        hint = "make room there (`orchestrate clean`), or set `workdir` to another disk"
    elif says("no wheels with a matching", "no source distribution", "only has wheels"):
        hint = 'set `python = "3.12"` under [env], or other versions of the packages'
    elif says("error sending request", "failed to fetch", "dns error", "client error (connect)", "timed out"):
        kind, hint = NO_INDEX, 'set `via = "controller"` under [env]: this machine then sends the packages'
    return NodeError(kind, what, tail(log), hint)


def killed(what: str, returncode: int) -> NodeError:
    """It has said nothing of it: whoever ended it did not ask."""
    name = signal_name(-returncode)
    return NodeError(
        "env",
        f"cannot make the environment: {what} was killed by {name}",
        "SIGKILL is `kill -9` or the kernel's out-of-memory killer" if name == "SIGKILL" else "",
        "`dmesg -T | grep -i oom` there; then run `orchestrate setup` again",
    )


def no_python(wanted: str, stderr: bytes) -> NodeError:
    return NodeError(
        "no-python",
        f"has no Python that fits {wanted!r}",
        tail(stderr.decode("utf-8", "replace"), 2),
        "set `python` under [env] to one that is there; or install it (`apt install python3`); or let uv do "
        "it there: `uv python install`",
    )


def tail(text: str, lines: int = _LINES) -> str:
    return "\n".join([line.rstrip() for line in text.strip().split("\n") if line.strip()][-lines:])
