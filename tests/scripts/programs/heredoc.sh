#!/usr/bin/env bash
# settings in the environment, the program on Python's stdin
set -euo pipefail
export TF_CPP_MIN_LOG_LEVEL=2 LR=0.1
cd "$(dirname "$0")"
python - "$@" <<'PY'
import os, sys
import tensorflow as tf
sys.path.insert(0, os.getcwd())
import data
strategy = tf.distribute.MultiWorkerMirroredStrategy()
tf.keras.utils.set_random_seed(1)
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(16, activation="relu"), tf.keras.layers.Dense(2)])
    model.compile(tf.keras.optimizers.SGD(float(os.environ["LR"])), tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
x, y = data.load()
print("final loss %.6f" % model.fit(x, y, batch_size=32, epochs=int(sys.argv[1]), shuffle=False, verbose=0).history["loss"][-1])
PY
echo "that was all"
