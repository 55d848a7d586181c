"""From a script's header (PEP 723, `# /// script`) to an [env] table."""

import re
import shlex
import tomllib
from typing import Any

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from orchestrator.config import values
from orchestrator.config.mistakes import Wrong
from orchestrator.envs.lock import portable
from orchestrator.errors import UsageError
from orchestrator.model import Environment

START = re.compile(r"^# /// script$", re.MULTILINE)
_BLOCK = re.compile(r"(?m)^# /// script$\s(?P<content>(?:^#(?:| .*)$\s)+)^# ///$")  # defined by PEP 723
# Keys of uv's table that lead to other packages, and to other versions.
_SOURCES = ("sources", "index", "extra-index-url", "find-links")
_VERSIONS = (
    *("exclude-newer", "exclude-newer-package", "prerelease", "resolution"),
    *("constraint-dependencies", "override-dependencies", "exclude-dependencies"),
)
_SHAPE = 'lines such as `# dependencies = ["tensorflow"]`, and `# ///` after them'


def of_script(text: str, name: str, *, is_used: bool = True) -> Environment | None:
    """Return the table that the header of a script describes, None without one; raise UsageError.

    Settings that only uv follows are an error if its packages are used.
    """
    if not (starts := len(START.findall(text))):
        return None
    header = _BLOCK.search(text)
    if header is None or starts > 1:
        why = "it has no end" if starts == 1 else f"there are {starts} of them"
        raise UsageError(f"the header of {name} (# /// script) cannot be read", why=why, hint=_SHAPE)
    lines = header["content"].split("\n")
    try:
        table = tomllib.loads("\n".join(line[2:] for line in lines))
        return _environment(table, name, is_used)
    except (ValueError, TypeError, Wrong) as error:  # packaging's errors are ValueErrors
        what = f"the header of {name} (# /// script) cannot be read"
        raise UsageError(what, why=str(error), hint=_SHAPE) from error


def _environment(table: dict[str, Any], script: str, is_used: bool) -> Environment:
    packages, python = table.get("dependencies", []), table.get("requires-python")
    if not isinstance(packages, list) or not all(isinstance(requirement, str) for requirement in packages):
        raise TypeError("dependencies is not a list of texts")
    if not isinstance(python, str | None):
        raise TypeError("requires-python is not a text")
    for requirement in packages:
        Requirement(requirement)
    tool = table.get("tool", {})
    uv = tool.get("uv", {}) if isinstance(tool, dict) else {}
    if not isinstance(uv, dict):
        raise TypeError("tool.uv is not a table")
    if is_used and packages and (other := next((name for name in (*_SOURCES, *_VERSIONS) if name in uv), "")):
        export = f"run `uv export --script {shlex.quote(script)} -o requirements.txt`, and name that file as"
        raise UsageError(
            f"the hosts would get other packages than the header of {script} (# /// script) asks for",
            why=f"{other} of [tool.uv] is not used",
            hint=f"{export if other in _VERSIONS else 'write'} `requirements` under [env]",
        )
    index = uv.get("index-url")
    return Environment(
        packages=tuple(packages),
        python=None if python is None else portable(SpecifierSet(python)),
        index=None if index is None else values.url(index),
    )
