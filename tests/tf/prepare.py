"""Run by the training Python: writes scikit-learn's digits in the forms that the tests read.

`one/` and `four/` hold that many TFRecord files of training data and one of test data (PNG and JPEG), and
`mnist/` is a prepared set of tensorflow-datasets by that name.
"""

import sys
from pathlib import Path
from typing import Any

import tensorflow as tf
import tensorflow_datasets as tfds

from worker_entry.data.arrays import load_digits

OUT = Path(sys.argv[1])
TRAIN = 1437
tfds.core.utils.gcs_utils._is_gcs_disabled = True

images, labels = load_digits()
# 28 x 28: each pixel four times, without the outer two.
images = (images.reshape(-1, 8, 8, 1) * 15.9).astype("uint8").repeat(4, 1).repeat(4, 2)[:, 2:30, 2:30]


def write(path: Path, rows: range, encode: Any) -> None:
    with tf.io.TFRecordWriter(str(path)) as writer:
        for row in rows:
            features = {
                "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[encode(images[row]).numpy()])),
                "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[labels[row]])),
            }
            writer.write(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())


for name, count, encode in (("one", 1, tf.io.encode_png), ("four", 4, tf.io.encode_jpeg)):
    (OUT / name).mkdir(parents=True)
    for number in range(count):
        write(OUT / name / f"train.tfrecord-{number}", range(number, TRAIN, count), encode)
    write(OUT / name / "test.tfrecord", range(TRAIN, len(labels)), encode)


def part(rows: slice) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices({"image": images[rows], "label": labels[rows]})


tfds.dataset_builders.store_as_tfds_dataset(
    name="mnist",
    version="3.0.1",
    features=tfds.features.FeaturesDict(
        {"image": tfds.features.Image(shape=(28, 28, 1)), "label": tfds.features.ClassLabel(num_classes=10)}
    ),
    split_datasets={"train": part(slice(None, TRAIN)), "test": part(slice(TRAIN, None))},
    data_dir=str(OUT),
)
