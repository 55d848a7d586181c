"""The beginner's notebook as a script: no strategy at all, cells from a converter."""
#!/usr/bin/env python
# coding: utf-8

# In[1]:
import tensorflow as tf
print("TensorFlow version:", tf.__version__)

# In[2]:
from data import load
x_train, y_train = load()
x_test, y_test = x_train[:64], y_train[:64]

# In[3]:
tf.keras.utils.set_random_seed(1)
model = tf.keras.models.Sequential([
  tf.keras.layers.Dense(16, activation='relu'),
  tf.keras.layers.Dense(2)
])

# In[4]:
loss_fn = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(optimizer=tf.keras.optimizers.SGD(0.1), loss=loss_fn, metrics=['accuracy'])
history = model.fit(x_train, y_train, epochs=2, shuffle=False)
model.evaluate(x_test, y_test, verbose=2)

# In[5]:
probability_model = tf.keras.Sequential([model, tf.keras.layers.Softmax()])
probability_model(x_test[:5])
print("final loss %.6f" % history.history["loss"][-1])
