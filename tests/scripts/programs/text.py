"""Words: TextVectorization, an Embedding, an LSTM, padded batches; class weights."""
import tensorflow as tf

GOOD, BAD = "good great fine nice lovely".split(), "bad awful poor sad ugly".split()
texts = [f"a {GOOD[i % 5]} film {i % 7}" if i % 2 else f"the {BAD[i % 5]} film {i % 7}" for i in range(128)]
labels = [i % 2 for i in range(128)]
tf.keras.utils.set_random_seed(2)
strategy = tf.distribute.MultiWorkerMirroredStrategy()
vectorize = tf.keras.layers.TextVectorization(max_tokens=64, output_sequence_length=6)
vectorize.adapt(texts)
dataset = tf.data.Dataset.from_tensor_slices((texts, labels)).map(lambda text, label: (vectorize(text), label))
dataset = dataset.shuffle(128, seed=1).repeat().padded_batch(16, drop_remainder=True)
with strategy.scope():
    model = tf.keras.Sequential([
        tf.keras.layers.Embedding(64, 8, mask_zero=True),
        tf.keras.layers.LSTM(8),
        tf.keras.layers.Dense(1, activation="sigmoid"),
    ])
    model.compile(tf.keras.optimizers.Adam(0.05), loss=tf.keras.losses.BinaryCrossentropy(), metrics=["accuracy"])
history = model.fit(dataset, epochs=2, steps_per_epoch=8, class_weight={0: 1.0, 1: 1.0}, verbose=2)
print("final loss %.6f" % history.history["loss"][-1])
