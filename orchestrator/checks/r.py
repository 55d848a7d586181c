"""R and its bridge to Python: reticulate, and the numpy it can talk to."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.checks.seen import Seen, release
from orchestrator.events import CheckReported, Level

NUMPY_2 = (1, 38)  # the reticulate from which on it knows numpy 2
_DEBIAN = "apt install r-base-core r-cran-reticulate r-cran-jsonlite"


def of_r(seen: Seen) -> Iterator[CheckReported]:
    r = seen.facts["r"]
    if r["version"] is None:
        yield seen.says("r", Level.FAIL, "Rscript does not run", str(r["error"]), _DEBIAN)
    elif r["reticulate"] is None:
        why = "it is what R reaches TensorFlow through"
        hint = f"{_DEBIAN}; or install.packages('reticulate')"
        yield seen.says("r", Level.FAIL, f"{r['version']} without reticulate", why, hint)
    else:
        yield seen.says("r", Level.OK, f"{r['version']}, reticulate {r['reticulate']}")
        yield from _numpy(seen, str(r["reticulate"]))


def _numpy(seen: Seen, reticulate: str) -> Iterator[CheckReported]:
    """A script that keeps its arrays in Python works nevertheless, so this is no failure."""
    numpy = seen.version("numpy")
    if numpy is None:
        return
    if release(numpy) < (2, 0) or release(reticulate) >= NUMPY_2:
        yield seen.says("numpy", Level.OK, numpy)
        return
    python = seen.facts["python"]["path"]
    yield seen.says(
        "numpy",
        Level.WARN,
        f"{numpy} beside reticulate {reticulate}",
        f"before 1.38 reticulate cannot convert arrays of numpy 2, the one of {python}, to R or from it",
        "an environment with 'numpy<2' for R hosts (docs/r.md), as their `python` in hosts.toml",
    )
