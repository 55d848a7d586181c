"""`python -m worker_entry.prepare mnist --data-dir DIR`: prepare a set of tensorflow-datasets."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from worker_entry.__main__ import prepare_environment
from worker_entry.failure import EXIT_FAILED, EXIT_OK, ExpectedError
from worker_entry.options import Parser


def main(argv: Sequence[str]) -> int:
    made = Parser(prog="worker_entry.prepare", allow_abbrev=False)
    made.add_argument("name", help="mnist, fashion_mnist, or any other image classification set")
    made.add_argument("--data-dir", metavar="DIR", help="(default: ~/tensorflow_datasets)")
    options = made.parse_args(argv)
    prepare_environment()
    try:
        from worker_entry.data import prepared

        source = prepared.load(options.name, options.data_dir, download=True, tell=_tell)
    except ExpectedError as error:
        print(error, file=sys.stderr)
        return EXIT_FAILED
    print(f"{source.note}: {source.train_examples} training examples, {source.test_examples} for the test")
    return EXIT_OK


def _tell(step: str, _done: int, total: int) -> None:
    print(f"{step} ({total / 1e6:.1f} MB)" if total else step, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
