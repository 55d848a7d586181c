"""Paths among a command's arguments that this machine has: what is not sent, and what hosts may lack. Pure.

Said is what a program surely would not find. Whether it only writes there is not known, so names of outputs
are left out.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from orchestrator.program.project import Code

# What an output is called: the program may only write there.
WRITTEN = re.compile(
    r"out|log|runs?$|ckpt|check|save|result|export|model|cache|te?mp|board|profil|dest|write", re.IGNORECASE
)
_ASSIGNED = re.compile(r"\+{0,2}([\w.@-]+)=(.+)", re.DOTALL)  # `data.dir=/data`, as hydra has it
_EVERYWHERE = ("/dev", "/proc", "/sys")
MOST = 20


def own(command: tuple[str, ...], code: Code) -> tuple[str, ...]:
    """Absolute paths that are there on this machine; only the hosts know whether they have them.

    `~/data`, too, as it comes from quotes or from behind a `=`: no shell has read it, the program may.
    """
    found = (
        value
        for _, value in _values(command)
        if value.startswith(("/", "~/")) and not value.startswith(_EVERYWHERE) and code.exists(value)
    )
    return tuple(dict.fromkeys(value for value in found if not code.everywhere(value)))[:MOST]


def unsent(command: tuple[str, ...], code: Code) -> tuple[str, ...]:
    """Relative paths that are there, in a folder that is sent without them."""
    found = []
    for option, value in _values(command[1:]):
        path = PurePosixPath(value).as_posix()
        if value.startswith(("/", "~", "-")) or path.startswith("../") or path in {".", ".."}:
            continue
        if not option.startswith("-") and "/" not in value:  # may be any word
            continue
        # A link goes along as one: what it leads to has to be sent, too.
        there = posixpath.relpath(code.real(posixpath.join(code.root, path)), code.root)
        sent = there in code.sent or any(one.startswith(f"{there}/") for one in code.sent)
        if not sent and code.exists(value):
            found.append(value)
    return tuple(dict.fromkeys(found))[:MOST]


def _values(command: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """(the option before it or "", the word) of each word that may name something to be read."""
    option = ""
    for word in command:
        if word.startswith("-"):
            option, equals, value = word.partition("=")
            if not equals:
                continue
        elif (assigned := _ASSIGNED.match(word)) is not None:
            option, value = assigned.groups()
        else:
            value = word
        name = PurePosixPath(value).name
        if value and not WRITTEN.search(option) and not WRITTEN.match(name):
            yield option, value
        option = ""
