"""Every synchronous strategy, in both loops, trains the model that one process trains.

Same global batch, seed, and data; the tolerance allows for sums in a different order.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.tf.gang import Gang, compare, once, words, worker_entry

TOLERANCE = 1e-5  # for weights near 0.1 that moved by up to 0.2; observed: 3e-6
SAME = words("--dataset digits --learning-rate 0.1 --epochs 2 --steps-per-epoch 5")

CASES: dict[str, tuple[dict[str, int], str]] = {
    "alone, fit": ({}, "--strategy one-device --batch-size 128"),
    "mirrored, fit": ({}, "--strategy mirrored --devices cpu:0,cpu:1 --batch-size 64"),
    "central storage, custom": (
        {},
        "--strategy central-storage --devices cpu:0,cpu:1 --batch-size 64 --loop custom",
    ),
    "2 workers, fit": ({"worker": 2}, "--batch-size 64"),
    "2 workers, custom": ({"worker": 2}, "--batch-size 64 --loop custom"),
}
REFERENCE = "alone, fit"


def trained(factory: pytest.TempPathFactory, case: str) -> tuple[list[dict[str, Any]], Path]:
    """Train a case, unless another worker has; return the tasks' results, and the folder of checkpoints."""
    with once(factory, f"equality {case}") as folder:
        kept, checkpoints = folder / "results.json", folder / "checkpoints"
        if not kept.exists():
            jobs, more = CASES[case]
            options = worker_entry(*SAME, *words(more), "--checkpoint-dir", str(checkpoints))
            with Gang(folder, options, jobs=jobs) as gang:
                kept.write_text(json.dumps(gang.finish()))
        return json.loads(kept.read_text()), checkpoints


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=() if case == "2 workers, fit" else pytest.mark.soak) for case in CASES]
)
def test_the_weights_equal_those_of_one_process(tmp_path_factory: pytest.TempPathFactory, case: str) -> None:
    ((reference, *_), expected), (results, checkpoints) = (
        trained(tmp_path_factory, name) for name in (REFERENCE, case)
    )
    jobs, _ = CASES[case]
    assert len(results) == max(1, sum(jobs.values()))
    assert len({result["digest"] for result in results}) == 1, "the tasks hold different weights"
    for result in results:
        assert result["steps"] == 10
        # The loss that a task prints is that of the whole cluster.
        assert result["test_accuracy"] == pytest.approx(reference["test_accuracy"], abs=1e-6)
    custom = "custom" in case
    if not custom:
        assert results[0]["loss"] == pytest.approx(reference["loss"], abs=1e-5)
    found = compare(expected, checkpoints)
    assert found["steps"] == [10, 10]
    assert found["variables"] >= 8
    assert found["apart"] < TOLERANCE
