"""Run folders on the controller: the folder is the protocol between keeper and viewers."""

from orchestrator.store.folder import RunFolder
from orchestrator.store.known import find, new_run_id, next_run_id, runs, runs_root
from orchestrator.store.reader import RunReader
