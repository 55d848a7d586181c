"""What the built package says of itself and depends on where the project lives: README's links, and URLs.

README's links are relative, for whoever reads a clone. A package index shows the README without the files
around it, so they are made absolute when the package is built: with ORCHESTRATE_REPOSITORY, else with the
address that git calls `origin`. Where neither is an https address, links become plain text: a link that leads
nowhere is worse than none. A wheel that is built from an sdist takes over what the sdist says.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
_ELSEWHERE = ("https://", "http://", "mailto:", "#")
_NO_LINKS = "The pages that are named here come with the source distribution.\n"


class CustomMetadataHook(MetadataHookInterface):
    """Fills in the fields that pyproject.toml calls dynamic."""

    def update(self, metadata: dict[str, Any]) -> None:
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        repository = repository_of(Path(self.root))
        metadata["readme"] = {"content-type": "text/markdown", "text": readme(text, repository)}
        metadata["urls"] = urls(repository)


def repository_of(root: Path) -> str:
    """The https address of the project, without a slash at its end; "" when it is not known."""
    named = os.environ.get("ORCHESTRATE_REPOSITORY")
    if named is None:
        if not (root / ".git").exists():  # of a clone around an unpacked sdist nothing is to be learned
            return ""
        command = ["git", "-C", str(root), "remote", "get-url", "origin"]
        try:
            named = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
        except OSError:
            return ""
    named = re.sub(r"^git@([^:/]+):", r"https://\1/", named)
    found = re.fullmatch(r"(https://[A-Za-z0-9.-]+/[\w./-]+?)(?:\.git)?/?", named)
    return found[1] if found else ""


def readme(text: str, repository: str) -> str:
    """README as a package index can show it."""
    if not repository:
        head, _, rest = text.partition("\n\n")
        text = f"{head}\n\n{_NO_LINKS}\n{rest}"

    def absolute(link: re.Match[str]) -> str:
        picture, words, target = link.groups()
        if target.startswith(_ELSEWHERE):
            return link[0]
        if not repository:
            return "" if picture else words
        kind = "raw" if picture else "tree" if target.endswith("/") else "blob"
        return f"{picture}[{words}]({repository}/{kind}/HEAD/{target})"

    return _LINK.sub(absolute, text)


def urls(repository: str) -> dict[str, str]:
    """Where to find what, by the names that package indexes know."""
    if not repository:
        return {}
    return {
        "Source": repository,
        "Documentation": f"{repository}/blob/HEAD/README.md",
        "Changelog": f"{repository}/blob/HEAD/CHANGELOG.md",
        "Issues": f"{repository}/issues",
    }
