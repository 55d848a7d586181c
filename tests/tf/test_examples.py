"""The examples run unchanged, do not refer to us, and stay short."""

import re
from pathlib import Path

import pytest

from tests.ssh.runs.desk import Desk
from tests.tf.gang import PATIENCE, ROOT, Gang

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))  # tests/frameworks runs those of PyTorch and JAX
# Variables that `orchestrate` sets for a user's script.
GIVEN = {"TF_USE_LEGACY_KERAS": "1", "grpc_proxy": ""}


@pytest.mark.parametrize("example", EXAMPLES, ids=[path.name for path in EXAMPLES])
def test_an_example_is_short(example: Path) -> None:
    assert len(example.read_text().splitlines()) < 70
    assert ("orchestrator" in example.read_text().split('"""')[2]) == (example.name == "sweep.py")


def accuracies(text: str) -> list[str]:
    return re.findall(r"accuracy:? (0\.\d{4})$", text, re.MULTILINE)


@pytest.mark.soak
def test_the_custom_loop_runs_unchanged_under_launch(desk: Desk) -> None:
    desk.launch("--", desk.example("custom_loop.py")).ended(limit=PATIENCE)
    logs = (desk.run_folder() / "logs" / "1").glob("*.log")
    one, other = (accuracies(log.read_text()) for log in logs)
    assert one == other
    assert float(one[-1]) > 0.7


@pytest.mark.soak
def test_the_mirrored_example_on_one_machine(tmp_path: Path) -> None:
    with Gang(tmp_path, ["examples/mirrored.py"], env=GIVEN) as gang:
        assert gang.wait() == {"alone": 0}, gang.tails()
        assert "2 devices" in gang["alone"].text
        assert float(accuracies(gang["alone"].text)[-1]) > 0.7


@pytest.mark.soak
def test_parameter_servers_run_unchanged_under_launch(three: Desk) -> None:
    """Workers and ps never end by themselves; once the chief is done, stopping them is a success."""
    three.give_roles("chief", "worker", "ps")
    three.launch("--", three.example("parameter_server.py")).ended(limit=PATIENCE)
    (chief,) = (three.run_folder() / "logs" / "1").glob("chief-0.log")
    assert float(accuracies(chief.read_text())[-1]) > 0.7
    stopped = {event["task"]: event["stopped"] for event in three.named("TaskExited")}
    assert stopped == {"chief/0": False, "worker/0": True, "ps/0": True}
    three.nothing_is_left(three.run_id())
