"""`python -m worker_entry`: options first, TensorFlow second, a truthful exit status last."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
import traceback
from collections.abc import MutableMapping, Sequence
from importlib import metadata
from typing import NoReturn

from worker_entry import cluster, options
from worker_entry.failure import EXIT_FAILED, EXIT_USAGE, ExpectedError, UsageError
from worker_entry.report import Reporter

LONGEST = 4000  # characters of an exception that are reported


def prepare_environment(env: MutableMapping[str, str] = os.environ) -> None:
    """Set what TensorFlow reads during its import; the user's own values always win."""
    # This program is written for Keras 2: with this, tf.keras is tf_keras. TensorFlow 2.15 needs neither.
    env.setdefault("TF_USE_LEGACY_KERAS", "0" if _has_only_keras_2() else "1")
    # Three lines of hardware notes per task hide the important lines; errors are still printed.
    env.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    # gRPC follows http_proxy between our own tasks and then hangs silently.
    env.setdefault("grpc_proxy", "")


def _has_only_keras_2() -> bool:
    has_tf_keras = importlib.util.find_spec("tf_keras") is not None
    with contextlib.suppress(metadata.PackageNotFoundError):
        return not has_tf_keras and metadata.version("keras").startswith("2.")
    return False


def main(argv: Sequence[str]) -> int:
    wanted = options.parse(argv)
    if wanted.validate:
        os.environ.pop("TF_CONFIG", None)  # each node on its own
        if importlib.util.find_spec("tf_keras") is None:  # on one device Keras 3 works as well
            os.environ.setdefault("TF_USE_LEGACY_KERAS", "0")
        wanted = options.for_validation(wanted)
    reporter = Reporter.from_environment()
    try:
        who = cluster.parse(os.environ.get("TF_CONFIG"))
        prepare_environment()
        from worker_entry import training

        return training.run(wanted, who, reporter)
    except UsageError as error:
        return _end(error, reporter, EXIT_USAGE)
    except ExpectedError as error:
        return _end(error, reporter, EXIT_FAILED)
    except ModuleNotFoundError as error:
        package = {"tensorflow": "tensorflow-cpu"}.get(error.name or "", error.name)
        what, hint = f"Python module {error.name} is missing", f"pip install {package}"
        return _end(ExpectedError(what, why=f"in {sys.executable}", hint=hint), reporter, EXIT_FAILED)
    except Exception as error:
        traceback.print_exc()
        kind, place = type(error).__name__, traceback.extract_tb(error.__traceback__)[-1]
        reporter.error(str(error)[:LONGEST], type=kind, file=place.filename, line=place.lineno or 0)
        return EXIT_FAILED


def _end(error: ExpectedError, reporter: Reporter, status: int) -> int:
    print(error, file=sys.stderr)
    reporter.error(error.what, why=error.why, hint=error.hint)
    return status


def _leave(status: int) -> NoReturn:
    """End with this status; in a cluster of parameter servers immediately.

    TensorFlow's own shutdown may wait for, or abort on, a closure that a worker has not finished.
    """
    if '"ps"' in os.environ.get("TF_CONFIG", ""):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)


if __name__ == "__main__":
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    _leave(main(sys.argv[1:]))
