import keras, numpy as np, tensorflow as tf
from keras import layers, ops
strategy = tf.distribute.MultiWorkerMirroredStrategy()
n = strategy.num_replicas_in_sync
x = np.random.RandomState(0).rand(256, 4).astype("f4"); y = (x.sum(1, keepdims=True))
ds = strategy.experimental_distribute_dataset(tf.data.Dataset.from_tensor_slices((x, y)).batch(32))
keras.utils.set_random_seed(3)
with strategy.scope():
    model = keras.Sequential([keras.Input((4,)), layers.Dense(8, activation="relu"), layers.Dense(1)])
    opt = keras.optimizers.SGD(0.05)
    opt.build(model.trainable_variables)
@tf.function
def step(it):
    def one(b):
        xx, yy = b
        with tf.GradientTape() as t:
            p = model(xx, training=True)
            l = tf.reduce_sum(tf.square(p - yy)) / 32.
        g = t.gradient(l, model.trainable_variables)
        opt.apply_gradients(zip(g, model.trainable_variables))
        return l
    per = strategy.run(one, args=(next(it),))
    return strategy.reduce("SUM", per, axis=None)
for e in range(3):
    it = iter(ds)
    for _ in range(8): l = step(it)
    print("epoch", e, "loss", float(l))
print("final loss", float(l))
