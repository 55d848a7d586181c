#!/usr/bin/env python3
"""A program with subcommands, a dataclass of settings, logging, a TERM handler and an exit status."""
from __future__ import annotations

import argparse
import contextlib
import dataclasses
import logging
import signal
import sys

log = logging.getLogger("engineered")


@dataclasses.dataclass
class Settings:
    epochs: int = 2
    batch: int = 32
    rate: float = 0.1


class Trainer:
    def __init__(self, settings: Settings) -> None:
        import tensorflow as tf

        self.tf, self.settings, self.stopping = tf, settings, False
        self.strategy = tf.distribute.MultiWorkerMirroredStrategy() if "TF_CONFIG" in __import__("os").environ else tf.distribute.get_strategy()

    def fit(self) -> float:
        import data

        tf = self.tf
        tf.keras.utils.set_random_seed(1)
        with contextlib.ExitStack() as stack:
            stack.enter_context(self.strategy.scope())
            model = tf.keras.Sequential([tf.keras.layers.Dense(16, activation="relu"), tf.keras.layers.Dense(2)])
            model.compile(tf.keras.optimizers.SGD(self.settings.rate), tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        x, y = data.load()
        loss = float("inf")
        for epoch in range(self.settings.epochs):
            if self.stopping:
                break
            loss = model.fit(x, y, batch_size=self.settings.batch, initial_epoch=epoch, epochs=epoch + 1, shuffle=False, verbose=0).history["loss"][-1]
            log.info("epoch %d done: %.4f", epoch, loss)
        return loss


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    train = commands.add_parser("train")
    for field in dataclasses.fields(Settings):
        train.add_argument(f"--{field.name}", type=type(field.default), default=field.default)
    args = vars(parser.parse_args(argv))
    args.pop("command")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    trainer = Trainer(Settings(**args))
    signal.signal(signal.SIGTERM, lambda *_: setattr(trainer, "stopping", True))
    loss = trainer.fit()
    print(f"final loss {loss:.6f}")
    return 0 if loss < 1 else 3


if __name__ == "__main__":
    sys.exit(main())
