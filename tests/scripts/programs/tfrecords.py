"""TFRecords in several files, tf.train.Example, list_files, interleave, parallel map, prefetch."""
import os
import tempfile

import tensorflow as tf

import data

AUTOTUNE = tf.data.AUTOTUNE
FEATURES = {"x": tf.io.FixedLenFeature([8], tf.float32), "y": tf.io.FixedLenFeature([], tf.int64)}


def write(folder, shards=4):
    x, y = data.load()
    for shard in range(shards):
        with tf.io.TFRecordWriter(os.path.join(folder, f"train-{shard:05}-of-{shards:05}.tfrecord")) as out:
            for a, b in zip(x[shard::shards], y[shard::shards]):
                feature = {
                    "x": tf.train.Feature(float_list=tf.train.FloatList(value=a)),
                    "y": tf.train.Feature(int64_list=tf.train.Int64List(value=[int(b)])),
                }
                out.write(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())


def parse(record):
    example = tf.io.parse_single_example(record, FEATURES)
    return example["x"], example["y"]


def read(folder, batch):
    files = tf.data.Dataset.list_files(os.path.join(folder, "*.tfrecord"), shuffle=False)
    records = files.interleave(tf.data.TFRecordDataset, cycle_length=2, num_parallel_calls=AUTOTUNE)
    return records.map(parse, num_parallel_calls=AUTOTUNE).shuffle(64, seed=4).repeat().batch(batch, drop_remainder=True).prefetch(AUTOTUNE)


if __name__ == "__main__":
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    folder = tempfile.mkdtemp()
    write(folder)
    tf.keras.utils.set_random_seed(1)
    with strategy.scope():
        model = tf.keras.Sequential([tf.keras.layers.Dense(16, activation="relu"), tf.keras.layers.Dense(2)])
        model.compile("adam", tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    history = model.fit(read(folder, 16 * strategy.num_replicas_in_sync), epochs=3, steps_per_epoch=8, verbose=0)
    print("final loss %.6f" % history.history["loss"][-1])
