"""Notes about Keras are for programs that name TensorFlow or Keras."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.cli.main import main

FILES = {
    "hosts.toml": '[[host]]\nname = "a"\n[[host]]\nname = "b"\n',
    "train.py": "from tensorflow import keras\n",
    "look.py": "import os\nprint(os.uname())\n",
    "train.R": "library(tensorflow)\n",
    "run.sh": 'exec "$PYTHON" train.py\n',
    "look.sh": "#!/bin/sh\nexec df -h\n",
}


@pytest.mark.parametrize(
    ("command", "noted"),
    [
        (["--epochs", "1"], True),
        (["train.py"], True),
        (["nice", "bash", "run.sh"], True),
        (["train.R"], True),
        (["python", "-c", "import tensorflow.keras"], True),
        (["hostname"], False),
        (["look.py"], False),
        (["bash", "look.sh"], False),
        (["python", "-m", "pytest"], False),
        (["make", "data"], False),
    ],
)
def test_keras_is_noted_where_a_program_names_it(
    command: list[str],
    noted: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    assert main(["launch", "--dry-run", "--", *command]) == 0
    assert ("Keras" in capsys.readouterr().out) is noted
