"""TFRecord files of one's own: `image` (PNG or JPEG bytes) and `label` (a whole number) in each example.

These are also the files tensorflow-datasets prepares, so a folder of those works without that package.
Files named *test* or *validation* are the test data. All are read once at the start, without TensorFlow's
runtime (nothing of it may come before the strategy), to count them and to find the number of classes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf

from worker_entry.data.source import Source
from worker_entry.failure import ExpectedError


@dataclass(frozen=True)
class Content:
    examples: int
    top_label: int
    shape: tuple[int, int, int]


def load(path: Path) -> Source:
    files = _files(path)
    test = [file for file in files if "test" in file.name or "validation" in file.name]
    train = [file for file in files if file not in test]
    if not train:
        raise ExpectedError(
            f"{path} holds test files only", why="no file is without test or validation in its name"
        )
    content = _content(train)
    tested = _content(test) if test else content
    if tested.shape != content.shape:
        raise ExpectedError(f"in {path}, training images are {content.shape} and test images {tested.shape}")

    def part(names: Sequence[Path]) -> Any:
        return lambda: _dataset([str(name) for name in names], content.shape)

    return Source(
        path.name,
        content.shape,
        max(content.top_label, tested.top_label) + 1,
        content.examples,
        tested.examples,
        part(train),
        part(test or train),
        f"{len(files)} TFRecord files" + ("" if test else ", tested on its training part"),
        files=len(train),
    )


def _files(path: Path) -> list[Path]:
    """In an order that is the same on every task."""
    files = sorted(path.rglob("*.tfrecord*")) if path.is_dir() else [path]
    files = [file for file in files if file.is_file() and not file.name.endswith(".json")]
    if not files:
        raise ExpectedError(f"there are no TFRecords in {path}", why="no file there is named *.tfrecord*")
    return files


def _dataset(files: Sequence[str], shape: tuple[int, int, int]) -> Any:
    features = {
        "image": tf.io.FixedLenFeature([], tf.string),
        "label": tf.io.FixedLenFeature([], tf.int64),
    }

    def decode(record: Any) -> tuple[Any, Any]:
        example = tf.io.parse_single_example(record, features)
        image = tf.io.decode_image(example["image"], channels=shape[2], expand_animations=False)
        return tf.ensure_shape(tf.cast(image, tf.float32) / 255.0, shape), example["label"]

    return tf.data.TFRecordDataset(files).map(decode, tf.data.AUTOTUNE, deterministic=True)


def _content(files: Sequence[Path]) -> Content:
    examples, top, shape = 0, -1, None
    for file in files:
        for record in read(file):
            image, label = _features(file, record)
            examples, top = examples + 1, max(top, label)
            shape = shape or _shape(file, image)
    if shape is None:
        raise ExpectedError(f"{files[0]} holds no examples")
    return Content(examples, top, shape)


def _features(file: Path, record: bytes) -> tuple[bytes, int]:
    try:
        features = tf.train.Example.FromString(record).features.feature
        return features["image"].bytes_list.value[0], features["label"].int64_list.value[0]
    except Exception:
        raise ExpectedError(
            f"an example in {file} cannot be used",
            why="it has no `image` (bytes) and `label` (int64) features",
        ) from None


def read(file: Path) -> Iterator[bytes]:
    """The records of one file: length, its checksum, data, its checksum; TensorFlow verifies these later."""
    with file.open("rb") as stream:
        while head := stream.read(12):
            size = struct.unpack("<Q", head[:8])[0] if len(head) == 12 else -1
            data = stream.read(size) if 0 <= size < 1 << 31 else b""
            if len(data) != size or len(stream.read(4)) != 4:
                raise ExpectedError(
                    f"{file} is cut off or is no TFRecord file", hint="--dataset names other files"
                )
            yield data


def _shape(file: Path, image: bytes) -> tuple[int, int, int]:
    """Height, width and channels, from the head of a PNG or JPEG."""
    if image.startswith(b"\x89PNG"):
        width, height = struct.unpack(">II", image[16:24])
        return height, width, {0: 1, 2: 3, 3: 3, 4: 1, 6: 3}[image[25]]
    at = 2
    while image.startswith(b"\xff\xd8") and at + 9 < len(image):
        marker, length = image[at + 1], struct.unpack(">H", image[at + 2 : at + 4])[0]
        if 0xC0 <= marker <= 0xCF and marker not in {0xC4, 0xC8, 0xCC}:
            height, width = struct.unpack(">HH", image[at + 5 : at + 9])
            return height, width, image[at + 9]
        at += 2 + length
    raise ExpectedError(f"the first image in {file} cannot be used", why="it is neither PNG nor JPEG")
