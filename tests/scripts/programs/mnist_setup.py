import numpy as np
import tensorflow as tf


def mnist_dataset(batch_size):
  rng = np.random.default_rng(3)
  x_train = rng.integers(0, 255, (256, 12, 12), dtype=np.uint8)
  y_train = (x_train.mean(axis=(1, 2)) > 127).astype(np.int64)
  x_train = x_train / np.float32(255)
  train_dataset = tf.data.Dataset.from_tensor_slices(
      (x_train, y_train)).shuffle(60000, seed=1).repeat().batch(batch_size)
  return train_dataset


def build_and_compile_cnn_model():
  tf.keras.utils.set_random_seed(1)
  model = tf.keras.Sequential([
      tf.keras.layers.InputLayer(input_shape=(12, 12)),
      tf.keras.layers.Reshape(target_shape=(12, 12, 1)),
      tf.keras.layers.Conv2D(4, 3, activation='relu'),
      tf.keras.layers.Flatten(),
      tf.keras.layers.Dense(10)
  ])
  model.compile(
      loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
      optimizer=tf.keras.optimizers.SGD(learning_rate=0.05),
      metrics=['accuracy'])
  return model
