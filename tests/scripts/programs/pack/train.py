"""A package with its settings beside it, started by python -m."""
import json
from pathlib import Path

import tensorflow as tf

from .model import build
import data

settings = json.loads((Path(__file__).parent / "conf" / "train.json").read_text())
strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    model = build(settings["lr"])
x, y = data.load()
history = model.fit(x, y, batch_size=32, epochs=settings["epochs"], shuffle=False, verbose=0)
print("final loss %.6f" % history.history["loss"][-1])
