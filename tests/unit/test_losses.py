"""A good exit status with a bad loss is no plain success."""

from __future__ import annotations

import pytest

from orchestrator.events import TaskProgressed
from orchestrator.model import TaskId
from orchestrator.run import losses
from orchestrator.run.records import reported

LOGS = [
    (("Epoch 1/2", "8/8 - 0s - loss: 0.5 - val_loss: nan"), ""),
    (("8/8 - 0s - loss: nan - accuracy: 0.1",), "its last loss is nan"),
    (("step 3 loss: nan", "step 4 loss: 0.25"), ""),
    (("step 3, loss=0.2", "step 4, loss=inf"), "its last loss is inf"),
    (("{'loss': [nan, nan]}",), "its last loss is nan"),
    (("test loss nan", "weights digest 12"), "its last loss is nan"),
    (("Loss: -inf",), "its last loss is -inf"),
    (("loss tf.Tensor(nan, shape=(), dtype=float32)",), "its last loss is nan"),
    (
        ("Batch 7: Invalid loss, terminating training", "saved"),
        "TerminateOnNaN ended its training: the loss became NaN or infinite",
    ),
    (("lossless compression: information", "no loss here"), ""),
    ((), ""),
]


@pytest.mark.parametrize(("lines", "said"), LOGS)
def test_the_last_loss_of_a_log(lines: tuple[str, ...], said: str) -> None:
    assert losses.diverged(lines) == said


@pytest.mark.parametrize(
    ("loss", "number", "word"),
    [
        ("0.5", 0.5, ""),
        ('"nan"', None, "nan"),
        ('"-inf"', None, "-inf"),
        ('"x"', None, ""),
        ("[1]", None, ""),
    ],
)
def test_a_reported_loss(loss: str, number: float | None, word: str) -> None:
    line = f'{{"kind": "progress", "step": 3, "loss": {loss}, "steps_per_second": 1.0}}'.encode()
    event = reported(TaskId.parse("worker/0"), line)
    assert event == TaskProgressed("worker/0", 3, number, 1.0, word)
