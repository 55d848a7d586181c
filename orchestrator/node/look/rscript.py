"""Asks R, in the job's own environment, what it is and which reticulate it would use."""

from __future__ import annotations

from ..base.annotations import Any
from . import question

_QUESTION = """
mark <- commandArgs(TRUE)[1]
version <- function(name) tryCatch(as.character(packageVersion(name)), error = function(e) "-")
cat(mark, paste(getRversion(), version("reticulate"), version("jsonlite")), mark, sep = "")
"""


def ask(python: str, setup: str | None) -> dict[str, Any]:
    """{"version", "reticulate", "jsonlite", "error"}: without R only the last; a package may be missing."""
    fields, error = question.ask(lambda mark: ["Rscript", "-e", _QUESTION, mark], python, setup)
    if fields is None:
        return {"version": None, "reticulate": None, "jsonlite": None, "error": error}
    version, *packages = fields[0].split(" ")
    reticulate, jsonlite = (None if one == "-" else one for one in (*packages, "-", "-")[:2])
    return {"version": version, "reticulate": reticulate, "jsonlite": jsonlite, "error": ""}
