def build(tf, rate):
    tf.keras.utils.set_random_seed(1)
    model = tf.keras.Sequential([tf.keras.layers.Dense(16, activation="relu"), tf.keras.layers.Dense(2)])
    model.compile(tf.keras.optimizers.SGD(rate), tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model
