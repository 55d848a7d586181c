"""tensorflow-datasets: loaded from a prepared folder, which is created once if it is missing.

An unreachable server is detected early.
"""

from __future__ import annotations

import fcntl
import os
import sys
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tensorflow as tf

from worker_entry.data import Source
from worker_entry.failure import ExpectedError
from worker_entry.ports import OPEN, look

Tell = Callable[[str, int, int], None]  # the activity, and bytes of how many (0: unknown)

SMALL = ("mnist", "fashion_mnist")  # downloaded without --download
DIGITS = "`orchestrate launch -- --dataset digits` trains on real digits that need no download"


def load(name: str, data_dir: str | None, *, download: bool | None, tell: Tell) -> Source:
    """Return an image classification set by its tensorflow-datasets name; a small missing one is fetched."""
    tfds = _tfds(name)
    builder = _builder(tfds, name, data_dir)
    if not Path(builder.data_path).exists():
        if download is False:
            raise _absent(name, builder, "--no-download is set")
        if download is None and name not in SMALL:
            raise _absent(name, builder, "--download is not set")
        _fetch(tfds, name, builder, tell)
        builder = _builder(tfds, name, data_dir)  # the constructor reads what is prepared
    return _source(name, builder)


def _tfds(name: str) -> Any:
    # Otherwise it searches for a metadata server, which takes seconds offline.
    os.environ.setdefault("NO_GCE_CHECK", "true")
    try:
        import tensorflow_datasets as tfds
    except ModuleNotFoundError as error:
        raise ExpectedError(
            f"the data set {name} needs tensorflow-datasets",
            why=f"module {error.name} is missing",
            hint=f"pip install tensorflow-datasets importlib_resources; or {DIGITS}",
        ) from None
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
            why="tensorflow-datasets has no such data set, and it is not digits",
            hint="https://www.tensorflow.org/datasets/catalog/overview lists them",
        ) from None


def _fetch(tfds: Any, name: str, builder: Any, tell: Tell) -> None:
    """Download and prepare it, once for all processes that share this disk; raise ExpectedError."""
    folder = Path(builder.data_path)
    # Before the lock, so that tasks without a network do not wait for each other to find out.
    url = next(iter(builder.url_infos or ()), "https://storage.googleapis.com")
    by_hand = Path(builder._data_dir_root, "downloads", "manual")  # noqa: SLF001
    if not by_hand.is_dir() and (why := unreachable(url)):
        raise _absent(name, builder, why)
    size = sum(int(info.size) for info in (builder.url_infos or {}).values())
    try:
        with _alone(folder.parent, tell):
            if not folder.exists():
                tell("downloads", 0, size)
                builder.download_and_prepare()
    except (OSError, tfds.download.DownloadError) as error:
        words = str(error).strip().splitlines() or [type(error).__name__]
        raise _absent(name, builder, f"it cannot be downloaded: {words[0][:200]}") from None


def unreachable(url: str) -> str:
    """Return why the server of an address, or its proxy, is unreachable; "" if it responds within 2 s."""
    server = urllib.parse.urlsplit(url)
    proxy = urllib.request.getproxies().get(server.scheme)
    way = server
    if proxy and not urllib.request.proxy_bypass(server.hostname or ""):
        way = urllib.parse.urlsplit(proxy if "//" in proxy else f"//{proxy}")
    answer = look(f"{way.hostname}:{way.port or (80 if way.scheme == 'http' else 443)}")
    through = "" if way is server else f" through the proxy {way.netloc}"
    return "" if answer == OPEN else f"{server.hostname}{through} cannot be reached: {answer}"


@contextmanager
def _alone(folder: Path, tell: Tell) -> Iterator[None]:
    """Let one of several tasks on a disk prepare a set, while the others wait for it."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".preparing").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            tell("waits for another process that is downloading it to this disk", 0, 0)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _absent(name: str, builder: Any, why: str) -> ExpectedError:
    path, home = str(builder.data_path), str(Path.home())
    # With `~`, so that hosts whose homes differ print the same text.
    where = "~" + path.removeprefix(home) if path.startswith(f"{home}/") else path
    ways = "; --download fetches it, with internet access" if "--download is not set" in why else ""
    return ExpectedError(
        f"the data set {name} is not on this machine",
        why=f"{where} does not exist, and {why}",
        hint=f'{DIGITS}{ways}; or name it under [data] of hosts.toml, sets = ["{name}"]; or copy that folder'
        " from a machine that has it, and name its root with `--data-dir`",
    )


def _source(name: str, builder: Any) -> Source:
    info = builder.info
    shape = tuple(info.features["image"].shape) if "image" in info.features else ()
    fits = info.supervised_keys and "label" in info.features and len(shape) == 3 and None not in shape
    if not fits or not isinstance(info.splits["train"].num_shards, int):
        raise ExpectedError(
            f"{name} cannot be trained on",
            why="it has no (image, label) pairs with images of one shape, prepared whole in a train split",
            hint="another --dataset",
        )
    test = "test" if "test" in info.splits else "validation" if "validation" in info.splits else "train"

    def part(split: str) -> Any:
        return lambda: builder.as_dataset(split, as_supervised=True, shuffle_files=False).map(
            _scale, tf.data.AUTOTUNE, deterministic=True
        )

    classes, train = info.features["label"].num_classes, info.splits["train"]
    note = f"tensorflow-datasets {info.full_name}"
    note += "" if test != "train" else ", tested on its training part"
    parts = part("train"), part(test)
    return Source(name, shape, classes, train.num_examples, *parts, note, train.num_shards)


def _scale(image: Any, label: Any) -> tuple[Any, Any]:
    return tf.cast(image, tf.float32) / 255.0, tf.cast(label, tf.int64)
