"""tensorflow-datasets: loaded from a prepared folder, which is made once where it is missing."""

from __future__ import annotations

import fcntl
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf

from worker_entry.again import again
from worker_entry.data import fetch
from worker_entry.data.fetch import Tell
from worker_entry.data.source import Source
from worker_entry.failure import ExpectedError

UNASKED = 200_000_000  # bytes that are downloaded without --download


@dataclass(frozen=True)
class Prepared:
    """A set on this machine: its source, its folder, and the data_dir that this is in."""

    source: Source
    folder: Path
    root: Path


def load(name: str, data_dir: str | None, *, download: bool | None, tell: Tell) -> Source:
    """An image classification set by its tensorflow-datasets name.

    One that is missing is downloaded: unless `download` is False, or it is None and the set is large.
    """
    tfds = _tfds(name)
    builder = _builder(tfds, name, data_dir)
    if not Path(builder.data_path).exists():
        if why := _unwanted(builder, download):
            raise _absent(name, builder, why)
        _fetch(tfds, name, builder, None, tell)
        builder = _builder(tfds, name, data_dir)  # it reads what is prepared when it is made
    return _source(name, builder)


def _unwanted(builder: Any, download: bool | None) -> str:
    """Why it is not to be downloaded, "" when it is."""
    if download is None:
        size = _size(builder)
        if 0 < size <= UNASKED or _by_hand(builder):
            return ""
        much = f"it is a download of {size // 10**6} MB" if size else "it is not known how large it is"
        return f"{much}, and --download was not given"
    return "" if download else "--no-download was given"


def _size(builder: Any) -> int:
    """Bytes that a download has; 0 where that is not known."""
    return sum(int(info.size) for info in (builder.url_infos or {}).values())


def _by_hand(builder: Any) -> bool:
    """Whether the user has put the original files where tensorflow-datasets looks for them."""
    return Path(builder._data_dir_root, "downloads", "manual").is_dir()  # noqa: SLF001


def prepare(name: str, data_dir: str | None, files: int | None, tell: Tell) -> Prepared:
    """Make it, of so many training files; one that is there already is left as it is."""
    tfds = _tfds(name)
    builder = _builder(tfds, name, data_dir)
    folder = Path(builder.data_path)
    if not folder.exists():
        _fetch(tfds, name, builder, files, tell)
        builder = _builder(tfds, name, data_dir)
    source = _source(name, builder)
    if files is not None and source.files != files:
        raise ExpectedError(
            f"{name} is prepared already, in {source.files} files and not in {files}",
            why=f"{folder} is from before",
            hint=f"rm -r {folder}, then again; or another --data-dir",
        )
    return Prepared(source, folder, Path(builder._data_dir_root))  # noqa: SLF001


def _tfds(name: str) -> Any:
    # Else it looks for a metadata server, which takes seconds offline.
    os.environ.setdefault("NO_GCE_CHECK", "true")
    try:
        import tensorflow_datasets as tfds
    except ModuleNotFoundError as error:
        raise ExpectedError(
            f"the data set {name} needs tensorflow-datasets",
            why=f"module {error.name} is missing",
            hint=f"pip install tensorflow-datasets importlib_resources, or {_digits()}",
        ) from None
    if not hasattr(tfds, "core"):  # it logs what it could not import, and carries on
        raise ExpectedError(
            "tensorflow-datasets cannot be used here",
            why="it imports only in part, as its words above say: packages do not fit together",
            hint="pip install 'tensorflow-metadata<1.16' beside TensorFlow 2.16 and 2.17; pip check",
        )
    tfds.core.utils.gcs_utils._is_gcs_disabled = True  # noqa: SLF001  # no public switch; offline it waits
    if not sys.stderr.isatty():
        tfds.disable_progress_bar()
    return tfds


def _builder(tfds: Any, name: str, data_dir: str | None) -> Any:
    try:
        return tfds.builder(name, data_dir=str(Path(data_dir).expanduser()) if data_dir else None)
    except tfds.core.DatasetNotFoundError:
        raise ExpectedError(
            f"there is no data set named {name}",
            why="tensorflow-datasets does not know it, and it is not one of mnist, digits, synthetic",
            hint="https://www.tensorflow.org/datasets/catalog/overview lists them",
        ) from None


def _fetch(tfds: Any, name: str, builder: Any, files: int | None, tell: Tell) -> None:
    """Download and prepare it, once for all processes that see this disk; raise ExpectedError."""
    folder = Path(builder.data_path)
    # Before the lock, so that tasks without a network need not wait for each other to find out.
    urls = [] if _by_hand(builder) else builder.url_infos or ["https://storage.googleapis.com"]
    if why := fetch.unreachable(urls):
        raise _absent(name, builder, why)
    try:
        with _alone(folder.parent, tell):
            if not folder.exists():
                _download(tfds, builder, files, tell)
    except (OSError, tfds.download.DownloadError) as error:
        words = str(error).strip().splitlines() or [type(error).__name__]
        raise _absent(name, builder, f"it cannot be fetched: {words[0][:200]}") from None


@contextmanager
def _alone(folder: Path, tell: Tell) -> Iterator[None]:
    """Of several tasks on one disk, one prepares and the others find it prepared."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".preparing").open("w") as lock:
        said = 0.0
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() - said > fetch.EVERY:
                    tell("waits for another process that fetches it to this disk", 0, 0)
                    said = time.monotonic()
                time.sleep(0.2)
        yield


def _download(tfds: Any, builder: Any, files: int | None, tell: Tell) -> None:
    downloads = Path(builder._data_dir_root, "downloads")  # noqa: SLF001
    with fetch.bounded(), fetch.progress(downloads, _size(builder), tell):
        builder.download_and_prepare(download_config=tfds.download.DownloadConfig(num_shards=files))


def _absent(name: str, builder: Any, why: str) -> ExpectedError:
    asked = ""
    if "download was not given" in why:
        asked = f"; or `{again('--download', without=['--no-download'])}`, with internet access"
    return ExpectedError(
        f"the data set {name} is not on this machine",
        why=f"{_from_home(builder.data_path)} does not exist, and {why}",
        hint=f"{_digits()} trains on real digits that need no download{asked}; or name it under [data]"
        f' of hosts.toml, sets = ["{name}"]; or copy that folder from a machine that has it and name its root'
        " with `--data-dir`",
    )


def _digits() -> str:
    line = again("--dataset", "digits", without=["--dataset", "--data-dir", "--download", "--no-download"])
    return f"`{line}`"


def _from_home(folder: object) -> str:
    """With `~`: hosts on which only the homes differ say the same."""
    path, home = str(folder), str(Path.home())
    return "~" + path.removeprefix(home) if path.startswith(f"{home}/") else path


def _source(name: str, builder: Any) -> Source:
    info = builder.info
    if info.supervised_keys is None or "label" not in info.features or "train" not in info.splits:
        raise ExpectedError(
            f"{name} is not an image classification set",
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
