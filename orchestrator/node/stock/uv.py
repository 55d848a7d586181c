"""uv on a node: how it is called, and what to do about what it says."""

from __future__ import annotations

import os
import shlex
import subprocess

from ..base.annotations import Any
from ..base.fault import NodeError
from ..base.lenient import signal_name
from ..serve.agent import Request
from .pipconf import in_words_of_uv

NO_INDEX = "no-index"  # the kind of an error: packages have to come another way
_LINES = 12  # of uv's words in an error
_UNREACHED = ("error sending request", "failed to fetch", "dns error", "client error (connect)", "timed out")
# An index that answers and lacks what was resolved elsewhere: the controller's is a private one, say.
_LACKING = ("not found in the package registry", "there is no version of", "network was disabled")


def call(
    request: Request, arguments: list[str], log: Any = subprocess.PIPE, **settings: str
) -> subprocess.CompletedProcess[bytes]:
    """Raise NodeError when something killed it."""
    done = subprocess.run(
        [os.path.expanduser(str(request["uv"])), *arguments],
        env={**environment(os.environ), **settings},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=log,
        cwd="/",  # uv reads the configuration of the project that it is called in
        check=False,
    )
    if done.returncode < 0:
        raise killed("uv", done.returncode)
    return done


def environment(login: Any) -> dict[str, str]:
    """The login's environment, with what pip knows in the words of uv where uv was told nothing itself."""
    made = {**compiling(login), **in_words_of_uv(login)}
    made.update(UV_NO_PROGRESS="1", UV_PYTHON_DOWNLOADS="never", NO_COLOR="1")
    made.pop("VIRTUAL_ENV", None)
    return made


def compiling(login: Any) -> dict[str, str]:
    """The login's environment without what would keep Python's bytecode from its place beside the source."""
    return {
        name: value
        for name, value in login.items()
        if name not in {"PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX"}
    }


def failed(arguments: list[str], log: str) -> NodeError:
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
    elif says("hash mismatch"):
        hint = "compare the hashes in `requirements` of [env] with those of the index: it serves another file"
    elif says(*_UNREACHED, *_LACKING):
        kind, hint = NO_INDEX, 'set `via = "controller"` under [env]: this machine then sends the packages'
    # The folder in uv's first line is another one on each host; without it equal errors are shown once.
    told = "\n".join(line for line in log.split("\n") if not line.startswith("Using Python "))
    return NodeError(kind, what, tail(told), hint)


def lacks(said: str) -> bool:
    """Whether uv found an index, and not in it what was asked for."""
    return any(word in said.lower() for word in _LACKING)


def killed(what: str, returncode: int) -> NodeError:
    """It has said nothing of it: whoever ended it did not ask."""
    name = signal_name(-returncode)
    return NodeError(
        "env",
        f"cannot make the environment: {what} was killed by {name}",
        "SIGKILL is `kill -9` or the kernel's out-of-memory killer" if name == "SIGKILL" else "",
        "`dmesg -T | grep -i oom` there; then run `orchestrate setup` again",
    )


def no_python(request: Request, wanted: str, stderr: bytes) -> NodeError:
    hint = "set `python` under [env] to one that is there; or install it (`apt install python3`)"
    if wanted[:1] in "3<>=~!":
        program = str(request["uv"])
        program = program if program.startswith("~/") else shlex.quote(program)
        hint += f"; or let uv do it there: `{program} python install {shlex.quote(wanted)}`"
    return NodeError(
        "no-python",
        f"has no Python that fits {wanted!r}",
        tail(stderr.decode("utf-8", "replace"), 2),
        hint,
    )


def tail(text: str, lines: int = _LINES) -> str:
    return "\n".join([line.rstrip() for line in text.strip().split("\n") if line.strip()][-lines:])
