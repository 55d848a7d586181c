"""Ctrl-C while a verb is being imported: no traceback, and the exit status of an interrupt."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import called

VERBS = (["--help"], ["status"], ["exec", "--", "true"], ["launch", "--", "true"], ["stop"], ["preflight"])
# Acts as the user: sends SIGINT as the import of one module starts. Without a name, lists all modules.
_PRESS = """
import os, signal, sys

class Press:
    def find_spec(self, name, path=None, target=None):
        if name == os.environ["PRESS_AT"]:
            os.kill(os.getpid(), signal.SIGINT)
        if os.environ["PRESS_AT"] == "" and name.startswith("orchestrator."):
            os.write(2, b"IMPORT " + name.encode() + b"\\n")

sys.meta_path.insert(0, Press())
"""


def run(folder: Path, words: list[str], at: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(folder), "PRESS_AT": at}
    return called(
        [sys.executable, "-m", "orchestrator", *words],
        cwd=folder,
        env=environment,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


@pytest.mark.parametrize("words", VERBS, ids=lambda words: words[0])
def test_an_interrupt_during_any_import_prints_no_traceback(tmp_path: Path, words: list[str]) -> None:
    (tmp_path / "sitecustomize.py").write_text(_PRESS)
    errors = run(tmp_path, words, "").stderr.splitlines()
    names = [line.split()[1] for line in errors if line.startswith("IMPORT ")]
    names = names[names.index("orchestrator.cli") :]  # before that, Python itself is starting
    for name in names[:: max(1, len(names) // 6)]:
        done = run(tmp_path, words, name)
        assert done.returncode in (130, -signal.SIGINT), (name, done)
        assert "Traceback" not in done.stderr, (name, done.stderr)
