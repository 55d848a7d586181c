"""How long to train: epochs and steps from the options and the data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

TUTORIAL: Final = (3, 5)


@dataclass(frozen=True)
class Schedule:
    epochs: int
    steps_per_epoch: int
    why: str

    @property
    def steps(self) -> int:
        return self.epochs * self.steps_per_epoch

    def position(self, steps_done: int) -> tuple[int, int]:
        """Return the epoch, and the step in it, that follow so many steps."""
        return divmod(steps_done, self.steps_per_epoch)


def resolve(epochs: int | None, steps_per_epoch: int | None, examples: int, global_batch: int) -> Schedule:
    """Return epochs and steps: the tutorial's 3 x 5 by default; `epochs` alone means passes over all data."""
    if steps_per_epoch is not None:
        return Schedule(epochs or TUTORIAL[0], steps_per_epoch, "as asked")
    if epochs is None:
        return Schedule(*TUTORIAL, "the tutorial's length")
    steps = -(-examples // global_batch)  # as Keras counts: the last batch continues into the next pass
    return Schedule(epochs, steps, f"{steps} steps of {global_batch} are a pass over {examples} examples")
