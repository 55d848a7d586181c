"""What is said of TensorFlow's settings, and of which programs."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.cli.main import main

FILES = {
    "hosts.toml": '[[host]]\nname = "a"\n[[host]]\nname = "b"\n',
    "train.py": "import tensorflow as tf\n",
    "deep.py": "from lib import model\n",
    "lib.py": "from keras import layers\n",
    "look.py": "import os\nprint(os.uname())\n",
    "train.R": "library(tensorflow)\n",
    "look.R": "print(1)\n",
    "run.sh": 'exec "$PYTHON" train.py\n',
    "any.sh": 'exec python "$@"\n',
    "look.sh": "#!/bin/sh\nexec df -h\n",
    "tool": "#!/usr/bin/env python3\nprint(1)\n",
}


@pytest.mark.parametrize(
    ("command", "noted"),
    [
        (["--epochs", "1"], True),
        (["train.py"], True),
        (["deep.py"], True),
        (["bash", "-c", "exec python -m installed.train"], False),
        (["python", "-c", "import tensorflow"], True),
        (["nice", "bash", "run.sh"], True),
        (["bash", "any.sh", "x.py"], False),
        (["./tool"], False),
        (["make", "train"], False),
        (["train.R"], True),
        (["hostname"], False),
        (["nice", "-n", "5", "nvidia-smi", "-L"], False),
        (["bash", "-c", "hostname; df -h"], False),
        (["bash", "look.sh"], False),
        (["look.py"], False),
        (["python3", "-u", "look.py"], False),
        (["python", "-c", "print(1)"], False),
        (["look.R"], False),
    ],
)
def test_what_was_set_is_said_where_tensorflow_may_be(
    command: list[str],
    noted: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "tool").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    assert main(["launch", "--dry-run", "--", *command]) == 0
    plan = capsys.readouterr().out
    assert "  TF_USE_LEGACY_KERAS=1" in plan or "  ORCHESTRATE_KERAS=" in plan
    assert ("note: set " in plan) is noted
