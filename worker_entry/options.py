"""What can be asked for, judged whole before TensorFlow is imported."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from worker_entry import arguments


@dataclass(frozen=True)
class Options:
    """The command line; `arguments` says what each means."""

    strategy: str
    communication: str
    devices: tuple[str, ...]
    start_timeout: float
    tpu: str | None
    dataset: str
    data_dir: str | None
    download: bool | None
    loop: str
    model: str
    l2: float
    reduction: str
    jit: bool
    mixed_precision: str | None
    batch_size: int
    epochs: int | None
    steps_per_epoch: int | None
    optimizer: str
    learning_rate: float | None
    decay: bool
    early_stopping: int | None
    allow_nan: bool
    seed: int
    deterministic: bool
    checkpoint_dir: str | None
    save_every: int | None
    weights_dir: str | None
    export_dir: str | None
    tensorboard_dir: str | None
    csv: str | None
    verify: bool
    validate: tuple[int, int] | None


def for_validation(options: Options, epochs: int, steps: int) -> Options:
    """The same model alone on one device: nothing of the job's is written, but data that are missing."""
    return replace(
        options,
        strategy="one-device",
        devices=(),
        epochs=epochs,
        steps_per_epoch=steps,
        early_stopping=None,
        checkpoint_dir=None,
        save_every=None,
        weights_dir=None,
        export_dir=None,
        tensorboard_dir=None,
        csv=None,
        verify=False,
    )


def parse(argv: Sequence[str]) -> Options:
    """Options from a command line; a wrong one ends the process with status 2 and one clear error."""
    parser = arguments.parser()
    given = vars(parser.parse_args(argv))
    options = Options(**{**given, "devices": tuple(given["devices"])})
    for problem in _problems(options):
        parser.error(problem)
    return options


def _problems(options: Options) -> Iterator[str]:
    """What is wrong with each value that parses, and with values together."""
    yield from _dataset_problems(options.dataset)
    if options.loop == "custom":
        only_fit = {
            "--decay": options.decay,
            "--early-stopping": options.early_stopping,
            "--csv": options.csv,
            "--tensorboard-dir": options.tensorboard_dir,
            "--weights-dir": options.weights_dir,
            "--mixed-precision float16": options.mixed_precision == "float16",
        }
        yield from (f"{name} works with --loop fit only" for name, given in only_fit.items() if given)
    elif options.reduction != "none":
        yield "--reduction is for --loop custom; fit reduces by itself"
    if options.verify and not (options.checkpoint_dir or options.export_dir):
        yield "--verify needs --checkpoint-dir or --export-dir, or there is nothing to load"
    if options.save_every and not options.checkpoint_dir:
        yield "--save-every needs --checkpoint-dir"


def _dataset_problems(dataset: str) -> Iterator[str]:
    """Why this cannot be a data set, as far as that can be said without TensorFlow."""
    if is_path(dataset):
        if not Path(dataset).expanduser().exists():
            yield f"argument --dataset: no such file or folder: {dataset}"
    elif not re.fullmatch(r"[a-z][a-z0-9_]*(/[a-z0-9_]+)?(:[\w.*]+)?", dataset):
        yield f"argument --dataset: {dataset!r} is neither a data set's name nor a path"
    elif dataset not in arguments.DATASETS:
        # emnist and kmnist are sets of tensorflow-datasets; digit and mnst are slips.
        near = difflib.get_close_matches(dataset, arguments.DATASETS, n=1, cutoff=0.8)
        if near and not dataset.endswith("mnist"):
            yield f"argument --dataset: {dataset!r} is unknown; did you mean {near[0]}?"


def folder(path: str | None) -> Path | None:
    return Path(path).expanduser() if path else None


def is_path(dataset: str) -> bool:
    """A path starts like one; `name/config` is tensorflow-datasets' own notation."""
    return dataset.startswith(("/", ".", "~")) or ".tfrecord" in dataset
