"""Asks a program, in the job's own environment, and takes its answer from whatever else it prints."""

from __future__ import annotations

import os
import subprocess

from ..task import environ

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Dict, List, Optional, Tuple

_SECONDS = 45.0  # a cold network file system, and a user's setup


def ask(
    argv: Callable[[str], List[str]],
    python: str,
    setup: Optional[str],
    env: Optional[Dict[str, str]] = None,
) -> Tuple[Optional[List[str]], str]:
    """The fields a program printed between two marks, separated by NUL; or None and why there are none.

    `argv` makes its command line from the mark: the user's setup may print before it, and profiles too.
    """
    mark = os.urandom(8).hex()
    spec = {"argv": argv(mark), "python": python, "setup": setup, "env": env or {}}
    command, whole = environ.of_task(spec, {})
    try:
        done = subprocess.run(
            command,
            env=whole,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            timeout=_SECONDS,
            check=False,
        )
    except OSError as error:
        return None, f"{os.fsdecode(command[0])}: {error.strerror or error}"
    except subprocess.TimeoutExpired:
        return None, f"no answer within {_SECONDS:g} s"
    answer = done.stdout.decode("utf-8", "surrogateescape").split(mark)
    if len(answer) != 3:
        return None, _last_words(done.stderr) or f"it said nothing and ended with {done.returncode}"
    return answer[1].split("\0"), ""


def _last_words(stderr: bytes) -> str:
    lines = stderr.decode("utf-8", "replace").strip().splitlines()
    return lines[-1][:500] if lines else ""
