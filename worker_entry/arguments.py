"""The command line's words: grouped, complete, with one-line errors."""

from __future__ import annotations

import argparse
import difflib
import os
import re
import sys
from collections.abc import Callable
from typing import NoReturn

from worker_entry.failure import EXIT_USAGE, UsageError
from worker_entry.schedule import VALIDATION

STRATEGIES = ("auto", "one-device", "mirrored", "central-storage", "multi-worker", "parameter-server", "tpu")
DATASETS = ("mnist", "fashion_mnist", "digits", "synthetic")


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        message = re.sub(r"^unrecognized arguments: (--?[\w-]+).*", r"worker_entry has no option \1", message)
        print(UsageError(message, hint=self._nearest(message)), file=sys.stderr)
        raise SystemExit(EXIT_USAGE)

    def _nearest(self, message: str) -> str:
        """The option that was probably meant, when the complaint is about an unknown one."""
        unknown = re.match(r"worker_entry has no option (--?[\w-]+)", message)
        known = [name for action in self._actions for name in action.option_strings]
        near = difflib.get_close_matches(unknown[1], known, n=1) if unknown else []
        return f"write {near[0]}" if near else "`python -m worker_entry --help`"


def parser() -> Parser:
    made = Parser(
        prog="python -m worker_entry",
        description="Train an image classifier on one device, or on the cluster that TF_CONFIG names.",
        epilog="exit status: 0 trained, 1 failed, 2 wrong options, 75 stopped by SIGTERM and saved",
        allow_abbrev=False,
    )
    for group in (_where, _data, _model, _length, _checkpoints, _output, _check):
        group(made)
    return made


def _where(made: Parser) -> None:
    group = made.add_argument_group("where it trains")
    group.add_argument(
        "--strategy",
        choices=STRATEGIES,
        default="auto",
        help="auto (default): chosen from TF_CONFIG and the devices",
    )
    group.add_argument(
        "--devices", type=_devices, default=(), metavar="LIST", help="e.g. gpu:0,gpu:1 (default: all)"
    )
    group.add_argument(
        "--communication",
        choices=("auto", "ring", "nccl"),
        default="auto",
        help="how tasks exchange gradients",
    )
    group.add_argument(
        "--tpu",
        default=os.environ.get("TPU_NAME"),
        metavar="NAME",
        help="name of the TPU (default: $TPU_NAME)",
    )
    group.add_argument(
        "--start-timeout",
        type=_positive,
        default=120.0,
        metavar="SECONDS",
        help="how long to wait for the other tasks before the missing ones are named (default: 120)",
    )


def _data(made: Parser) -> None:
    group = made.add_argument_group("data")
    group.add_argument(
        "--dataset",
        default="mnist",
        metavar="NAME|PATH",
        help="mnist (default), fashion_mnist, digits (scikit-learn's, needs no network), synthetic (random,"
        " to measure speed only), any (digits, else synthetic), an image classification set of"
        " tensorflow-datasets, or a path to TFRecords",
    )
    group.add_argument(
        "--data-dir",
        metavar="DIR",
        help="where prepared data sets of tensorflow-datasets are (default: ~/tensorflow_datasets)",
    )
    group.add_argument(
        "--download",
        action=argparse.BooleanOptionalAction,
        default=None,
        help=(
            "download and prepare a missing data set of any size, once for each disk (default: only up to"
            " 200 MB)"
        ),
    )


