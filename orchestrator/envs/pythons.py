"""Standalone builds of Python for hosts without a suitable interpreter; uv downloads them once."""

from __future__ import annotations

import json
import re
from pathlib import Path

from orchestrator.envs import uv
from orchestrator.envs.platforms import Platform
from orchestrator.errors import ClusterError
from orchestrator.plainfile import cache, make_folder

_RELEASE = re.compile(r"3\.(\d+)\.\d+")


def available(platform: Platform) -> frozenset[int]:
    """Return the minor versions of Python 3 that uv can download for a platform."""
    arguments = ["python", "list", "--only-downloads", "--all-platforms", "--all-arches"]
    arguments += ["--output-format", "json"]
    listing = json.loads(uv.run("list the Pythons that uv can download", arguments))
    releases = (
        _RELEASE.fullmatch(build["version"]) for build in listing if build["key"].endswith(_suffix(platform))
    )
    return frozenset(int(release[1]) for release in releases if release)


def standalone(platform: Platform) -> Path:
    """Return the folder of a Python of the platform's minor version; raise ClusterError if there is none.

    UV_PYTHON_INSTALL_MIRROR names a mirror, as for uv itself.
    """
    folder = cache("pythons")
    make_folder(folder)
    key = f"cpython-{platform.minor}{_suffix(platform)}"
    arguments = ["python", "install", "--no-bin", "--install-dir", str(folder), key]
    try:
        uv.run(f"download Python {platform.minor}", arguments, UV_PYTHON_DOWNLOADS="manual")
    except ClusterError as error:
        hint = f"install Python {platform.minor} there, or name a mirror in UV_PYTHON_INSTALL_MIRROR here"
        raise ClusterError(error.what, why=error.why, hint=hint) from error
    # uv names the folder after the patch version, of which there may be several.
    made = folder.glob(f"cpython-{platform.minor}.*{_suffix(platform)}")
    return max(made, key=lambda python: [int(part) for part in re.findall(r"\d+", python.name.split("-")[1])])


def _suffix(platform: Platform) -> str:
    return f"-linux-{platform.machine}-{'musl' if platform.is_musl else 'gnu'}"
