"""Settings composed of a folder, overridden as key=value; a folder of its own for what it writes, made the current one."""
import json
import os
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT.parent))

import tensorflow as tf

import data


def compose(words):
    chosen = dict(word.split("=", 1) for word in words)
    config = json.loads((ROOT / "conf" / "config.json").read_text())
    for part in config.pop("defaults"):
        group, name = part.split("/")
        config[group] = json.loads((ROOT / "conf" / group / (chosen.pop(group, name) + ".json")).read_text())
    for key, value in chosen.items():
        place = config
        *path, last = key.split(".")
        for word in path:
            place = place[word]
        place[last] = json.loads(value)
    return config


config = compose(sys.argv[1:])
strategy = tf.distribute.MultiWorkerMirroredStrategy()
out = pathlib.Path(config["out"]) / f"task-{strategy.cluster_resolver.task_id}"
out.mkdir(parents=True, exist_ok=True)
os.chdir(out)
pathlib.Path("config.json").write_text(json.dumps(config, indent=2))
tf.keras.utils.set_random_seed(1)
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(config["model"]["width"], activation="relu"), tf.keras.layers.Dense(2)])
    model.compile(tf.keras.optimizers.SGD(config["model"]["lr"]), tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
x, y = data.load(config["data"]["rows"])
history = model.fit(x, y, batch_size=config["data"]["batch"], epochs=config["epochs"], shuffle=False, verbose=2)
pathlib.Path("history.json").write_text(json.dumps(history.history))
print("final loss %.6f" % history.history["loss"][-1])
