"""The command line, checked completely before TensorFlow is imported, with one-line errors."""

from __future__ import annotations

import argparse
import math
import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from worker_entry.failure import EXIT_USAGE, UsageError

STRATEGIES = ("auto", "one-device", "mirrored", "central-storage", "multi-worker", "parameter-server", "tpu")
LEAST = {"batch_size": 1, "epochs": 1, "steps_per_epoch": 1, "save_every": 1, "seed": 0}


@dataclass(frozen=True)
class Options:
    """The command line; `parser` documents each option."""

    strategy: str
    devices: tuple[str, ...]
    tpu: str | None
    start_timeout: float
    dataset: str
    data_dir: str | None
    download: bool | None
    loop: str
    batch_size: int
    optimizer: str
    learning_rate: float
    seed: int
    deterministic: bool
    epochs: int | None
    steps_per_epoch: int | None
    checkpoint_dir: str | None
    save_every: int | None
    export_dir: str | None
    tensorboard_dir: str | None
    validate: bool


class Parser(argparse.ArgumentParser):
    """Ends the process with status 2 and one error."""

    def error(self, message: str) -> NoReturn:
        print(UsageError(message, hint="`orchestrate launch -- --help`"), file=sys.stderr)
        raise SystemExit(EXIT_USAGE)


_DATASET = (
    "mnist (default), fashion_mnist, digits (scikit-learn's, needs no network), or another image"
    " classification set of tensorflow-datasets"
)
_VALIDATE = (
    "train the same model on one device only (3x5 steps): without TF_CONFIG and the options for length"
    " and output, with the job's data, which is downloaded if it is missing"
)


def _groups() -> dict[str, tuple[tuple[str, str, dict[str, Any]], ...]]:
    """Return the options by the title of their group, with their help and argparse settings."""
    path: dict[str, Any] = {"metavar": "DIR"}
    count: dict[str, Any] = {"type": int, "metavar": "N"}
    seconds: dict[str, Any] = {"type": float, "default": 120.0, "metavar": "SECONDS"}
    return {
        "devices and strategy": (
            ("--strategy", "default: auto, from TF_CONFIG and the devices", _choice(*STRATEGIES)),
            ("--devices", "such as gpu:0,gpu:1", {"type": _devices, "default": (), "metavar": "LIST"}),
            ("--tpu", "default: $TPU_NAME", {"default": os.environ.get("TPU_NAME"), "metavar": "NAME"}),
            ("--start-timeout", "how long to wait for the other tasks (default: 120)", seconds),
        ),
        "data": (
            ("--dataset", _DATASET, {"default": "mnist", "metavar": "NAME"}),
            ("--data-dir", "the folder of prepared data sets (default: ~/tensorflow_datasets)", path),
            (
                "--download",
                "download a missing data set, once per disk (default: only mnist and fashion_mnist)",
                {"action": argparse.BooleanOptionalAction, "default": None},
            ),
        ),
        "model and optimization": (
            ("--loop", "Keras fit (default), or a custom loop", _choice("fit", "custom")),
            ("--batch-size", "examples per replica and step (default: 64)", {**count, "default": 64}),
            ("--optimizer", "default: sgd", _choice("sgd", "adam", "rmsprop")),
            ("--learning-rate", "default: 0.001", {"type": float, "default": 1e-3, "metavar": "RATE"}),
            ("--seed", "seed for weights and shuffling (default: 42)", {**count, "default": 42}),
            ("--deterministic", "deterministic operations: slower, bit-exact", {"action": "store_true"}),
        ),
        "length of training: 3 epochs of 5 steps; only --epochs: each is a pass over the data": (
            ("--epochs", "how many", count),
            ("--steps-per-epoch", "how many", count),
        ),
        "checkpoints and output: training continues from the newest checkpoint that any task can see": (
            ("--checkpoint-dir", "a folder shared by the machines, or one on each", path),
            ("--save-every", "save after this many steps (default: every epoch)", count),
            ("--export-dir", "the folder for the trained SavedModel", path),
            ("--tensorboard-dir", "logs for TensorBoard (fit)", path),
        ),
        "checking a node": (("--validate", _VALIDATE, {"action": "store_true"}),),
    }


def _choice(*names: str) -> dict[str, Any]:
    return {"choices": names, "default": names[0]}


def parser() -> Parser:
    made = Parser(
        prog="worker_entry",
        description="Train an image classifier on one device, or on the cluster that TF_CONFIG names.",
        epilog="exit status: 0 trained, 1 failed, 2 wrong options, 75 stopped by SIGTERM and saved",
        allow_abbrev=False,
    )
    for title, rows in _groups().items():
        name, _, text = title.partition(": ")
        group = made.add_argument_group(name, text or None)
        for option, words, more in rows:
            group.add_argument(option, help=words, **more)
    return made


def parse(argv: Sequence[str], made: Parser | None = None) -> Options:
    """Parse a command line; a wrong option ends the process with status 2 and one clear error."""
    made = made or parser()
    options = Options(**vars(made.parse_args(argv)))
    for problem in _problems(options):
        made.error(problem)
    return options


def for_validation(options: Options) -> Options:
    """Return options that train on one device and write nothing of the job's except missing data."""
    folders = ("checkpoint_dir", "export_dir", "tensorboard_dir")
    unset: dict[str, Any] = dict.fromkeys(("epochs", "steps_per_epoch", "save_every", *folders))
    return replace(options, strategy="one-device", devices=(), **unset)


def _problems(options: Options) -> Iterator[str]:
    if not re.fullmatch(r"[a-z][a-z0-9_]*(/[a-z0-9_]+)?(:[\w.*]+)?", options.dataset):
        yield f"argument --dataset: {options.dataset!r} is not a data set's name"
    for name, least in LEAST.items():
        if (count := getattr(options, name)) is not None and count < least:
            yield f"argument --{name.replace('_', '-')}: must be at least {least}, not {count}"
    for name in ("learning_rate", "start_timeout"):
        if not 0 < getattr(options, name) < math.inf:
            yield f"argument --{name.replace('_', '-')}: must be above 0, not {getattr(options, name):g}"
    if options.save_every and not options.checkpoint_dir:
        yield "--save-every needs --checkpoint-dir"


def folder(path: str | None) -> Path | None:
    return Path(path).expanduser() if path else None


def _devices(text: str) -> tuple[str, ...]:
    devices = tuple(part.strip() for part in text.split(","))
    for device in devices:
        if not re.fullmatch(r"(?i)/?(cpu|gpu|tpu):\d+", device):
            raise argparse.ArgumentTypeError(f"a list such as gpu:0,gpu:1 is needed: {device!r} is not one")
    return devices
