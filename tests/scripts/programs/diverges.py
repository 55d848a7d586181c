import data
import tensorflow as tf

x, y = data.load()
model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
model.compile(optimizer=tf.keras.optimizers.SGD(1e30), loss="mse")
model.fit(x, y, epochs=3, verbose=2, callbacks=[tf.keras.callbacks.TerminateOnNaN()])
print("saved nothing")
