import tensorflow as tf


def mlp(width):
    tf.keras.utils.set_random_seed(1)
    return tf.keras.Sequential([tf.keras.layers.Dense(width, activation="relu"), tf.keras.layers.Dense(2)])
