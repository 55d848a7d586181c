"""Requirements written by other tools that no host can install: the reason, and the fix. Pure."""

from __future__ import annotations

import re
import shlex

from msgspec import Struct

from orchestrator.errors import UsageError
from orchestrator.text import count

_LIST = "`python -m pip list --format=freeze --exclude-editable > requirements.txt`"
_CONDA = (
    f"activate that environment, {_LIST}, and name this file; or remove [env], and set `python` of the hosts"
    " to that of their conda environment"
)


class _Kind(Struct, frozen=True):
    line: str  # a pattern whose group is the requirement
    why: str
    hint: str
    sure: bool = True  # False: only if the resolver complains about it


_KINDS = (
    _Kind(r"^(dependencies):[ \t]*$", "it is a conda environment, whose packages pip cannot install", _CONDA),
    _Kind(r"^([\w.-]+=[\w.!+]+=\w+)[ \t]*$", "`conda list --export` wrote it, for conda only", _CONDA),
    _Kind(
        r"^[ \t]*([\w.,\[\]-]+ *@ *file:\S*)",
        "`pip freeze` wrote where it was installed from, a path of one machine, in place of its version",
        f"{_LIST} in that environment writes versions",
    ),
    _Kind(
        r"^[ \t]*([\w.,\[\]-]+ *===? *[\w.!]+\+[\w.]+)",
        "the package index has no such build; PyTorch's own index does",
        "`sed -E -i 's/(==[^ +]+)\\+[A-Za-z0-9.]+/\\1/' {path}` leaves the builds of the package index, "
        "which have CUDA, too; or set `index` under [env] to an index that has all packages",
        sure=False,
    ),
    _Kind(
        r"^[ \t]*((?:-e|--editable)[ =]+(?!\w+\+)\S+)",
        "it is a folder of this machine, which the hosts do not have",
        "leave it out: the code that you launch is sent anyway (set PYTHONPATH in `env` under [job] to its "
        'folder, such as "src"); `requirements = "pyproject.toml"` installs what it depends on',
    ),
)


def explained(path: str | None, text: str, reason: str) -> UsageError | None:
    """Explain why requirements cannot be resolved or installed on hosts; None for other reasons."""
    for kind in _KINDS:
        matches = re.findall(kind.line, text, re.MULTILINE)
        if matches and (kind.sure or any(line.partition("+")[2] in reason for line in matches)):
            others = f" and {count(len(matches) - 1, 'more line')} of that kind" if matches[1:] else ""
            hint = kind.hint.format(path=shlex.quote(path or "hosts.toml"))
            return UsageError(f"{path or '[env]'} asks for {matches[0]!r}{others}", why=kind.why, hint=hint)
    return None
