"""Many agents answer at once, each to a thread: their first answers must not crash the keeper."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

# Without `_prepare` of wire/request.py one process in four ended by SIGSEGV.
PROGRAM = """
import sys, threading
from orchestrator import wire
sys.setswitchinterval(1e-6)
state = {"state": "running", "pid": 1, "gaps": [{"bytes": 1}], "oom": {"kills": 1}}
task = {"attempt": "1", "task": "worker/0", "state": state, "alive": True}
run = {"run": "r", "plan": None, "keeper": {"who": "x"}, "stopped": False, "tasks": [task]}
news = {"stream": 1, "attempt": "1", "task": "worker/0", "state": state}
for kind, data in [
    (wire.Keeping, {"granted": True, "holder": {"who": "x", "alive": True}}),
    (wire.Runs, {"runs": [run]}),
    (wire.StateNews, news),
]:
    barrier = threading.Barrier(16)
    read = lambda: (barrier.wait(), wire.read(data, kind, "x"))
    threads = [threading.Thread(target=read) for _ in range(16)]
    [one.start() for one in threads]
    [one.join() for one in threads]
"""


def test_threads_that_meet_a_type_at_once() -> None:
    for _ in range(8):
        done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, check=False)
        assert (done.returncode, done.stderr) == (0, b"")
