import tensorflow as tf, numpy as np
class Seq(tf.keras.utils.Sequence):
    def __len__(self): return 8
    def __getitem__(self, i):
        r = np.random.RandomState(i); x = r.rand(16, 3).astype("f4"); return x, x.sum(1)
tf.keras.utils.set_random_seed(1)
s = tf.distribute.MultiWorkerMirroredStrategy()
with s.scope():
    m = tf.keras.Sequential([tf.keras.layers.Dense(1)]); m.compile("sgd", "mse")
h = m.fit(Seq(), epochs=2, verbose=2)
print("final loss", h.history["loss"][-1])
