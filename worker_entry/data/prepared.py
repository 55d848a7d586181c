"""tensorflow-datasets: loaded from a prepared folder; downloaded only when told to."""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tensorflow as tf

from worker_entry.data.source import Source
from worker_entry.failure import ExpectedError

HOST = ("storage.googleapis.com", 443)


def load(name: str, data_dir: str | None, *, download: bool) -> Source:
    """An image classification set by its tensorflow-datasets name."""
    os.environ.setdefault(
        "NO_GCE_CHECK", "true"
    )  # else a look for Google's metadata server, offline: seconds
    try:
        import tensorflow_datasets as tfds
    except ModuleNotFoundError as error:
        raise ExpectedError(
            f"the data set {name} needs tensorflow-datasets",
            why=f"module {error.name} is missing",
            hint="pip install tensorflow-datasets importlib_resources, or --dataset digits",
        ) from None
    tfds.core.utils.gcs_utils._is_gcs_disabled = True  # noqa: SLF001  # no public switch; offline it waits
    builder = _builder(tfds, name, data_dir)
    if not Path(builder.data_path).exists():
        if not download:
            raise _absent(name, builder, "--download was not given")
        with _alone(Path(builder.data_path).parent):
            if not Path(builder.data_path).exists():
                _download(name, builder)
    return _source(name, builder)


def _builder(tfds: Any, name: str, data_dir: str | None) -> Any:
    try:
        return tfds.builder(name, data_dir=str(Path(data_dir).expanduser()) if data_dir else None)
    except tfds.core.DatasetNotFoundError:
        raise ExpectedError(
            f"there is no data set named {name}",
            why="tensorflow-datasets does not know it, and it is not one of mnist, digits, synthetic",
            hint="https://www.tensorflow.org/datasets/catalog/overview lists them",
        ) from None


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Of several tasks on one disk, one prepares and the others find it prepared."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".preparing").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _download(name: str, builder: Any) -> None:
    manual = Path(builder._data_dir_root, "downloads", "manual")  # noqa: SLF001
    if not manual.is_dir():
        try:
            socket.create_connection(HOST, timeout=3).close()
        except OSError as error:
            raise _absent(name, builder, f"{HOST[0]} does not answer: {error}") from None
    builder.download_and_prepare()


def _absent(name: str, builder: Any, why: str) -> ExpectedError:
    folder = builder.data_path
    return ExpectedError(
        f"the data set {name} is not on this machine",
        why=f"{folder} does not exist, and {why}",
        hint="one of: --download (with internet access, once); copy that folder from a machine that has"
        " it and name its root with --data-dir; --dataset digits (real, needs only scikit-learn)",
    )


def _source(name: str, builder: Any) -> Source:
    info = builder.info
    if info.supervised_keys is None or "label" not in info.features or "train" not in info.splits:
        raise ExpectedError(
            f"{name} is no image classification set",
            why="it has no supervised (image, label) pairs in a train split",
        )
    shape = tuple(info.features["image"].shape) if "image" in info.features else ()
    if len(shape) != 3 or None in shape:
        raise ExpectedError(
            f"the images of {name} have no fixed shape", why=f"they are {shape}", hint="another --dataset"
        )
    if not isinstance(info.splits["train"].num_shards, int):
        raise ExpectedError(
            f"{name} is not prepared whole", why="its train split has no files", hint="prepare again"
        )
    test = "test" if "test" in info.splits else "validation" if "validation" in info.splits else "train"

    def part(split: str) -> Any:
        return lambda: builder.as_dataset(split, as_supervised=True, shuffle_files=False).map(
            _scale, tf.data.AUTOTUNE, deterministic=True
        )

    return Source(
        name,
        (shape[0], shape[1], shape[2]),
        info.features["label"].num_classes,
        info.splits["train"].num_examples,
        info.splits[test].num_examples,
        part("train"),
        part(test),
        f"tensorflow-datasets {info.full_name}"
        + ("" if test != "train" else ", tested on its training part"),
        files=info.splits["train"].num_shards,
    )


def _scale(image: Any, label: Any) -> tuple[Any, Any]:
    return tf.cast(image, tf.float32) / 255.0, tf.cast(label, tf.int64)
