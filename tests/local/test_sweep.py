"""examples/sweep.py with a few of its rates: trials on four hosts, then one table and one page."""

import re
import sys
from pathlib import Path

import pytest

import orchestrator
from tests.local.here import inventory
from tests.processes import called

ROOT = Path(__file__).parents[2]
TRAIN = """
import os, sys
rate = float(sys.argv[1].partition("=")[2])
assert rate < 0.2, "it diverges"
for step in range(3):
    print("step", step, "loss:", (rate - 0.01) ** 2 / (step + 1))
"""


@pytest.mark.timeout(300)
def test_a_sweep_on_four_hosts_produces_one_table_and_one_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(TRAIN)
    with inventory(tmp_path, "a", "b", "c", "d", apart=True) as hosts:
        Path("hosts.toml").write_text(
            '[job]\nframework = "none"\nignore = ["*/work/", "*/node/", "state/"]\n' + hosts
        )
        program = (ROOT / "examples" / "sweep.py").read_text()
        assert "range(20)" in program
        Path("sweep.py").write_text(program.replace("range(20)", "range(3, 20, 4)"))
        words = ["a", "b", "c,d", "--", "train.py", "--learning-rate"]
        done = called([sys.executable, "sweep.py", *words])
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    head, *rows, page = done.stdout.splitlines()
    assert head.split() == ["rate", "loss", "hosts", "outcome"]
    assert len(rows) == 5
    cells = [row.split() for row in rows]
    assert [cell[3] for cell in cells] == ["succeeded"] * 4 + ["failed"]
    assert cells[0][:2] == ["0.00865", "6.075e-07"]
    assert {cell[2] for cell in cells} <= {"a", "b", "c,d"}
    text = Path(page).read_text()
    assert set(re.findall(r"rate 0\.\d+", text)) == {f"rate {cell[0]}" for cell in cells}
    assert orchestrator.open(f"rate {cells[0][0]}").metrics()["loss"] == pytest.approx(6.075e-07)