def _model(made: Parser) -> None:
    group = made.add_argument_group("model and optimization")
    group.add_argument(
        "--loop",
        choices=("fit", "custom"),
        default="fit",
        help="Keras fit (default), or a training loop of its own",
    )
    group.add_argument(
        "--model",
        choices=("cnn", "fashion"),
        default="cnn",
        help="the model of the MNIST tutorial, or of the one for Fashion-MNIST",
    )
    group.add_argument(
        "--batch-size",
        type=whole(1),
        default=64,
        metavar="N",
        help=(
            "examples per replica and step (default: 64); the global batch is this times the number of"
            " replicas"
        ),
    )
    group.add_argument("--optimizer", choices=("sgd", "adam", "rmsprop"), default="sgd", help="default: sgd")
    group.add_argument("--learning-rate", type=_positive, metavar="RATE", help="(default: 0.001)")
    group.add_argument(
        "--decay",
        action="store_true",
        help="a tenth of the rate from epoch 3, a hundredth from epoch 7 (fit)",
    )
    group.add_argument(
        "--l2", type=_positive, default=0.0, metavar="RATE", help="weight penalty (default: none)"
    )
    group.add_argument(
        "--reduction",
        choices=("none", "sum"),
        default="none",
        help="how --loop custom adds up losses; both give the same result",
    )
    group.add_argument("--mixed-precision", choices=("bfloat16", "float16"), help="compute in half precision")
    group.add_argument("--jit", action="store_true", help="compile with XLA")
    group.add_argument(
        "--seed", type=whole(0), default=42, metavar="N", help="for weights and shuffling (default: 42)"
    )
    group.add_argument(
        "--deterministic", action="store_true", help="deterministic operations: slower, bit-exact"
    )


def _length(made: Parser) -> None:
    group = made.add_argument_group(
        "length of training",
        "Without both: 3 epochs of 5 steps. Only --epochs: each is a pass over the data.",
    )
    group.add_argument("--epochs", type=whole(1), metavar="N")
    group.add_argument("--steps-per-epoch", type=whole(1), metavar="N")
    group.add_argument(
        "--early-stopping",
        type=whole(1),
        metavar="EPOCHS",
        help="end when the loss has not fallen for this many epochs (fit)",
    )
    group.add_argument(
        "--allow-nan", action="store_true", help="continue, and end with 0, when a loss is NaN or infinite"
    )


def _checkpoints(made: Parser) -> None:
    group = made.add_argument_group(
        "checkpoints",
        "With a folder, training continues from the newest checkpoint any task can see there, and SIGTERM"
        " saves one before it ends the program with status 75.",
    )
    group.add_argument(
        "--checkpoint-dir",
        metavar="DIR",
        help="where checkpoints are: shared by the machines, or one folder on each",
    )
    group.add_argument(
        "--save-every",
        type=whole(1),
        metavar="STEPS",
        help="(default: every epoch in fit, every second in custom)",
    )


def _output(made: Parser) -> None:
    group = made.add_argument_group("output")
    group.add_argument("--export-dir", metavar="DIR", help="where the trained SavedModel goes")
    group.add_argument(
        "--weights-dir", metavar="DIR", help="Keras ModelCheckpoint: the weights of each epoch (fit)"
    )
    group.add_argument("--tensorboard-dir", metavar="DIR", help="logs for TensorBoard (fit)")
    group.add_argument("--csv", metavar="FILE", help="the metrics of each epoch (fit)")

    group.add_argument(
        "--verify",
        action="store_true",
        help="load what was saved, with and without the strategy, and fail if its score differs",
    )


def _check(made: Parser) -> None:
    group = made.add_argument_group("checking a node")
    group.add_argument(
        "--validate",
        nargs="?",
        type=_epochs_by_steps,
        const=VALIDATION,
        metavar="EPOCHSxSTEPS",
        help=(
            "ignore TF_CONFIG, the options for length, and those for output; train the same model alone on"
            " one device (3x5 steps) with the job's data, which is downloaded if it is missing"
        ),
    )


def whole(low: int) -> Callable[[str], int]:
    def convert(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"a whole number is needed, not {text!r}") from None
        if value < low:
            raise argparse.ArgumentTypeError(f"must be at least {low}, not {value}")
        return value

    return convert


def _positive(text: str) -> float:
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


def _devices(text: str) -> tuple[str, ...]:
    devices = tuple(part.strip() for part in text.split(","))
    for device in devices:
        if not re.fullmatch(r"(?i)/?(cpu|gpu|tpu):\d+", device):
            raise argparse.ArgumentTypeError(f"a list such as gpu:0,gpu:1 is needed: {device!r} is not one")
    return devices
