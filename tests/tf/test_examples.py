"""The examples run as they are, knowing nothing of us; and they stay short."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.tf.gang import ROOT, Gang

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
# What `orchestrate` sets for a script that is brought to it.
GIVEN = {"TF_USE_LEGACY_KERAS": "1", "grpc_proxy": ""}


@pytest.mark.parametrize("example", EXAMPLES, ids=[path.name for path in EXAMPLES])
def test_an_example_is_under_60_lines(example: Path) -> None:
    assert len(example.read_text().splitlines()) < 60
    assert "orchestrator" not in example.read_text().split('"""')[2]


def accuracies(text: str) -> list[str]:
    return re.findall(r"accuracy:? (0\.\d{4})$", text, re.MULTILINE)


@pytest.mark.parametrize("name", ["fit.py", "custom_loop.py"])
def test_on_two_tasks_both_see_the_same(tmp_path: Path, name: str) -> None:
    with Gang(tmp_path, [f"examples/{name}"], jobs={"worker": 2}, env=GIVEN) as gang:
        assert set(gang.wait().values()) == {0}, gang.tails()
        one, other = (accuracies(task.text) for task in gang.tasks.values())
        assert one == other
        assert float(one[-1]) > 0.7


def test_mirrored_on_one_machine(tmp_path: Path) -> None:
    with Gang(tmp_path, ["examples/mirrored.py"], env=GIVEN) as gang:
        assert gang.wait() == {"alone": 0}, gang.tails()
        assert "2 devices" in gang["alone"].text
        assert float(accuracies(gang["alone"].text)[-1]) > 0.7


def test_parameter_servers_serve_until_they_are_stopped(tmp_path: Path) -> None:
    jobs = {"chief": 1, "worker": 1, "ps": 1}
    with Gang(tmp_path, ["examples/parameter_server.py"], jobs=jobs, env=GIVEN) as gang:
        assert gang.wait("chief/0") == {"chief/0": 0}, gang.tails()
        assert float(accuracies(gang["chief/0"].text)[-1]) > 0.7
        assert [gang[name].process.poll() for name in ("worker/0", "ps/0")] == [None, None]
