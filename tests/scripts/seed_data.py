"""Create small data sets that replace the tutorials' downloads; run by the training Python with a folder.

`tfds/mnist` and the smaller `few/mnist` are as tensorflow-datasets prepares it, in one file;
`keras/datasets/fashion-mnist` is as Keras does.
"""

import gzip
import sys
from pathlib import Path

import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds

OUT = Path(sys.argv[1])
MANY, FEW = 4000, 256  # of training
FILES = {"train": "train", "test": "t10k"}


def part(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Create images that show their label as the row of a bright line."""
    labels = (np.arange(count) * 7 % 10).astype("uint8")
    images = np.zeros((count, 28, 28, 1), "uint8")
    images[np.arange(count), labels * 2 + 4] = 255
    return images, labels


def prepare(folder: Path, count: int) -> None:
    tfds.dataset_builders.store_as_tfds_dataset(
        name="mnist",
        version="3.0.1",
        features=tfds.features.FeaturesDict(
            {
                "image": tfds.features.Image(shape=(28, 28, 1)),
                "label": tfds.features.ClassLabel(num_classes=10),
            }
        ),
        split_datasets={
            name: tf.data.Dataset.from_tensor_slices({"image": images, "label": labels.astype("int64")})
            for name, (images, labels) in (("train", part(count)), ("test", part(64)))
        },
        data_dir=str(folder),
    )


tfds.core.utils.gcs_utils._is_gcs_disabled = True
prepare(OUT / "tfds", MANY)
prepare(OUT / "few", FEW)
fashion = OUT / "keras" / "datasets" / "fashion-mnist"
fashion.mkdir(parents=True)
for name, (images, labels) in (("train", part(FEW)), ("test", part(64))):
    (fashion / f"{FILES[name]}-images-idx3-ubyte.gz").write_bytes(gzip.compress(bytes(16) + images.tobytes()))
    (fashion / f"{FILES[name]}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(bytes(8) + labels.tobytes()))
