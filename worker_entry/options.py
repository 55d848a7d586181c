"""The command line: grouped, complete, and judged whole before TensorFlow is imported."""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from worker_entry.failure import EXIT_USAGE, UsageError
from worker_entry.schedule import VALIDATION

STRATEGIES = ("auto", "one-device", "mirrored", "multi-worker")
OPTIMIZERS = ("sgd", "adam", "rmsprop")
MODELS = ("cnn",)
BUILT_IN_DATA = ("mnist", "fashion_mnist", "digits", "synthetic")


@dataclass(frozen=True)
class Options:
    strategy: str
    communication: str
    devices: tuple[str, ...]
    start_timeout: float
    dataset: str
    data_dir: str | None
    download: bool
    model: str
    batch_size: int
    epochs: int | None
    steps_per_epoch: int | None
    optimizer: str
    learning_rate: float | None
    seed: int
    deterministic: bool
    checkpoint_dir: str | None
    save_every: int | None
    validate: tuple[int, int] | None

    def global_batch(self, replicas: int) -> int:
        return self.batch_size * replicas


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        print(UsageError(message, hint=_nearest(message, self)), file=sys.stderr)
        raise SystemExit(EXIT_USAGE)


def _nearest(message: str, parser: argparse.ArgumentParser) -> str:
    """The option that was probably meant, when the complaint is about an unknown one."""
    unknown = re.match(r"unrecognized arguments: (--?[\w-]+)", message)
    known = [name for action in parser._actions for name in action.option_strings]  # noqa: SLF001
    near = difflib.get_close_matches(unknown[1], known, n=1) if unknown else []
    return near[0] if near else "python -m worker_entry --help"


def parse(argv: Sequence[str]) -> Options:
    """Options from a command line; a wrong one ends the process with status 2 and one clear error."""
    parser = _build()
    given = vars(parser.parse_args(argv))
    given["devices"] = tuple(given["devices"])
    problem = _dataset_problem(given["dataset"])
    if problem:
        parser.error(problem)
    return Options(**given)


def _dataset_problem(dataset: str) -> str:
    """Why this cannot be a data set, as far as that can be said without TensorFlow."""
    looks_like_path = "/" in dataset or dataset.startswith(".") or ".tfrecord" in dataset
    if looks_like_path:
        return (
            ""
            if Path(dataset).expanduser().exists()
            else f"argument --dataset: no such file or folder: {dataset}"
        )
    if not re.fullmatch(r"[a-z][a-z0-9_]*(:[\w.*]+)?", dataset):
        return f"argument --dataset: {dataset!r} is neither a data set's name nor a path"
    near = difflib.get_close_matches(dataset, BUILT_IN_DATA, n=1, cutoff=0.8)
    if near and dataset not in BUILT_IN_DATA and not dataset.endswith("mnist"):
        return f"argument --dataset: {dataset!r} is unknown; did you mean {near[0]}?"
    return ""


def _whole(low: int) -> Callable[[str], int]:
    def convert(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"a whole number is needed, not {text!r}") from None
        if value < low:
            raise argparse.ArgumentTypeError(f"must be at least {low}, not {value}")
        return value

    return convert


def _rate(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"a number is needed, not {text!r}") from None
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be above 0, not {text}")
    return value


def _epochs_by_steps(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", text)
    if not found:
        raise argparse.ArgumentTypeError(f"EPOCHSxSTEPS is needed, such as 3x5, not {text!r}")
    return int(found[1]), int(found[2])


def _device_list(text: str) -> tuple[str, ...]:
    devices = tuple(part.strip() for part in text.split(","))
    for device in devices:
        if not re.fullmatch(r"(?i)/?(cpu|gpu|tpu):\d+", device):
            raise argparse.ArgumentTypeError(f"a list such as gpu:0,gpu:1 is needed; {device!r} is no device")
    return devices


def _build() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="python -m worker_entry",
        description="Train an image classifier on one device or on the cluster named by TF_CONFIG.",
        epilog="exit status: 0 trained, 1 failed, 2 wrong options, 75 stopped by SIGTERM with a checkpoint",
        allow_abbrev=False,
    )
    where = parser.add_argument_group("where it trains")
    where.add_argument(
        "--strategy",
        choices=STRATEGIES,
        default="auto",
        help="auto: by TF_CONFIG and the devices that are there",
    )
    where.add_argument(
        "--communication", choices=("auto", "ring", "nccl"), default="auto", help="collectives between tasks"
    )
    where.add_argument(
        "--devices",
        type=_device_list,
        default=(),
        metavar="LIST",
        help="for mirrored, e.g. gpu:0,gpu:1 (all)",
    )
    where.add_argument(
        "--start-timeout",
        type=_rate,
        default=120.0,
        metavar="SECONDS",
        help="how long to wait for the other tasks before the missing ones are named (120)",
    )
    data = parser.add_argument_group("data")
    data.add_argument(
        "--dataset",
        default="mnist",
        metavar="NAME|PATH",
        help="mnist (the default), fashion_mnist, digits (scikit-learn's, needs no network), synthetic"
        " (random, for speed only), or any image classification set of tensorflow-datasets",
    )
    data.add_argument(
        "--data-dir", metavar="DIR", help="of prepared tensorflow-datasets (~/tensorflow_datasets)"
    )
    data.add_argument(
        "--download", action="store_true", help="fetch and prepare the data set if it is missing"
    )
    model = parser.add_argument_group("model and optimization")
    model.add_argument("--model", choices=MODELS, default="cnn", help="cnn: the tutorial's MNIST network")
    model.add_argument(
        "--batch-size",
        type=_whole(1),
        default=64,
        metavar="N",
        help="per replica; the global one is times them",
    )
    model.add_argument("--optimizer", choices=OPTIMIZERS, default="sgd")
    model.add_argument("--learning-rate", type=_rate, metavar="RATE", help="(default: 0.001)")
    length = parser.add_argument_group(
        "length of training",
        "Without both: 3 epochs of 5 steps. Only --epochs: each is a whole pass over the data.",
    )
    length.add_argument("--epochs", type=_whole(1), metavar="N")
    length.add_argument("--steps-per-epoch", type=_whole(1), metavar="N")
    same = parser.add_argument_group("repeatability")
    same.add_argument("--seed", type=_whole(0), default=42, metavar="N", help="of weights and shuffling (42)")
    same.add_argument(
        "--deterministic", action="store_true", help="deterministic operations: slower, bit-exact"
    )
    kept = parser.add_argument_group(
        "checkpoints",
        "With a folder, training goes on from the newest checkpoint any task can see there, and SIGTERM"
        " saves one before it ends the program with status 75.",
    )
    kept.add_argument("--checkpoint-dir", metavar="DIR", help="shared by the machines or one on each")
    kept.add_argument(
        "--save-every", type=_whole(1), metavar="STEPS", help="(default: at the end of each epoch)"
    )
    check = parser.add_argument_group("checking a node")
    check.add_argument(
        "--validate",
        nargs="?",
        type=_epochs_by_steps,
        const=VALIDATION,
        metavar="EPOCHSxSTEPS",
        help="ignore TF_CONFIG and the length above; train the same model alone on one device (3x5 steps)"
        " with the job's data, else digits, else synthetic",
    )
    return parser
