"""R and its bridge to Python: reticulate, and the numpy it can talk to."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.checks.seen import Seen, release
from orchestrator.events import Check, CheckReported, Level
from orchestrator.wire.facts import R

NUMPY_2 = (1, 38)  # the reticulate from which on it knows numpy 2
_DEBIAN = "`apt install r-base-core r-cran-reticulate r-cran-jsonlite` there as root"


def of_r(seen: Seen) -> Iterator[CheckReported]:
    r = seen.facts.r
    if r is None:
        return  # nobody asked for it
    if r.version is None:
        yield seen.says(Check.R, Level.FAIL, "Rscript does not run", r.error, _DEBIAN)
    elif r.reticulate is None:
        why = "R reaches TensorFlow through reticulate"
        hint = f"{_DEBIAN}; or `Rscript -e 'install.packages(\"reticulate\")'`"
        yield seen.says(Check.R, Level.FAIL, f"{r.version} without reticulate", why, hint)
    else:
        yield _found(seen, r)
        yield from _numpy(seen, r.reticulate)


def _found(seen: Seen, r: R) -> CheckReported:
    """A script need not read TF_CONFIG, nor with jsonlite: without it the host is as ready."""
    found = f"{r.version}, reticulate {r.reticulate}"
    if r.jsonlite is not None:
        return seen.says(Check.R, Level.OK, f"{found}, jsonlite {r.jsonlite}")
    why = "most R scripts read TF_CONFIG with jsonlite"
    return seen.says(Check.R, Level.WARN, f"{found}, without jsonlite", why, _DEBIAN)


def _numpy(seen: Seen, reticulate: str) -> Iterator[CheckReported]:
    """A script that keeps its arrays in Python works nevertheless, so this is not a failure."""
    numpy = seen.version("numpy")
    if numpy is None:
        return
    if release(numpy) < (2, 0) or release(reticulate) >= NUMPY_2:
        yield seen.says(Check.NUMPY, Level.OK, numpy)
        return
    python = seen.facts.python.path
    yield seen.says(
        Check.NUMPY,
        Level.WARN,
        f"{numpy} beside reticulate {reticulate}",
        f"before 1.38 reticulate cannot convert arrays of numpy 2, the one of {python}, to R or from it",
        "make an environment with 'numpy<2' for R hosts (docs/r.md), and set it as their `python` in"
        " hosts.toml",
    )
