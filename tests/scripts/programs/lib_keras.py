import data
import tensorflow as tf
from lib.model import build

strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    model = build()
x, y = data.load()
history = model.fit(x, y, batch_size=32, epochs=2, shuffle=False, verbose=2)
print("final loss %.6f" % history.history["loss"][-1])
