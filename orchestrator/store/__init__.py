"""Run folders on the controller: the folder is the protocol between keeper and viewers."""

from orchestrator.store.folder import RunFolder, find, new_run_id, runs, runs_root
from orchestrator.store.reader import RunReader

__all__ = ["RunFolder", "RunReader", "find", "new_run_id", "runs", "runs_root"]
