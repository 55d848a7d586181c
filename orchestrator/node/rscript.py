"""Asks R, in the job's own environment, what it is and which reticulate it would use."""

from __future__ import annotations

from . import question

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Optional

_QUESTION = """
mark <- commandArgs(TRUE)[1]
found <- tryCatch(as.character(packageVersion("reticulate")), error = function(e) "")
cat(mark, paste(getRversion(), found), mark, sep = "")
"""


def ask(python: str, setup: Optional[str]) -> Dict[str, Any]:
    """{"version", "reticulate", "error"}: without R only the last, without reticulate only the first."""
    fields, error = question.ask(lambda mark: ["Rscript", "-e", _QUESTION, mark], python, setup)
    if fields is None:
        return {"version": None, "reticulate": None, "error": error}
    version, _, reticulate = fields[0].partition(" ")
    return {"version": version, "reticulate": reticulate or None, "error": ""}
